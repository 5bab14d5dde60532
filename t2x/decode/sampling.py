"""Greedy decoding and sampling: temperature, top-k (Fan et al. 2018,
https://arxiv.org/abs/1805.04833) and nucleus (Holtzman et al. 2019,
https://arxiv.org/abs/1904.09751)."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Range, ScoreScale, Size
from t2x.decode.strategy import Generated, Strategy
from t2x.decode.top_k import top_k
from t2x.layers.arrays import Leaf
from t2x.layers.keys import row_keys

__all__ = ['Greedy', 'Sampling', 'keep_top_k', 'keep_top_p']


def keep_top_k(logits: Float[Array, '*batch vocab'], k: int) -> Float[Array, '*batch vocab']:
  """Keeps the `k` largest logits and all equal to the k-th; sets the rest to -inf."""
  kth = top_k(logits, min(k, logits.shape[-1]))[0][..., -1:]
  return jnp.where(logits < kth, -jnp.inf, logits)


def keep_top_p(logits: Float[Array, '*batch vocab'], p: float) -> Float[Array, '*batch vocab']:
  """Keeps the nucleus, the smallest set of most probable tokens with total probability of at least
  `p`; sets the rest to -inf.

  The token that reaches `p` is included, so the nucleus is never empty. Tokens as probable as its
  last token are kept too; Hugging Face keeps only the last of them in its sort order.
  """
  ordered = -jnp.sort(-logits, axis=-1)
  probs = jax.nn.softmax(ordered, axis=-1)
  inside = jnp.cumsum(probs, axis=-1) - probs < p
  smallest = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
  return jnp.where(logits < smallest, -jnp.inf, logits)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingState:
  """Generated sequences, the next token to feed, and a random key per sequence or None."""

  keys: Leaf | None
  tokens: Int[Array, 'batch copies length']
  log_probs: Float[Array, 'batch copies length']
  lengths: Int[Array, 'batch copies']
  last: Int[Array, 'batch copies']
  live: Bool[Array, 'batch copies']


class IndependentStrategy(Strategy):
  """Base of strategies that extend each sequence independently, with the token from `choose`."""

  @abc.abstractmethod
  def choose(
    self, logits: Float[Array, 'batch copies vocab'], step: Int[Array, ''], keys: Array
  ) -> Int[Array, 'batch copies']:
    """Returns the next token of each sequence, given float32 logits and a key per sequence or None."""

  def start(self, request):
    shape = (len(request.limits), self.copies(request.num_return))
    room = (*shape, request.max_new_tokens)
    return SamplingState(
      keys=_keys(request.key, *shape) if self.random else None,
      tokens=jnp.full(room, request.pad_id, jnp.int32),
      log_probs=jnp.zeros(room),
      lengths=jnp.zeros(shape, jnp.int32),
      last=jnp.full(shape, request.pad_id, jnp.int32),
      live=jnp.ones(shape, bool),
    )

  def advance(self, state, logits, step, request):
    logits = logits.astype(jnp.float32)
    processed = self.process(logits, state.tokens, step, request)
    chosen = self.choose(processed, step, state.keys)
    picked = jnp.take_along_axis(logits, chosen[..., None], axis=-1)[..., 0]
    log_prob = picked - jax.nn.logsumexp(logits, axis=-1)
    token = jnp.where(state.live, chosen, request.pad_id)
    ends = (step + 1 >= request.limits[:, None]) | request.ends(token)
    state = SamplingState(
      keys=state.keys,
      tokens=state.tokens.at[:, :, step].set(token),
      log_probs=state.log_probs.at[:, :, step].set(jnp.where(state.live, log_prob, 0.0)),
      lengths=state.lengths + state.live,
      last=token,
      live=state.live & ~ends,
    )
    return state, None

  def finish(self, state, request):
    total = state.log_probs.sum(axis=-1)
    return Generated(state.tokens, state.lengths, state.log_probs, total, total)


@dataclasses.dataclass(frozen=True)
class Greedy(IndependentStrategy):
  """Greedy decoding: the most probable token at each step, the lowest id in case of ties."""

  def choose(self, logits, step, keys):
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Sampling(IndependentStrategy):
  """Samples each token from the model's distribution.

  Applies `processors`, then temperature, top-k and nucleus. A sample depends only on the key, the
  index of the prompt in the batch (if the prompts share a key), the index of the sequence of the
  prompt, and the step, not on the number of prompts or sequences.

  Attributes:
    temperature: divides the logits; values below 1 sharpen the distribution, above 1 flatten it.
    top_k: keeps the k most probable tokens. None: all.
    top_p: keeps the nucleus of this probability, after top_k. None: all.

  Raises:
    UserError: temperature is not from 1e-6 to 1e6, top_p is not positive, top_p is above 1, or top_k is below 1.
  """

  temperature: ScoreScale = 1.0
  top_k: Size | None = None
  top_p: Annotated[float, Range('0 < x <= 1')] | None = None

  random: ClassVar[bool] = True

  def __post_init__(self):
    super().__post_init__()
    if not 1e-6 <= self.temperature <= 1e6:
      raise UserError(
        f'Sampling.temperature = {self.temperature} must be from 1e-6 to 1e6; use Greedy() instead of 0'
      )
    if self.top_k is not None and self.top_k < 1:
      raise UserError(f'Sampling.top_k = {self.top_k} must be at least 1, or None')
    if self.top_p is not None and not 0 < self.top_p <= 1:
      raise UserError(f'Sampling.top_p = {self.top_p} must be in (0, 1]')

  def copies(self, num_return):
    return num_return

  def filter(self, logits: Float[Array, '*batch vocab']) -> Float[Array, '*batch vocab']:
    """Applies temperature, top-k and nucleus; excluded tokens get -inf."""
    logits = logits / self.temperature
    if self.top_k is not None:
      logits = keep_top_k(logits, self.top_k)
    if self.top_p is not None:
      logits = keep_top_p(logits, self.top_p)
    return logits

  def choose(self, logits, step, keys):
    def draw(key, logits):
      return jax.random.categorical(jax.random.fold_in(key, step), logits).astype(jnp.int32)

    return jax.vmap(jax.vmap(draw))(keys, self.filter(logits))


# The seed of sampling, or (seed, number of the first prompt) or (seed, number of each prompt) for a batch of several.
SampleSeed = int | tuple[int, int | Sequence[int]]


def prompt_keys(seed: SampleSeed, batch: int) -> Array:
  """Returns a key per prompt, [batch], which depends only on the seed and the number of the prompt."""
  seed, numbers = seed if isinstance(seed, tuple) else (seed, 0)
  rows = range(numbers, numbers + batch) if isinstance(numbers, int) else numbers
  return row_keys(jax.random.key(seed), [*rows])


def _keys(key: Array, batch: int, copies: int) -> Array:
  """Returns a key per sequence, [batch, copies], from its index and from the key or the index of its row only."""
  rows = key if key.shape else row_keys(key, batch)
  return jax.vmap(row_keys, (0, None))(rows, copies)
