"""A model small enough to search by hand: its logits are drawn from a table by a hash of the whole
history, so that a cache that forgets, mixes rows or reads padding gives other logits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t2x.models import ModelSpec

BUCKETS = 211


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryModel:
  """Logits after a history = table[hash(history)]; the cache holds the history of each row.

  Every pass through `decode` calls `seen` (when compiled, with the ids) and `traced` (when traced).
  """

  table: jax.Array
  patterns: tuple = dataclasses.field(default=(), metadata={'static': True})
  cache_batch_axis: int = dataclasses.field(default=1, metadata={'static': True})
  max_length: int | None = dataclasses.field(default=None, metadata={'static': True})
  seen: object = dataclasses.field(default=None, metadata={'static': True})
  traced: object = dataclasses.field(default=None, metadata={'static': True})

  @property
  def spec(self):
    return ModelSpec(
      inputs='a text',
      outputs=frozenset({'token logits'}),
      patterns=self.patterns,
      max_length=self.max_length,
      vocab_size=self.table.shape[1],
    )

  def init_cache(self, batch, length, offset=None):
    """`offset` [batch] stands for an encoder-decoder's source: it is added to every hash."""
    shape = [length]
    shape.insert(self.cache_batch_axis, batch)
    if self.cache_batch_axis == 1:
      shape = [1, batch, length]
    offset = jnp.zeros(batch, jnp.int32) if offset is None else offset
    return {
      'ids': jnp.zeros(shape, jnp.int32),
      'segments': jnp.zeros(shape, jnp.int32),
      'offset': offset[None] if self.cache_batch_axis == 1 else offset,
    }

  def decode(self, ids, tokens, cache, last=None):
    if self.traced is not None:
      self.traced()
    if self.seen is not None:
      jax.debug.callback(self.seen, ids)
    lead = self.cache_batch_axis == 1
    plain = jax.tree.map(lambda a: a[0], cache) if lead else cache
    rows = jnp.arange(len(ids))[:, None]
    plain = plain | {
      'ids': plain['ids'].at[rows, tokens.positions].set(ids),
      'segments': plain['segments'].at[rows, tokens.positions].set(tokens.segments),
    }
    slots = jnp.arange(plain['ids'].shape[1])
    visible = (slots <= tokens.positions[:, :, None]) & (plain['segments'] != 0)[:, None]
    terms = (plain['ids'] + 1) * (slots + 2) ** 2
    hashed = jnp.sum(jnp.where(visible, terms[:, None], 0), axis=-1) + plain['offset'][:, None]
    logits = self.table[hashed % BUCKETS]
    if last is not None:
      logits = jnp.take_along_axis(logits, last[:, None, None], axis=1)
    return logits, jax.tree.map(lambda a: a[None], plain) if lead else plain


def history_model(vocab=5, seed=0, scale=2.0, **kwargs):
  table = np.random.default_rng(seed).normal(size=(BUCKETS, vocab)) * scale
  return HistoryModel(jnp.asarray(table, jnp.float32), **kwargs)


def log_probs_after(model, history, offset=0):
  """The log-probabilities of the next token, in NumPy."""
  hashed = sum((int(i) + 1) * (slot + 2) ** 2 for slot, i in enumerate(history)) + offset
  logits = np.asarray(model.table, np.float64)[hashed % BUCKETS]
  return logits - np.log(np.exp(logits).sum())


def greedy_by_hand(model, prompt, limit, eos_id):
  """Argmax until the end, without cache or batch."""
  history, out, log_probs = list(prompt), [], []
  for _ in range(limit):
    step = log_probs_after(model, history)
    out.append(int(step.argmax()))
    log_probs.append(step.max())
    history.append(out[-1])
    if out[-1] == eos_id:
      break
  return out, log_probs


def all_sequences(model, prompt, limit, eos_id, offset=0):
  """Every sequence that ends with `eos_id` or has `limit` tokens, with its log-probability."""

  def grow(written, total):
    if len(written) == limit or (written and written[-1] == eos_id):
      yield written, total
      return
    step = log_probs_after(model, [*prompt, *written], offset)
    for token, log_prob in enumerate(step):
      yield from grow([*written, token], total + log_prob)

  return list(grow([], 0.0))
