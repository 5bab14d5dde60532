"""A model small enough for exhaustive search: a hash of the complete history selects its logits from a
table, so that a cache that drops tokens, mixes rows or reads padding changes the logits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t2x.layers import Cache, Input
from t2x.models import ModelSpec

BUCKETS = 211


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History(Cache):
  """The ids of each row by position, and the segments of the positions, 0 for padding."""

  ids: jax.Array
  segments: jax.Array
  offset: jax.Array

  def repeat(self, copies):
    return jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self)

  def take(self, rows):
    return jax.tree.map(lambda a: a[rows], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryModel:
  """Logits after a history = table[hash(history)]; the cache holds the history of each row.

  Every pass through `decode` calls `seen` (when compiled, with the ids) and `traced` (when traced).
  """

  table: jax.Array
  patterns: tuple = dataclasses.field(default=(), metadata={'static': True})
  max_length: int | None = dataclasses.field(default=None, metadata={'static': True})
  seen: object = dataclasses.field(default=None, metadata={'static': True})
  traced: object = dataclasses.field(default=None, metadata={'static': True})

  @property
  def spec(self):
    tokens = Input(max_length=self.max_length, vocab_size=self.table.shape[1])
    return ModelSpec(
      inputs={'tokens': tokens}, outputs=frozenset({'token logits'}), patterns=self.patterns
    )

  def init_cache(self, batch, num_slots, offset=None, dtype=None):
    """`offset` [batch] replaces an encoder-decoder's source: it is added to every hash."""
    zeros = jnp.zeros((batch, num_slots), jnp.int32)
    return History(zeros, zeros, jnp.zeros(batch, jnp.int32) if offset is None else offset)

  def unstacked(self, cache):
    return self, cache

  def decode(self, ids, tokens, cache, last=None):
    if self.traced is not None:
      self.traced()
    if self.seen is not None:
      jax.debug.callback(self.seen, ids)
    rows = jnp.arange(len(ids))[:, None]
    cache = History(
      cache.ids.at[rows, tokens.positions].set(ids),
      cache.segments.at[rows, tokens.positions].set(tokens.segments),
      cache.offset,
    )
    places = jnp.arange(cache.ids.shape[1])
    visible = (places <= tokens.positions[:, :, None]) & (cache.segments != 0)[:, None]
    terms = (cache.ids + 1) * (places + 2) ** 2
    hashed = jnp.sum(jnp.where(visible, terms[:, None], 0), axis=-1) + cache.offset[:, None]
    logits = self.table[hashed % BUCKETS]
    if last is not None:
      logits = jnp.take_along_axis(logits, last[:, None, None], axis=1)
    return logits, cache


def history_model(vocab=5, seed=0, scale=2.0, **kwargs):
  table = np.random.default_rng(seed).normal(size=(BUCKETS, vocab)) * scale
  return HistoryModel(jnp.asarray(table, jnp.float32), **kwargs)


def row_of(history, offset=0):
  """Returns the row of the table that has the logits after a history."""
  hashed = sum((int(i) + 1) * (slot + 2) ** 2 for slot, i in enumerate(history)) + offset
  return hashed % BUCKETS


def log_probs_after(model, history, offset=0):
  """Returns the log-probabilities of the next token, in NumPy."""
  logits = np.asarray(model.table, np.float64)[row_of(history, offset)]
  return logits - np.log(np.exp(logits).sum())


def greedy_by_hand(model, prompt, limit, eos_id):
  """Greedy decoding without cache or batch."""
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
  """Returns all sequences that end with `eos_id` or have `limit` tokens, with their log-probabilities."""

  def grow(written, total):
    if len(written) == limit or (written and written[-1] == eos_id):
      yield written, total
      return
    step = log_probs_after(model, [*prompt, *written], offset)
    for token, log_prob in enumerate(step):
      yield from grow([*written, token], total + log_prob)

  return list(grow([], 0.0))
