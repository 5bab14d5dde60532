"""Linear attention (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236): a feature map replaces the
softmax, so that a sum over earlier tokens summarises their keys and values."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.layers.base import Initializer
from t2x.layers.dtypes import Dtypes
from t2x.layers.head_projections import HeadProjections
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Cache, Call, Result
from t2x.layers.kernels.base import softmax_dtype
from t2x.layers.patterns import Causal, Full
from t2x.ranges import Size

# Lower bound of the normaliser, a sum of positive features that is 0 for padding or when they underflow.
EPSILON = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearState(Cache):
  """Sums over the earlier tokens of the last segment of each row.

  Attributes:
    sums: sum of phi(k) [v, 1]', [batch, heads, head_dim, head_dim + 1], in float32 or wider.
    segment: the segment of these tokens, int32 [batch]; 0: no token yet.
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  sums: Any
  segment: Any

  @staticmethod
  def empty(batch: int, heads: int, head_dim: int, dtype: Any = Dtypes.reductions) -> 'LinearState':
    """Returns the state before the first token."""
    return LinearState(
      jnp.zeros((batch, heads, head_dim, head_dim + 1), dtype), jnp.zeros(batch, jnp.int32)
    )

  def repeat(self, copies: int) -> 'LinearState':
    return jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self)

  def take(self, rows: Int[Array, ' batch']) -> 'LinearState':
    return jax.tree.map(lambda a: a[rows], self)

  def share(self, copies: int, num_slots: int) -> 'LinearState':
    return self.repeat(copies)


class LinearAttention(HeadProjections):
  """Linear attention: phi(q) (sum phi(k) v') / (phi(q) sum phi(k)) over the visible keys, with
  phi(x) = elu(x) + 1.

  The pattern must be Full() or Causal(), tokens must be in the order of their positions, and the tokens of
  a segment must be contiguous except for padding. Time and memory are linear in the length: pairs of tokens
  are compared only within a chunk, and a state of fixed size is passed between chunks. Decoding caches this
  state instead of keys and values.

  Args:
    d_model: width of the input and output.
    num_heads: number of heads.
    head_dim: features per head. None: d_model / num_heads.
    chunk: tokens per chunk.
    use_bias: whether the query, key and value projections have biases.
    out_bias: whether the output projection has a bias.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None; when called, the call has a source or
      a pattern other than Full() and Causal().
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None = None,
    chunk: Size = 64,
    use_bias: bool = True,
    out_bias: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      num_heads=num_heads,
      head_dim=head_dim,
      use_bias=use_bias,
      out_bias=out_bias,
      kernel_init=kernel_init,
      out_init=out_init,
      rngs=rngs,
    )
    self.chunk = chunk

  def init_cache(self, batch: int, num_slots: int, dtype: Any = jnp.float32) -> LinearState:
    """Returns an empty state, in float32 and of a size that does not depend on `num_slots`."""
    return LinearState.empty(batch, self.num_heads, self.head_dim)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: LinearState | None = None,
  ) -> Result:
    """Attends to the tokens of `x` and to the earlier tokens summarised in the cache.

    For tokens that see no token (padding) the input of the output projection is zero.
    """
    self.check_call(call, Full(), Causal())
    dtype = softmax_dtype(x)
    q, k, v = (a.astype(dtype) for a in self.project(x))
    q, k = feature_map(q), feature_map(k)
    v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
    segments, is_causal = call.tokens.segments, call.pattern.offsets() == Causal().offsets()
    if segments is None and cache is None and not is_causal:
      sums = jnp.einsum('bjhd,bjhe->bhde', k, v)
      return Result(self._normalize(jnp.einsum('bihd,bhde->bihe', q, sums), x.dtype))
    segments = jnp.asarray(1 if segments is None else segments, jnp.int32)
    segments = jnp.broadcast_to(segments, x.shape[:2])
    empty = LinearState.empty(len(x), self.num_heads, self.head_dim, dtype)
    state = empty
    if cache is not None:
      state = dataclasses.replace(cache, sums=cache.sums.astype(dtype))
    y, state = causal_sums(q, k, v, segments, state, self.chunk)
    if not is_causal:
      q, k, v, segments = (jnp.flip(a, 1) for a in (q, k, v, segments))
      later, _ = causal_sums(q, k, v, segments, empty, self.chunk, includes_own=False)
      y = y + jnp.flip(later, 1)
    if cache is not None:
      cache = dataclasses.replace(state, sums=state.sums.astype(cache.sums.dtype))
    return Result(self._normalize(y, x.dtype), cache)

  def _normalize(
    self, y: Float[Array, 'batch length heads dim_and_one'], dtype: Any
  ) -> Float[Array, 'batch length d_model']:
    """Divides the numerators by the denominators, the last feature, and applies the output projection."""
    return self.output((y[..., :-1] / jnp.maximum(y[..., -1:], EPSILON)).astype(dtype))


def feature_map(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns elu(x) + 1, which is positive, computed as exp(x) for x < 0 to avoid rounding errors."""
  return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


def causal_sums(
  q: Float[Array, 'batch length heads head_dim'],
  k: Float[Array, 'batch length heads head_dim'],
  v: Float[Array, 'batch length heads v_dim'],
  segments: Int[Array, 'batch length'],
  state: LinearState,
  chunk: int,
  *,
  includes_own: bool = True,
) -> tuple[Float[Array, 'batch length heads v_dim'], LinearState]:
  """Computes sums over the earlier tokens of the same segment, chunk by chunk.

  Args:
    q: features of the queries.
    k: features of the keys.
    v: values.
    segments: segments of the tokens; 0 is padding, which the sums exclude.
    state: state before the first token.
    chunk: tokens per chunk.
    includes_own: whether the sum of a token includes the token itself.

  Returns:
    The sum of (q_i k_j) v_j over j for each i, and the state after the last token.
  """
  length = q.shape[1]
  chunk = min(chunk, length)
  padding = -length % chunk
  before = jnp.tril(jnp.ones((chunk, chunk), bool), 0 if includes_own else -1)

  def split(a: Array) -> Array:
    a = jnp.pad(a, ((0, 0), (0, padding), *[(0, 0)] * (a.ndim - 2)))
    return jnp.moveaxis(a.reshape(len(a), -1, chunk, *a.shape[2:]), 1, 0)

  chunks = split(q), split(k), split(v), split(segments)
  state, y = jax.lax.scan(functools.partial(_chunk, before), state, chunks)
  y = jnp.moveaxis(y, 0, 1)
  return y.reshape(len(q), -1, *y.shape[3:])[:, :length], state


def _chunk(
  before: Bool[Array, 'chunk chunk'],
  state: LinearState,
  inputs: tuple[
    Float[Array, 'batch chunk heads head_dim'],
    Float[Array, 'batch chunk heads head_dim'],
    Float[Array, 'batch chunk heads v_dim'],
    Int[Array, 'batch chunk'],
  ],
) -> tuple[LinearState, Float[Array, 'batch chunk heads v_dim']]:
  q, k, v, segments = inputs
  is_token = segments != 0
  visible = before[None] & (segments[:, :, None] == segments[:, None, :]) & is_token[:, None, :]
  scores = jnp.where(visible[:, None], jnp.einsum('bihd,bjhd->bhij', q, k), 0)
  y = jnp.einsum('bhij,bjhe->bihe', scores, v)
  # The first tokens may continue the segment of the preceding chunks.
  continues = is_token & (segments == state.segment[:, None])
  earlier = jnp.einsum('bihd,bhde->bihe', q, state.sums)
  y = y + jnp.where(continues[..., None, None], earlier, 0)
  index = jnp.max(jnp.where(is_token, jnp.arange(segments.shape[1]), -1), axis=1)
  last = jnp.take_along_axis(segments, jnp.maximum(index, 0)[:, None], axis=1)[:, 0]
  last = jnp.where(index < 0, state.segment, last)
  own = is_token & (segments == last[:, None])
  sums = jnp.where((last == state.segment)[:, None, None, None], state.sums, 0)
  sums = sums + jnp.einsum('bjhd,bjhe->bhde', jnp.where(own[..., None, None], k, 0), v)
  return LinearState(sums, last), y
