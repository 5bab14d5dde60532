"""Exact attention in tiles, with O(length) memory in the forward and the backward pass.

The online softmax follows Rabe & Staats 2021 (arXiv:2112.05682). As in FlashAttention (Dao et al. 2022,
arXiv:2205.14135) only the output and the logsumexp are saved, and the backward pass recomputes the tiles.
Tiles that the pattern's schedule excludes are not computed.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import keep_probability
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import with_rank
from t2x.layers.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  Kernel,
  apply_soft_cap,
  common_layout,
  softmax_dtype,
)
from t2x.layers.kernels.schedule import tiles_to_visit
from t2x.layers.masks import check_reads, visible
from t2x.layers.patterns import Pattern
from t2x.ranges import Size


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
    if not isinstance(inputs.scores, DotProduct):
      return 'it supports dot products only, but the scores are an array of logits'
    if terms is not None and terms.content is not None:
      return f'it does not support {terms.name}, which reads the queries and keys'
    if terms is not None and terms.has_values:
      return f'{terms.name}.values reads the probabilities, which it does not keep'
    return None

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    scores, pattern, q_tokens, k_tokens = (
      inputs.scores,
      inputs.pattern,
      inputs.q_tokens,
      inputs.k_tokens,
    )
    assert isinstance(scores, DotProduct)  # `supports` requires it.
    check_reads(pattern, q_tokens, k_tokens)
    q, k, v, q_len, k_len = scores.q, scores.k, inputs.v, inputs.q_len, inputs.k_len
    groups = inputs.num_heads // k.shape[2]
    leaves, structure = jax.tree.flatten(inputs.terms)
    trained = [_is_float(leaf) for leaf in leaves]
    plan = _Plan(
      pattern=pattern,
      q_len=q_len,
      k_len=k_len,
      q_block=min(self.q_block, q_len),
      k_block=min(self.k_block, k_len),
      scale=float(scores.scale),
      soft_cap=scores.soft_cap,
      terms=structure,
      trained=tuple(trained),
    )
    constants = _Constants(
      q_tokens=jax.tree.map(lambda x: _split_blocks(x, plan.q_block, 1), q_tokens),
      k_tokens=jax.tree.map(lambda x: _split_blocks(x, plan.k_block, 1), k_tokens),
      tiles=tiles_to_visit(
        pattern,
        q_tokens,
        k_tokens,
        plan.q_block,
        plan.k_block,
        common_layout(q_tokens, k_tokens),
      ),
      fixed=[leaf for leaf, is_trained in zip(leaves, trained, strict=True) if not is_trained],
      key=inputs.key if inputs.has_dropout else None,
      share=keep_probability(inputs.dropout_rate) if inputs.has_dropout else None,
    )
    parameters = [leaf for leaf, is_trained in zip(leaves, trained, strict=True) if is_trained]
    q = q.reshape(*q.shape[:2], k.shape[2], groups, -1).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    sink = None if scores.sink is None else scores.sink.reshape(k.shape[1], groups)
    # If the length is split over devices, each computes some rows of every tile, so that the load is
    # balanced for causal patterns too.
    out = _attend(
      plan,
      constrain(_split_blocks(q, plan.q_block, 3), None, 'batch', 'kv_heads', None, 'length', None),
      constrain(_split_blocks(k, plan.k_block, 2), None, 'batch', 'kv_heads', None, None),
      constrain(_split_blocks(v, plan.k_block, 2), None, 'batch', 'kv_heads', None, None),
      sink,
      parameters,
      constants,
    )
    # [blocks, batch, kv_heads, groups, q_block, v_dim] -> [batch, q_len, heads, v_dim]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(q.shape[0], -1, q.shape[1] * groups, v.shape[-1])
    return out[:, :q_len]


def tile_dropout(
  key: jax.Array, i: Any, j: Any, share: Any, shape: Sequence[int]
) -> Float[Array, '...']:
  """Returns the dropout factors of the probabilities of tile (i, j), which depend only on the key and the
  tile: 1 / share with probability share, else 0."""
  keep = jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(key, i), j), share, shape)
  return keep / share


@dataclasses.dataclass(frozen=True)
class _Plan:
  """Static settings of a kernel call."""

  pattern: Pattern
  q_len: int
  k_len: int
  q_block: int
  k_block: int
  scale: float
  soft_cap: float | None
  terms: Any
  trained: tuple[bool, ...]


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['q_tokens', 'k_tokens', 'tiles', 'fixed', 'key', 'share'],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class _Constants:
  """Inputs without a gradient.

  Attributes:
    q_tokens: metadata of the queries, arrays [blocks, #batch, block].
    k_tokens: metadata of the keys, arrays [blocks, #batch, block].
    tiles: lists of tiles to visit.
    fixed: integer leaves of the position terms.
    key: random key of dropout.
    share: probability of keeping an element, an array, so that functions are traced once for all rates.
  """

  q_tokens: Any
  k_tokens: Any
  tiles: Any
  fixed: Any
  key: Any
  share: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q, k, v, sink, parameters, constants):
  return blockwise_forward(plan, q, k, v, sink, parameters, constants)[0]


@functools.partial(jax.jit, static_argnums=0)
def blockwise_forward(plan, q, k, v, sink, parameters, constants):
  """Computes the output tile by tile.

  Args:
    plan: static settings.
    q: queries [blocks, batch, kv_heads, groups, q_block, head_dim].
    k: keys [blocks, batch, kv_heads, k_block, head_dim].
    v: values [blocks, batch, kv_heads, k_block, v_dim].
    sink: logits [kv_heads, groups], or None.
    parameters: float leaves of the position terms.
    constants: inputs without a gradient.

  Returns:
    The output, and the logsumexp of each query including its sink; +inf for a query without keys and sink.
  """
  dtype = softmax_dtype(q)

  def visit(tile, is_masked, carry):
    i, j = tile
    out, largest, total = (_block(x, i) for x in carry)
    dots = _dots(plan, _block(q, i), _block(k, j))
    scores = _scores(plan, dots, parameters, constants, i, j, is_masked)
    new = jnp.maximum(largest, scores.max(-1))
    base = jnp.where(jnp.isneginf(new), 0, new)
    probabilities = jnp.exp(scores - base[..., None])
    shrink = jnp.exp(largest - base)
    total = total * shrink + probabilities.sum(-1)
    if constants.key is not None:
      probabilities *= tile_dropout(constants.key, i, j, constants.share, scores.shape)
    values = _block(v, j)
    added = _dot('bkgqs,bksd->bkgqd', probabilities.astype(values.dtype), values, dtype)
    updated = out * shrink[..., None] + added, new, total
    return tuple(_update_block(x, y, i) for x, y in zip(carry, updated, strict=True))

  rows = q.shape[:-1]
  carry = (
    jnp.zeros((*rows, v.shape[-1]), dtype),
    jnp.full(rows, -jnp.inf, dtype),
    jnp.zeros(rows, dtype),
  )
  if sink is not None:  # The sink acts as a first key without a value.
    logits = jnp.broadcast_to(sink.astype(dtype)[..., None], rows)
    carry = carry[0], logits, jnp.ones(rows, dtype)
  out, largest, total = _over_tiles(constants, visit, carry)
  has_keys = total > 0
  total = jnp.where(has_keys, total, 1)
  logsumexp = jnp.where(has_keys, largest + jnp.log(total), jnp.inf)
  return (out / total[..., None]).astype(q.dtype), logsumexp


def _save(plan, q, k, v, sink, parameters, constants):
  results = blockwise_forward(plan, q, k, v, sink, parameters, constants)
  # Named here: the name of the output alone would not save the logsumexp.
  out, logsumexp = checkpoint_name(results, ATTENTION_OUTPUT)
  return out, (q, k, v, sink, parameters, constants, out, logsumexp)


def _gradients(plan, saved, d_out):
  return (*blockwise_backward(plan, saved, d_out), None)


_attend.defvjp(_save, _gradients)


@functools.partial(jax.jit, static_argnums=0)
def blockwise_backward(plan, saved, d_out):
  """Computes all gradients in one loop over the tiles."""
  q, k, v, sink, parameters, constants, out, logsumexp = saved
  dtype = softmax_dtype(q)
  weighted = (out.astype(dtype) * d_out.astype(dtype)).sum(-1)

  def visit(tile, is_masked, carry):
    i, j = tile
    d_q, d_k, d_v, d_parameters = carry
    queries, keys, values, d_rows = _block(q, i), _block(k, j), _block(v, j), _block(d_out, i)

    dots = _dots(plan, queries, keys)
    scores, parameters_vjp = jax.vjp(
      lambda p: _scores(plan, dots, p, constants, i, j, is_masked), parameters
    )
    probabilities = jnp.exp(scores - _block(logsumexp, i)[..., None])
    d_probabilities = _dot('bkgqd,bksd->bkgqs', d_rows, values, dtype)
    dropped = probabilities
    if constants.key is not None:
      factors = tile_dropout(constants.key, i, j, constants.share, scores.shape)
      d_probabilities *= factors
      dropped = probabilities * factors
    d_scores = probabilities * (d_probabilities - _block(weighted, i)[..., None])
    d_parameters = jax.tree.map(jnp.add, d_parameters, parameters_vjp(d_scores)[0])
    if plan.soft_cap is not None:
      d_scores *= 1 - jnp.square(dots / plan.soft_cap)
    d_dots = (d_scores * plan.scale).astype(q.dtype)
    d_values = _dot('bkgqs,bkgqd->bksd', dropped.astype(q.dtype), d_rows, dtype)
    d_keys = _dot('bkgqs,bkgqd->bksd', d_dots, queries, dtype)
    d_queries = _dot('bkgqs,bksd->bkgqd', d_dots, keys, dtype)
    return (
      _update_block(d_q, _block(d_q, i) + d_queries, i),
      _update_block(d_k, _block(d_k, j) + d_keys, j),
      _update_block(d_v, _block(d_v, j) + d_values, j),
      d_parameters,
    )

  carry = jax.tree.map(
    lambda x: jnp.zeros(jnp.shape(x), jnp.promote_types(jnp.result_type(x), dtype)),
    (q, k, v, parameters),
  )
  d_q, d_k, d_v, d_parameters = _over_tiles(constants, visit, carry)
  d_sink = None
  if sink is not None:
    d_logits = (
      -jnp.exp(with_rank(sink.astype(dtype)[..., None], logsumexp.ndim) - logsumexp) * weighted
    )
    d_sink = d_logits.sum((0, 1, 4))
  gradients = d_q, d_k, d_v, d_sink, d_parameters
  inputs = q, k, v, sink, parameters
  return jax.tree.map(lambda d, x: d.astype(jnp.result_type(x)), gradients, inputs)


def _over_tiles(constants: _Constants, visit: Callable, carry: Any) -> Any:
  for tiles in constants.tiles:

    def visit_tile(i, j, carry, is_masked=tiles.is_masked):
      return visit((i, j), is_masked, carry)

    carry = tiles.loop(visit_tile, carry)
  return carry


def _dots(plan, queries, keys):
  """Returns the scaled, soft-capped dot products of a tile [batch, kv_heads, groups, q_block, k_block]."""
  dots = _dot('bkgqd,bksd->bkgqs', queries, keys, softmax_dtype(queries)) * plan.scale
  return apply_soft_cap(dots, plan.soft_cap)


def _scores(plan, scores, parameters, constants, i, j, is_masked):
  """Adds the position terms of tile (i, j) to its dot products and sets masked scores to -inf."""
  q_tokens = jax.tree.map(lambda x: _block(x, i), constants.q_tokens)
  k_tokens = jax.tree.map(lambda x: _block(x, j), constants.k_tokens)
  trained, fixed = iter(parameters), iter(constants.fixed)
  leaves = [next(trained if is_trained else fixed) for is_trained in plan.trained]
  terms = jax.tree.unflatten(plan.terms, leaves)
  if terms is not None:
    num_heads = scores.shape[1] * scores.shape[2]
    added = terms.scores(q_tokens, k_tokens, num_heads)
    scores += added.astype(scores.dtype).reshape(-1, *scores.shape[1:])
  if not is_masked:
    return scores
  mask = visible(plan.pattern, q_tokens, k_tokens)
  if plan.k_len % plan.k_block:
    mask &= (j * plan.k_block + jnp.arange(plan.k_block) < plan.k_len)[None, None]
  return jnp.where(mask[:, None, None], scores, -jnp.inf)


def _dot(equation, a, b, dtype):
  return jnp.einsum(equation, a, b.astype(a.dtype), preferred_element_type=dtype)


def _split_blocks(x: Any, block: int, axis: int) -> Any:
  """Pads `axis` with zeros to whole blocks and moves the blocks to the front."""
  num_blocks = -(-x.shape[axis] // block)
  padding = [(0, 0)] * x.ndim
  padding[axis] = 0, num_blocks * block - x.shape[axis]
  x = jnp.pad(x, padding).reshape(*x.shape[:axis], num_blocks, block, *x.shape[axis + 1 :])
  return jnp.moveaxis(x, axis, 0)


def _block(x, index):
  return jax.lax.dynamic_index_in_dim(x, index, keepdims=False)


def _update_block(x, value, index):
  return jax.lax.dynamic_update_index_in_dim(x, value, index, 0)


def _is_float(leaf: Any) -> bool:
  return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
