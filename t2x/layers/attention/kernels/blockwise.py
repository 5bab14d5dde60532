"""Exact attention in tiles, with O(length) memory in the forward and the backward pass.

The online softmax follows Rabe & Staats 2021 (arXiv:2112.05682). As in FlashAttention (Dao et al. 2022,
arXiv:2205.14135) only the output and the logsumexp are saved, and the backward pass recomputes the tiles.
Tiles that the pattern's schedule excludes are not computed.
"""

import dataclasses
import functools

import jax
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.kernels.base import (
  AttentionInputs,
  Kernel,
  check_reads,
  common_layout,
  not_tiled,
  softmax_dtype,
)
from t2x.layers.attention.kernels.schedule import tiles_to_visit
from t2x.layers.attention.kernels.tile_loops import (
  attend_tiles,
  attention_with_gradient,
  finish,
  join_blocks,
  sink_gradient,
  split_inputs,
  start,
  tile_gradients,
  weighted_output,
)
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import rounded_sums, zero_sums

__all__ = ['Blockwise']


@dataclasses.dataclass(frozen=True)
class Blockwise(Kernel):
  """Attention in tiles of `q_block` queries and `k_block` keys, which skips tiles that the pattern masks.

  Besides inputs and outputs it needs memory for a few tiles [batch, heads, q_block, k_block]. Position terms
  are computed per tile; terms that read queries or keys are not supported. Tiles that are empty because of
  the layout of the tokens are not part of the program. Tiles that are empty because of marks, positions or
  segments are skipped at run time. Second derivatives are not supported.
  """

  q_block: Size = 256
  k_block: Size = 256

  def __post_init__(self):
    if self.q_block < 1 or self.k_block < 1:
      raise UserError(f'{self}: q_block and k_block must be at least 1')

  def supports(self, inputs: AttentionInputs) -> str | None:
    terms = inputs.terms
    if (reason := not_tiled(inputs)) is not None:
      return reason
    if terms is not None and terms.content is not None:
      return f'it does not support {terms.name}, which reads the queries and keys'
    if terms is not None and terms.has_values:
      return f'{terms.name}.values reads the probabilities, which it does not keep'
    return None

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    check_reads(inputs.pattern, inputs.q_tokens, inputs.k_tokens)
    blocks = min(self.q_block, inputs.q_len), min(self.k_block, inputs.k_len)
    plan, (q, k, v, sink, parameters), constants = split_inputs(inputs, *blocks)
    tiles = tiles_to_visit(
      inputs.pattern,
      inputs.q_tokens,
      inputs.k_tokens,
      *blocks,
      common_layout(inputs.q_tokens, inputs.k_tokens),
    )
    # If the length is split over devices, each computes some rows of every tile, so that the load is
    # balanced for causal patterns too.
    out = _attend(
      plan,
      constrain(q, None, 'batch', 'kv_heads', None, 'length', None),
      constrain(k, None, 'batch', 'kv_heads', None, None),
      constrain(v, None, 'batch', 'kv_heads', None, None),
      sink,
      parameters,
      dataclasses.replace(constants, tiles=tiles),
    )
    return join_blocks(out, inputs.q_len)


@functools.partial(jax.jit, static_argnums=0)
def blockwise_forward(plan, q, k, v, sink, parameters, constants):
  """Computes the output and the logsumexp of each query tile by tile."""
  state = attend_tiles(plan, q, k, v, parameters, constants, start(q, v, sink))
  return finish(state, q.dtype)


@functools.partial(jax.jit, static_argnums=0)
def blockwise_backward(plan, saved, d_out):
  """Computes all gradients in one loop over the tiles."""
  q, k, v, sink, parameters, constants, out, logsumexp = saved
  weighted = weighted_output(out, d_out)
  rows = q, d_out, logsumexp, weighted
  sums = zero_sums((q, k, v, parameters), softmax_dtype(q))
  d_q, d_k, d_v, d_parameters = tile_gradients(plan, rows, k, v, parameters, constants, sums)
  gradients = d_q, d_k, d_v, sink_gradient(sink, logsumexp, weighted), d_parameters
  return rounded_sums(gradients, (q, k, v, sink, parameters))


_attend = attention_with_gradient(blockwise_forward, blockwise_backward)
