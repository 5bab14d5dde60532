"""Loops over tiles of the attention matrix: the online softmax (Rabe & Staats 2021, arXiv:2112.05682), and its
gradients from the output and the logsumexp (FlashAttention: Dao et al. 2022, arXiv:2205.14135).

Queries are [blocks, batch, kv_heads, groups, q_block, head_dim], keys and values
[blocks, batch, kv_heads, k_block, dim]. Sums are kept in float32, or the dtype of the queries if it is wider.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from t2x.base.step import is_plain
from t2x.layers.arrays import Leaf
from t2x.layers.attention.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  apply_soft_cap,
  softmax_dtype,
  visible,
)
from t2x.layers.attention.kernels.schedule import Carry, TileList
from t2x.layers.dtypes import with_rank
from t2x.layers.keys import bernoulli, fold_in
from t2x.layers.parameters import keep_probability
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.tokens import Tokens


def tile_dropout(
  key: Array,
  i: Int[Array, ''],
  j: Int[Array, ''],
  share: float | Float[Array, ''],
  shape: Sequence[int],
) -> Float[Array, '...']:
  """Returns the dropout factors [batch, ...] of the probabilities of tile (i, j), which depend only on the keys of
  the rows and the tile: 1 / share with probability share, else 0."""
  return bernoulli(fold_in(fold_in(key, i), j), share, shape) / share


@dataclasses.dataclass(frozen=True)
class Plan:
  """Static settings of a kernel call."""

  pattern: Pattern
  k_len: int
  q_block: int
  k_block: int
  scale: float
  soft_cap: float | None
  terms: jax.tree_util.PyTreeDef
  trained: tuple[bool, ...]


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['q_tokens', 'k_tokens', 'q_numbers', 'k_numbers', 'tiles', 'fixed', 'key', 'share'],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Constants:
  """Inputs without a gradient.

  Attributes:
    q_tokens: metadata of the queries, arrays [blocks, #batch, block].
    k_tokens: metadata of the keys, arrays [blocks, #batch, block].
    q_numbers: number of each block of queries in the complete row.
    k_numbers: number of each block of keys in the complete row.
    tiles: lists of tiles to visit.
    fixed: integer leaves of the position terms.
    key: random keys of dropout as in `Call`.
    share: probability of keeping an element, an array, so that functions are traced once for all rates.
  """

  q_tokens: Tokens | None
  k_tokens: Tokens | None
  q_numbers: Leaf | None
  k_numbers: Leaf | None
  tiles: Sequence[TileList]
  fixed: Sequence[Leaf]
  key: Leaf | None
  share: Leaf | None


def split_inputs(
  inputs: AttentionInputs, q_block: int, k_block: int
) -> tuple[Plan, tuple[Any, ...], Constants]:
  """Splits the inputs of a kernel into blocks; the last blocks are padded with zeros.

  Args:
    inputs: the inputs, whose scores are dot products.
    q_block: queries per block.
    k_block: keys per block.

  Returns:
    The static settings; queries, keys, values, sinks [kv_heads, groups] and the float leaves of the position
    terms; and the inputs without a gradient, without tiles.
  """
  scores = inputs.scores
  assert isinstance(scores, DotProduct)  # Kernels with tiles require it.
  q, k, v = scores.q, scores.k, inputs.v
  kv_heads, groups = k.shape[2], inputs.num_heads // k.shape[2]
  leaves, structure = jax.tree.flatten(inputs.terms)
  trained = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]
  plan = Plan(
    pattern=inputs.pattern,
    k_len=inputs.k_len,
    q_block=q_block,
    k_block=k_block,
    scale=float(scores.scale),
    soft_cap=scores.soft_cap,
    terms=structure,
    trained=tuple(trained),
  )
  q_tokens, k_tokens = (
    jax.tree.map(lambda x, n=block: _split_blocks(x, n, 1), tokens)
    for tokens, block in ((inputs.q_tokens, q_block), (inputs.k_tokens, k_block))
  )
  q = _split_blocks(
    q.reshape(*q.shape[:2], kv_heads, groups, -1).transpose(0, 2, 3, 1, 4), q_block, 3
  )
  k, v = (_split_blocks(x.transpose(0, 2, 1, 3), k_block, 2) for x in (k, v))
  constants = Constants(
    q_tokens=q_tokens,
    k_tokens=k_tokens,
    q_numbers=jnp.arange(len(q)),
    k_numbers=jnp.arange(len(k)),
    tiles=[],
    fixed=[leaf for leaf, is_trained in zip(leaves, trained, strict=True) if not is_trained],
    key=inputs.key if inputs.has_dropout else None,
    share=keep_probability(inputs.dropout_rate) if inputs.has_dropout else None,
  )
  sink = None if scores.sink is None else scores.sink.reshape(kv_heads, groups)
  parameters = [leaf for leaf, is_trained in zip(leaves, trained, strict=True) if is_trained]
  return plan, (q, k, v, sink, parameters), constants


def join_blocks(
  out: Float[Array, 'blocks batch kv_heads groups q_block v_dim'], q_len: int
) -> Float[Array, 'batch q_len heads v_dim']:
  """Joins blocks of outputs, without the padding of the last block."""
  _, batch, kv_heads, groups, _, v_dim = out.shape
  out = out.transpose(1, 0, 4, 2, 3, 5).reshape(batch, -1, kv_heads * groups, v_dim)
  return out[:, :q_len]


def attention_with_gradient(forward: Callable, backward: Callable) -> Callable:
  """Returns the function that computes attention in tiles, with a gradient from the output and the logsumexp; with
  `plain_operations` without it.

  Args:
    forward: compiled function that computes the output and the logsumexp from the plan, queries, keys, values,
      sinks, parameters and constants.
    backward: computes the gradients of queries, keys, values, sinks and parameters from the plan, the inputs of
      `forward` with its results, and the gradient of the output.
  """

  @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
  def attend(plan, *inputs):
    return forward(plan, *inputs)[0]

  def save(plan, *inputs):
    # Named here: the name of the output alone would not save the logsumexp.
    results = checkpoint_name(forward(plan, *inputs), ATTENTION_OUTPUT)
    return results[0], (*inputs, *results)

  def gradients(plan, saved, d_out):
    return *backward(plan, saved, d_out), None

  attend.defvjp(save, gradients)

  def attend_or_plain(plan, *inputs):
    # Not the compiled function, which may have been traced with other operations.
    return inspect.unwrap(forward)(plan, *inputs)[0] if is_plain() else attend(plan, *inputs)

  return attend_or_plain


def start(
  q: Float[Array, '...'], v: Float[Array, '...'], sink: Float[Array, 'kv_heads groups'] | None
) -> tuple[Array, Array, Array]:
  """Returns the state of the online softmax before the first tile: output, largest score and sum of each
  query."""
  rows, dtype = q.shape[:-1], softmax_dtype(q)
  out = jnp.zeros((*rows, v.shape[-1]), dtype)
  if sink is None:
    return out, jnp.full(rows, -jnp.inf, dtype), jnp.zeros(rows, dtype)
  # The sink acts as a first key without a value.
  return out, jnp.broadcast_to(sink.astype(dtype)[..., None], rows), jnp.ones(rows, dtype)


def attend_tiles(plan, q, k, v, parameters, constants, state):
  """Returns the state of the online softmax after the tiles of `constants`."""
  dtype = softmax_dtype(q)

  def visit(tile, is_masked, state):
    i, j = tile
    out, largest, total = (_block(x, i) for x in state)
    dots = _dots(plan, _block(q, i), _block(k, j))
    scores = _scores(plan, dots, parameters, constants, i, j, is_masked)
    new = jnp.maximum(largest, scores.max(-1))
    base = jnp.where(jnp.isneginf(new), 0, new)
    probabilities = jnp.exp(scores - base[..., None])
    shrink = jnp.exp(largest - base)
    total = total * shrink + probabilities.sum(-1)
    if constants.key is not None:
      probabilities *= _dropout(constants, i, j, scores.shape)
    values = _block(v, j)
    added = _dot('bkgqs,bksd->bkgqd', probabilities.astype(values.dtype), values, dtype)
    updated = out * shrink[..., None] + added, new, total
    return tuple(_update_block(x, y, i) for x, y in zip(state, updated, strict=True))

  return _over_tiles(constants, visit, state)


def finish(state, dtype):
  """Returns the output, and the logsumexp of each query including its sink; +inf for a query without keys
  and sink."""
  out, largest, total = state
  has_keys = total > 0
  total = jnp.where(has_keys, total, 1)
  logsumexp = jnp.where(has_keys, largest + jnp.log(total), jnp.inf)
  return (out / total[..., None]).astype(dtype), logsumexp


def weighted_output(out, d_out):
  """Returns the dot product of each query's output and its gradient."""
  dtype = softmax_dtype(out)
  return (out.astype(dtype) * d_out.astype(dtype)).sum(-1)


def tile_gradients(plan, rows, k, v, parameters, constants, sums):
  """Adds the gradients of the tiles of `constants` to `sums`.

  Args:
    plan: static settings.
    rows: queries, the gradient of their outputs, their logsumexp, and `weighted_output`.
    k: keys.
    v: values.
    parameters: float leaves of the position terms.
    constants: inputs without a gradient.
    sums: gradients of queries, keys, values and parameters so far.
  """
  q, d_out, logsumexp, weighted = rows
  dtype = softmax_dtype(q)

  def visit(tile, is_masked, sums):
    i, j = tile
    d_q, d_k, d_v, d_parameters = sums
    queries, keys, values, d_rows = _block(q, i), _block(k, j), _block(v, j), _block(d_out, i)

    dots = _dots(plan, queries, keys)
    scores, parameters_vjp = jax.vjp(
      lambda p: _scores(plan, dots, p, constants, i, j, is_masked), parameters
    )
    probabilities = jnp.exp(scores - _block(logsumexp, i)[..., None])
    d_probabilities = _dot('bkgqd,bksd->bkgqs', d_rows, values, dtype)
    dropped = probabilities
    if constants.key is not None:
      factors = _dropout(constants, i, j, scores.shape)
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

  return _over_tiles(constants, visit, sums)


def sink_gradient(sink, logsumexp, weighted):
  """Returns the gradient of the sinks [kv_heads, groups]; None without sinks."""
  if sink is None:
    return None
  logits = with_rank(sink.astype(logsumexp.dtype)[..., None], logsumexp.ndim)
  return (-jnp.exp(logits - logsumexp) * weighted).sum((0, 1, 4))


def _over_tiles(constants: Constants, visit: Callable[..., Carry], carry: Carry) -> Carry:
  for tiles in constants.tiles:

    def visit_tile(i, j, carry, is_masked=tiles.is_masked):
      return visit((i, j), is_masked, carry)

    carry = tiles.loop(visit_tile, carry)
  return carry


def _dropout(constants, i, j, shape):
  numbers = constants.q_numbers[i], constants.k_numbers[j]
  return tile_dropout(constants.key, *numbers, constants.share, shape)


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


def _split_blocks(x: Array, block: int, axis: int) -> Array:
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
