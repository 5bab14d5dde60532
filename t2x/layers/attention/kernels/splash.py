"""Kernel that calls splash attention, JAX's sparse flash attention for TPUs (FlashAttention: Dao et al. 2022,
arXiv:2205.14135)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.base.step import target
from t2x.layers.attention.kernels.base import (
  AttentionInputs,
  DotProduct,
  Kernel,
  common_layout,
  no_forward_mode,
  not_tiled,
)
from t2x.layers.constraints import map_shards, num_parts
from t2x.layers.tokens import RowLayout, Tokens

__all__ = ['Splash']

# The number of lanes of a TPU's vector registers.
_LANES = 128
# A sink of queries without a learned sink: it has no weight beside any score, and all of it where a query
# sees no key, whose output and gradients are then zero. Masked scores are twice as low.
_NO_SINK = -0.35 * float(jnp.finfo(jnp.float32).max)
_DTYPES = (jnp.bfloat16, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Splash(Kernel):
  """Attention by `jax.experimental.pallas.ops.tpu.splash_attention`, in O(length) memory, on TPUs.

  The pattern becomes a table of tiles: empty tiles are skipped, full tiles are not masked. Patterns must follow
  from the lengths and the layout of the rows: patterns that read marks or positions of the batch are not
  supported. Segments, grouped heads, soft caps, sinks and all sizes of heads are supported; position terms,
  dropout and rows that are split over devices are not. Each device computes its rows and heads. Second
  derivatives are not supported.

  Attributes:
    block: maximum number of queries and of keys per tile, a multiple of 128. The numbers used are the largest
      multiples of 128 that divide the lengths, which must be multiples of 128.
    interpret: run the kernel on any platform, in Pallas's interpreter: slow, for tests.
  """

  block: Size = 512
  interpret: bool = False

  def __post_init__(self):
    if self.block < _LANES or self.block % _LANES:
      raise UserError(f'Splash.block = {self.block}: must be a positive multiple of {_LANES}')

  def supports(self, inputs: AttentionInputs) -> str | None:
    if (reason := not_tiled(inputs) or no_forward_mode('splash attention')) is not None:
      return reason
    scores = inputs.scores
    assert isinstance(scores, DotProduct)
    terms = inputs.terms
    if terms is not None:
      return f'splash attention does not support position terms, but {terms.name} has them'
    if inputs.has_dropout:
      return 'splash attention does not support dropout of attention probabilities'
    if not self.interpret and target() != 'tpu':
      return f'splash attention needs a TPU, but the backend is {target()}'
    if num_parts('length') > 1:
      return 'splash attention does not support rows that are split over devices'
    dtypes = [jnp.dtype(x.dtype) for x in (scores.q, scores.k, inputs.v)]
    if dtypes[0] not in _DTYPES or len(set(dtypes)) > 1:
      names = ', '.join(str(dtype) for dtype in dtypes)
      return (
        f'splash attention needs queries, keys and values in bfloat16 or in float32, not {names}'
      )
    for name, length in (('queries', inputs.q_len), ('keys', inputs.k_len)):
      if length % _LANES:
        return f'splash attention needs a multiple of {_LANES} {name}, not {length}'
    return _unsupported_pattern(inputs) or self._empty_pattern(inputs)

  def _empty_pattern(self, inputs: AttentionInputs) -> str | None:
    from t2x.layers.attention.kernels import splash_masks

    lengths = inputs.q_len, inputs.k_len
    if splash_masks.is_empty(inputs.pattern, *lengths, *self._blocks(*lengths)):
      return f'no query sees a key with {inputs.pattern}, which splash attention does not support'
    return None

  def _blocks(self, *lengths: int) -> list[int]:
    """Returns the size of a tile along each length."""
    sizes = range(_LANES, self.block + 1, _LANES)
    return [max(size for size in sizes if length % size == 0) for length in lengths]

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    from t2x.layers.attention.kernels import splash_masks

    scores = inputs.scores
    assert isinstance(scores, DotProduct)  # `supports` requires it.
    batch, q_len, heads, _ = scores.q.shape
    k_len, kv_heads = inputs.k_len, scores.k.shape[2]
    # Splash attention does not scale. Products in float32, so that the queries are rounded once.
    q = (scores.q.astype(inputs.dtype) * scores.scale).astype(scores.q.dtype)
    q = q.reshape(batch, q_len, kv_heads, heads // kv_heads, -1).transpose(0, 2, 3, 1, 4)
    k, v = (x.swapaxes(1, 2) for x in (scores.k, inputs.v))
    sink = (
      jnp.full(heads, _NO_SINK, jnp.float32)
      if scores.sink is None
      else scores.sink.astype(jnp.float32)
    )
    sink = _of_each_row(batch, sink.reshape(kv_heads, -1))
    segments = _segments(inputs.q_tokens, inputs.k_tokens, batch)

    def attend_shard(q, k, v, segments, sink):
      rows, num_heads = q.shape[0], q.shape[1] * q.shape[2]
      kernel = splash_masks.kernel(
        inputs.pattern,
        num_heads,
        q_len,
        k_len,
        *self._blocks(q_len, k_len),
        scores.soft_cap,
        self.interpret,
      )
      shape = (*q.shape[:-1], v.shape[-1])
      q, sink = q.reshape(rows, num_heads, q_len, -1), sink.reshape(rows, num_heads)
      return jax.vmap(kernel)(q, k, v, segments, sink).reshape(shape)

    grouped, single = ('batch', 'kv_heads', None, None, None), ('batch', 'kv_heads', None, None)
    in_axes = grouped, single, single, ('batch', None), ('batch', 'kv_heads', None)
    out = map_shards(attend_shard, in_axes, grouped)(q, k, v, segments, sink)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, q_len, heads, -1)


def _unsupported_pattern(inputs: AttentionInputs) -> str | None:
  """Returns the reason why the pattern does not follow from lengths and layout, or None if it does."""
  pattern = inputs.pattern
  fields = sorted(pattern.reads - {'positions'})
  if fields:
    return f'splash attention does not support {pattern}, which reads Tokens.{fields[0]}'
  layout = common_layout(inputs.q_tokens, inputs.k_tokens)
  is_static = layout is RowLayout.CONTIGUOUS or (layout is RowLayout.PACKED and pattern.relative)
  if pattern.reads and not is_static:
    return (
      f'splash attention does not support {pattern}, because it reads positions that are known at run '
      f'time only ({layout.name} rows)'
    )
  return None


def _segments(q_tokens: Tokens, k_tokens: Tokens, batch: int) -> tuple[Any, Any] | None:
  """Returns numbers [batch, length] of queries and of keys that are equal where the query may see the key;
  None if all are equal."""
  q, k = q_tokens.segments, k_tokens.segments
  if q is None and k is None:
    return None
  # If only one side has segments, only its padding is masked (see `visible`).
  if q is None:
    q, k = jnp.ones(q_tokens.positions.shape, int), k != 0
  elif k is None:
    q, k = q != 0, jnp.ones(k_tokens.positions.shape, int)
  # Queries of padding must not see the keys of padding.
  q = jnp.where(q == 0, -1, q)
  q, k = (jnp.broadcast_to(x.astype(jnp.int32), (batch, x.shape[1])) for x in (q, k))
  return q, k


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_each_row(batch: int, sink: Array) -> Array:
  """Repeats the sinks for each row of the batch, with a gradient in float32: splash attention of jax 0.10
  returns the gradient in the dtype of the queries."""
  return jnp.broadcast_to(sink, (batch, *sink.shape))


def _save_nothing(batch, sink):
  return _of_each_row(batch, sink), None


def _sum_rows(batch, saved, d_sink):
  return (d_sink.astype(jnp.float32).sum(0),)


_of_each_row.defvjp(_save_nothing, _sum_rows)
