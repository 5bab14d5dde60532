"""Exact attention tile by tile in O(length) memory, forward and backward.

Online softmax after Rabe & Staats 2021 (arXiv:2112.05682); saving the output and the logsumexp alone
and recomputing the tiles in the backward pass after FlashAttention (Dao et al. 2022,
arXiv:2205.14135). Tiles that the pattern's schedule rules out are never computed.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import kept_share
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import with_rank
from t2x.layers.kernels.base import (
  AttentionInputs,
  DotProduct,
  Kernel,
  common_layout,
  soft_capped,
  softmax_dtype,
)
from t2x.layers.kernels.schedule import tiles_to_visit
from t2x.layers.masks import check_reads, visible
from t2x.layers.patterns import Pattern
from t2x.ranges import Size


@dataclasses.dataclass(frozen=True)
class Blockwise(Kernel):
  """Attends in tiles of `q_block` queries by `k_block` keys, skipping what the pattern rules out.

  Memory beside inputs and outputs: a few tiles of [batch, heads, q_block, k_block]. Position terms are
  computed tile by tile; terms that read queries or keys are not supported. Tiles that are empty by the
  layout of the tokens are left out of the program, those that are empty by their marks, positions or
  segments are skipped at run time. Not differentiable twice.
  """

  q_block: Size = 256
  k_block: Size = 256

  def __post_init__(self):
    if self.q_block < 1 or self.k_block < 1:
      raise UserError(f'{self}: blocks hold at least one position')

  def supports(self, inputs: AttentionInputs) -> str | None:
    terms = inputs.terms
    if not isinstance(inputs.scores, DotProduct):
      return 'it takes dot products, and these scores are an array of logits'
    if terms is not None and terms.content is not None:
      return f'it has no {terms.name}, which reads the queries and keys'
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
    known = _Known(
      q_tokens=jax.tree.map(lambda x: _cut(x, plan.q_block, 1), q_tokens),
      k_tokens=jax.tree.map(lambda x: _cut(x, plan.k_block, 1), k_tokens),
      tiles=tiles_to_visit(
        pattern,
        q_tokens,
        k_tokens,
        plan.q_block,
        plan.k_block,
        common_layout(q_tokens, k_tokens),
      ),
      fixed=[leaf for leaf, is_trained in zip(leaves, trained, strict=True) if not is_trained],
      key=inputs.key if inputs.drops else None,
      share=kept_share(inputs.dropout_rate) if inputs.drops else None,
    )
    parameters = [leaf for leaf, is_trained in zip(leaves, trained, strict=True) if is_trained]
    q = q.reshape(*q.shape[:2], k.shape[2], groups, -1).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    sink = None if scores.sink is None else scores.sink.reshape(k.shape[1], groups)
    # Where the length is split, every device works on some rows of every tile: causal or not, all
    # have as much to do.
    out = _attend(
      plan,
      constrain(_cut(q, plan.q_block, 3), None, 'batch', 'kv_heads', None, 'length', None),
      constrain(_cut(k, plan.k_block, 2), None, 'batch', 'kv_heads', None, None),
      constrain(_cut(v, plan.k_block, 2), None, 'batch', 'kv_heads', None, None),
      sink,
      parameters,
      known,
    )
    # [blocks, batch, kv_heads, groups, q_block, v_dim] -> [batch, q_len, heads, v_dim]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(q.shape[0], -1, q.shape[1] * groups, v.shape[-1])
    return out[:, :q_len]


def tile_dropout(
  key: jax.Array, i: Any, j: Any, share: Any, shape: Sequence[int]
) -> Float[Array, '...']:
  """What multiplies the probabilities of tile (i, j), the same each time: 1 / share for this share of
  them, 0 for the rest."""
  kept = jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(key, i), j), share, shape)
  return kept / share


@dataclasses.dataclass(frozen=True)
class _Plan:
  """All that is known before run time."""

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
class _Known:
  """What has no gradient: token metadata [blocks, #batch, block], the lists of tiles to visit, the
  terms' integers, dropout's key and the share that it keeps (an array: functions are traced once for
  all rates)."""

  q_tokens: Any
  k_tokens: Any
  tiles: Any
  fixed: Any
  key: Any
  share: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q, k, v, sink, parameters, known):
  return _forward(plan, q, k, v, sink, parameters, known)[0]


@functools.partial(jax.jit, static_argnums=0)
def _forward(plan, q, k, v, sink, parameters, known):
  """q [blocks, batch, kv_heads, groups, q_block, head_dim], k and v [blocks, batch, kv_heads, ...],
  sink [kv_heads, groups] or None.

  Returns the output and the logsumexp of each row with its sink, +inf where it sees nothing at all.
  """
  dtype = softmax_dtype(q)

  def visit(tile, is_masked, carry):
    i, j = tile
    out, largest, total = (_at(x, i) for x in carry)
    dots = _dots(plan, _at(q, i), _at(k, j))
    scores = _scores(plan, dots, parameters, known, i, j, is_masked)
    new = jnp.maximum(largest, scores.max(-1))
    base = jnp.where(jnp.isneginf(new), 0, new)
    probabilities = jnp.exp(scores - base[..., None])
    shrink = jnp.exp(largest - base)
    total = total * shrink + probabilities.sum(-1)
    if known.key is not None:
      probabilities *= tile_dropout(known.key, i, j, known.share, scores.shape)
    values = _at(v, j)
    added = _dot('bkgqs,bksd->bkgqd', probabilities.astype(values.dtype), values, dtype)
    updated = out * shrink[..., None] + added, new, total
    return tuple(_put(x, y, i) for x, y in zip(carry, updated, strict=True))

  rows = q.shape[:-1]
  carry = (
    jnp.zeros((*rows, v.shape[-1]), dtype),
    jnp.full(rows, -jnp.inf, dtype),
    jnp.zeros(rows, dtype),
  )
  if sink is not None:  # A first key of every query, without a value.
    logits = jnp.broadcast_to(sink.astype(dtype)[..., None], rows)
    carry = carry[0], logits, jnp.ones(rows, dtype)
  out, largest, total = _over_tiles(known, visit, carry)
  sees = total > 0
  total = jnp.where(sees, total, 1)
  logsumexp = jnp.where(sees, largest + jnp.log(total), jnp.inf)
  return (out / total[..., None]).astype(q.dtype), logsumexp


def _save(plan, q, k, v, sink, parameters, known):
  out, logsumexp = _forward(plan, q, k, v, sink, parameters, known)
  return out, (q, k, v, sink, parameters, known, out, logsumexp)


def _gradients(plan, saved, d_out):
  return (*_backward(plan, saved, d_out), None)


_attend.defvjp(_save, _gradients)


@functools.partial(jax.jit, static_argnums=0)
def _backward(plan, saved, d_out):
  """One walk over the tiles, each of which adds to the gradients of all that it read."""
  q, k, v, sink, parameters, known, out, logsumexp = saved
  dtype = softmax_dtype(q)
  weighted = (out.astype(dtype) * d_out.astype(dtype)).sum(-1)

  def visit(tile, is_masked, carry):
    i, j = tile
    d_q, d_k, d_v, d_parameters = carry
    queries, keys, values, d_rows = _at(q, i), _at(k, j), _at(v, j), _at(d_out, i)

    dots = _dots(plan, queries, keys)
    scores, to_parameters = jax.vjp(
      lambda p: _scores(plan, dots, p, known, i, j, is_masked), parameters
    )
    probabilities = jnp.exp(scores - _at(logsumexp, i)[..., None])
    d_probabilities = _dot('bkgqd,bksd->bkgqs', d_rows, values, dtype)
    dropped = probabilities
    if known.key is not None:
      kept = tile_dropout(known.key, i, j, known.share, scores.shape)
      d_probabilities *= kept
      dropped = probabilities * kept
    d_scores = probabilities * (d_probabilities - _at(weighted, i)[..., None])
    d_parameters = jax.tree.map(jnp.add, d_parameters, to_parameters(d_scores)[0])
    if plan.soft_cap is not None:
      d_scores *= 1 - jnp.square(dots / plan.soft_cap)
    small = (d_scores * plan.scale).astype(q.dtype)
    d_values = _dot('bkgqs,bkgqd->bksd', dropped.astype(q.dtype), d_rows, dtype)
    d_keys = _dot('bkgqs,bkgqd->bksd', small, queries, dtype)
    d_queries = _dot('bkgqs,bksd->bkgqd', small, keys, dtype)
    return (
      _put(d_q, _at(d_q, i) + d_queries, i),
      _put(d_k, _at(d_k, j) + d_keys, j),
      _put(d_v, _at(d_v, j) + d_values, j),
      d_parameters,
    )

  carry = jax.tree.map(
    lambda x: jnp.zeros(jnp.shape(x), jnp.promote_types(jnp.result_type(x), dtype)),
    (q, k, v, parameters),
  )
  d_q, d_k, d_v, d_parameters = _over_tiles(known, visit, carry)
  d_sink = None
  if sink is not None:
    d_logits = (
      -jnp.exp(with_rank(sink.astype(dtype)[..., None], logsumexp.ndim) - logsumexp) * weighted
    )
    d_sink = d_logits.sum((0, 1, 4))
  gradients = d_q, d_k, d_v, d_sink, d_parameters
  inputs = q, k, v, sink, parameters
  return jax.tree.map(lambda d, x: d.astype(jnp.result_type(x)), gradients, inputs)


def _over_tiles(known: _Known, visit: Callable, carry: Any) -> Any:
  for tiles in known.tiles:

    def one(i, j, carry, is_masked=tiles.is_masked):
      return visit((i, j), is_masked, carry)

    carry = tiles.loop(one, carry)
  return carry


def _dots(plan, queries, keys):
  """Scaled, soft-capped dot products of a tile: [batch, kv_heads, groups, q_block, k_block]."""
  dots = _dot('bkgqd,bksd->bkgqs', queries, keys, softmax_dtype(queries)) * plan.scale
  return soft_capped(dots, plan.soft_cap)


def _scores(plan, scores, parameters, known, i, j, is_masked):
  """Adds the position terms of tile (i, j) to its dot products; -inf where unseen."""
  q_tokens = jax.tree.map(lambda x: _at(x, i), known.q_tokens)
  k_tokens = jax.tree.map(lambda x: _at(x, j), known.k_tokens)
  trained, fixed = iter(parameters), iter(known.fixed)
  leaves = [next(trained if is_trained else fixed) for is_trained in plan.trained]
  terms = jax.tree.unflatten(plan.terms, leaves)
  if terms is not None:
    num_heads = scores.shape[1] * scores.shape[2]
    added = terms.scores(q_tokens, k_tokens, num_heads)
    scores += added.astype(scores.dtype).reshape(-1, *scores.shape[1:])
  if not is_masked:
    return scores
  seen = visible(plan.pattern, q_tokens, k_tokens)
  if plan.k_len % plan.k_block:
    seen &= (j * plan.k_block + jnp.arange(plan.k_block) < plan.k_len)[None, None]
  return jnp.where(seen[:, None, None], scores, -jnp.inf)


def _dot(equation, a, b, dtype):
  return jnp.einsum(equation, a, b.astype(a.dtype), preferred_element_type=dtype)


def _cut(x: Any, block: int, axis: int) -> Any:
  """Pads `axis` with zeros to whole blocks and moves the blocks to the front."""
  num_blocks = -(-x.shape[axis] // block)
  padding = [(0, 0)] * x.ndim
  padding[axis] = 0, num_blocks * block - x.shape[axis]
  x = jnp.pad(x, padding).reshape(*x.shape[:axis], num_blocks, block, *x.shape[axis + 1 :])
  return jnp.moveaxis(x, axis, 0)


def _at(x, index):
  return jax.lax.dynamic_index_in_dim(x, index, keepdims=False)


def _put(x, value, index):
  return jax.lax.dynamic_update_index_in_dim(x, value, index, 0)


def _is_float(leaf: Any) -> bool:
  return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
