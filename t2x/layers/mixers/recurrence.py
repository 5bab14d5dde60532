"""Recurrences over the tokens of each segment, chunk by chunk: sums S_t = a_t S_{t-1} + k_t v_t' with decays a_t."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from t2x.layers.arrays import Leaf
from t2x.layers.caches import RecurrentState
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.tokens import to_blocks

__all__ = ['LinearState']

# Scale of an empty sum: finite, because differences of scales are computed.
EMPTY = -1e30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearState(RecurrentState):
  """Sums over the earlier tokens of the last segment of each row.

  Attributes:
    sums: sums of products of keys and values, [batch, heads, features, v_dim], in float32 or wider.
    segment: the segment of these tokens, int32 [batch]; 0: no token yet.
    scale: logarithm of a factor that the sums are divided by, [batch, heads]; see `relative_to_maximum`.
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  sums: Leaf
  segment: Leaf
  scale: Leaf | None = None

  @staticmethod
  def empty(
    batch: int, heads: int, features: int, v_dim: int, dtype: DTypeLike = Dtypes.reductions
  ) -> 'LinearState':
    """Returns the state before the first token."""
    return LinearState(
      jnp.zeros((batch, heads, features, v_dim), dtype),
      jnp.zeros(batch, jnp.int32),
      jnp.full((batch, heads), EMPTY, dtype),
    )

  def astype(self, dtype: DTypeLike) -> 'LinearState':
    """Returns the state with sums and scale of this dtype."""
    scale = None if self.scale is None else self.scale.astype(dtype)
    return LinearState(self.sums.astype(dtype), self.segment, scale)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
  """Inputs of a recurrence; arrays are [batch, length, ...], see `split`.

  Attributes:
    q: queries, [..., heads, features].
    k: keys, [..., heads, features].
    v: values, [..., heads, v_dim].
    segments: segments of the tokens, int32; 0 is padding, which the sums exclude.
    logs: logarithms [..., heads] that `Factors` are computed from; None: no factors.
    erased: keys w, [..., heads, features]; the product of w and the sums before the chunk is subtracted from v. None:
      0.
  """

  q: Leaf
  k: Leaf
  v: Leaf
  segments: Leaf
  logs: Leaf | None = None
  erased: Leaf | None = None

  def split(self, chunk: int) -> 'Inputs':
    """Returns the inputs as [chunks, batch, chunk, ...]."""
    return jax.tree.map(lambda a: split(a, chunk), self)


@dataclasses.dataclass(frozen=True)
class Masks:
  """Which sums a chunk reads and keeps, for a state before it.

  Attributes:
    visible: whether query i reads key j, [batch, queries, keys].
    continues: whether a token continues the segment of the state, [batch, tokens].
    stays: whether the chunk ends in the segment of the state, [batch].
    own: whether a token is of the last segment, [batch, tokens].
    last: the last segment, [batch].
  """

  visible: Bool[Array, 'batch chunk chunk']
  continues: Bool[Array, 'batch chunk']
  stays: Bool[Array, ' batch']
  own: Bool[Array, 'batch chunk']
  last: Int[Array, ' batch']

  @staticmethod
  def of(
    segments: Int[Array, 'batch chunk'], before: Int[Array, ' batch'], includes_own: bool
  ) -> 'Masks':
    """Returns the masks of a chunk after a state of the segments `before`."""
    is_token = segments != 0
    pairs = jnp.tril(jnp.ones((segments.shape[1],) * 2, bool), 0 if includes_own else -1)[None]
    visible = pairs & (segments[:, :, None] == segments[:, None, :]) & is_token[:, None, :]
    last = last_segment(segments, before)
    # The first tokens may continue the segment of the preceding chunks.
    continues = is_token & (segments == before[:, None])
    return Masks(visible, continues, last == before, is_token & (segments == last[:, None]), last)


@dataclasses.dataclass(frozen=True)
class Factors:
  """Logarithms of the factors of the sums of a chunk (None: 0).

  Attributes:
    pairs: of key j in the sum of query i, [batch, heads, queries, keys].
    earlier: of the sums before the chunk in the sum of query i, [batch, queries, heads, 1].
    keys: of key j in the sums after the chunk, [batch, keys, heads, 1].
    sums: of the sums before the chunk in those after it, [batch, heads, 1, 1].
    top: logarithm of what the sum of query i is divided by, [batch, queries, heads].
    end: `LinearState.scale` after the chunk, [batch, heads].
  """

  pairs: Array | None = None
  earlier: Array | None = None
  keys: Array | None = None
  sums: Array | None = None
  top: Array | None = None
  end: Array | None = None


# Computes the factors of a chunk from `Inputs.logs`, the scale of the state and the masks.
Decay = Callable[[Any, Any, Masks], Factors]


def constant(logs: None, start: Array | None, masks: Masks) -> Factors:
  """Returns factors of 1."""
  return Factors(end=start)


def decayed(logs: Float[Array, 'batch chunk heads'], start: Array | None, masks: Masks) -> Factors:
  """Returns the factors of a state that decays; `logs` are sums of the logarithms of decays since the chunk began."""
  total = logs.swapaxes(1, 2)
  end = logs[:, -1]
  return Factors(
    pairs=total[..., :, None] - total[..., None, :],
    earlier=logs[..., None],
    keys=(end[:, None] - logs)[..., None],
    sums=end[..., None, None],
    end=start,
  )


def relative_to_maximum(
  logs: Float[Array, 'batch chunk heads'], start: Float[Array, 'batch heads'], masks: Masks
) -> Factors:
  """Returns the factors for keys with factors exp(logs): sums are divided by the largest factor of a key in them.

  No sum of a query depends on a key that the query does not see.
  """
  keys = logs.swapaxes(1, 2)[:, :, None]
  top = jnp.where(masks.visible[:, None], keys, EMPTY).max(axis=-1).swapaxes(1, 2)
  top = jnp.maximum(top, jnp.where(masks.continues[..., None], start[:, None], EMPTY))
  end = jnp.where(masks.own[..., None], logs, EMPTY).max(axis=1)
  end = jnp.maximum(end, jnp.where(masks.stays[:, None], start, EMPTY))
  return Factors(
    pairs=keys - top.swapaxes(1, 2)[..., None],
    earlier=(start[:, None] - top)[..., None],
    keys=(logs - end[:, None])[..., None],
    sums=(start - end)[..., None, None],
    top=top,
    end=end,
  )


def recurrence(
  chunks: Inputs, state: LinearState, decay: Decay = constant, *, includes_own: bool = True
) -> tuple[
  Float[Array, 'batch length heads v_dim'], Float[Array, 'batch length heads'] | None, LinearState
]:
  """Computes sum_j f_ij (q_i k_j) v_j over the tokens j of the segment of i up to i.

  Args:
    chunks: the inputs, [chunks, batch, chunk, ...].
    state: state before the first token.
    decay: computes the factors f; see `Factors`.
    includes_own: whether the sum of a token includes the token itself.

  Returns:
    The sums, of the length of all chunks, what they are divided by (see `Factors.top`), and the state after the last
    token.
  """

  def step(state: LinearState, chunk: Inputs) -> tuple[LinearState, Any]:
    masks = Masks.of(chunk.segments, state.segment, includes_own)
    factors = decay(chunk.logs, state.scale, masks)
    continues, v = masks.continues[..., None, None], chunk.v
    if chunk.erased is not None:
      erased = exact_einsum('bihd,bhde->bihe', chunk.erased, state.sums)
      v = v - jnp.where(continues, erased, 0)
    scores = exact_einsum('bihd,bjhd->bhij', chunk.q, chunk.k)
    scores = _weighted(scores, masks.visible[:, None], factors.pairs)
    y = exact_einsum('bhij,bjhe->bihe', scores, v)
    earlier = exact_einsum('bihd,bhde->bihe', chunk.q, state.sums)
    y = y + _weighted(earlier, continues, factors.earlier)
    k = _weighted(chunk.k, masks.own[..., None, None], factors.keys)
    sums = _weighted(state.sums, masks.stays[:, None, None, None], factors.sums)
    sums = sums + exact_einsum('bjhd,bjhe->bhde', k, v)
    return LinearState(sums, masks.last, factors.end), (y, factors.top)

  state, outputs = jax.lax.scan(step, state, chunks)
  y, top = jax.tree.map(joined, outputs)
  return y, top, state


def _weighted(x: Array, mask: Bool[Array, '...'], log_factor: Array | None) -> Array:
  """Returns x exp(log_factor) where the mask holds, and 0 elsewhere."""
  x = jnp.where(mask, x, 0)
  return x if log_factor is None else x * jnp.exp(jnp.where(mask, log_factor, -jnp.inf))


def split(a: Array, chunk: int) -> Array:
  """Pads `a` [batch, length, ...] with zeros and splits it to [chunks, batch, chunk, ...]."""
  return jnp.moveaxis(to_blocks(a, chunk), 1, 0)


def joined(a: Array) -> Array:
  """Returns `a` [chunks, batch, chunk, ...] as [batch, chunks * chunk, ...]."""
  a = jnp.moveaxis(a, 0, 1)
  return a.reshape(len(a), -1, *a.shape[3:])


def last_segment(
  segments: Int[Array, 'batch length'], default: Int[Array, ' batch']
) -> Int[Array, ' batch']:
  """Returns the segment of the last token of each row; `default` for rows of padding."""
  index = jnp.max(jnp.where(segments != 0, jnp.arange(segments.shape[1]), -1), axis=1)
  last = jnp.take_along_axis(segments, jnp.maximum(index, 0)[:, None], axis=1)[:, 0]
  return jnp.where(index < 0, default, last)
