"""Ring attention (Liu et al. 2023, arXiv:2310.01889): exact attention in rows that are split over devices.

Each device keeps its part of the queries, and the parts of the keys and values pass from device to device. A
step computes with one part while the next is on its way. The backward pass sends the gradients of keys and
values along with them. No device holds the keys of a complete row, and nothing is summed tile by tile.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.kernels.base import (
  AttentionInputs,
  Kernel,
  check_reads,
  common_layout,
  softmax_dtype,
)
from t2x.layers.attention.kernels.blockwise import Blockwise
from t2x.layers.attention.kernels.schedule import TileList, tiles_of_blocks
from t2x.layers.attention.kernels.tile_loops import (
  Constants,
  Plan,
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
from t2x.layers.constraints import Split, constrain, split_of
from t2x.layers.dtypes import Tree, rounded_sums, zero_sums
from t2x.layers.patterns.algebra import Pattern, mark_names
from t2x.layers.patterns.tiles import SKIP, Bounds
from t2x.layers.tokens import RowLayout

__all__ = ['Ring']

# Devices (from, to).
Pairs = list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Ring(Kernel):
  """Attention in tiles, as `Blockwise`, for rows that are split over devices along their length.

  Tiles are skipped as in `Blockwise`, and parts of the keys that no device needs are not sent. With a
  causal pattern every device computes an early and a late part of the row, so that all have equal work
  ("zigzag"). Second derivatives are not supported.

  Attributes:
    block: maximum number of queries and of keys per tile.
  """

  block: Size = 256
  needs_complete_rows = False

  def __post_init__(self):
    if self.block < 1:
      raise UserError(f'{self}: block must be at least 1')

  def supports(self, inputs: AttentionInputs) -> str | None:
    split = split_of('length')
    if split is None:
      return 'ring attention needs rows that are split over devices'
    reason = Blockwise(self.block, self.block).supports(inputs)
    if reason is not None:
      return reason
    for name, length in (('queries', inputs.q_len), ('keys', inputs.k_len)):
      if length % (2 * split.num_parts):
        return f'ring attention needs a multiple of {2 * split.num_parts} {name}, not {length}'
      block = self._block(length, split)
      if length % (split.num_parts * block):
        return f'{length // split.num_parts} {name} per device are not a multiple of Ring.block = {block}'
      if inputs.has_dropout and block != min(self.block, length):
        return (
          f'dropout of attention probabilities depends on the tiles, and {length // split.num_parts} '
          f'{name} per device are less than two tiles of Ring.block = {self.block}'
        )
    return None

  def _block(self, length: int, split: Split) -> int:
    """Returns the size of a block, of which a device has at least two."""
    return min(self.block, length // split.num_parts // 2)

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    split = split_of('length')
    assert split is not None  # `supports` requires it.
    check_reads(inputs.pattern, inputs.q_tokens, inputs.k_tokens)
    lengths = inputs.q_len, inputs.k_len
    blocks = self._block(lengths[0], split), self._block(lengths[1], split)
    plan, (q, k, v, sink, parameters), constants = split_inputs(inputs, *blocks)
    layout = common_layout(inputs.q_tokens, inputs.k_tokens)
    has_marks = bool(mark_names(inputs.pattern))
    route = _route(inputs.pattern, *lengths, *blocks, layout, has_marks, split.num_parts)
    out = _attend(
      _RingPlan(plan, split, route, layout, *lengths),
      constrain(q, 'length', 'batch', 'kv_heads', None, None, None),
      constrain(k, 'length', 'batch', 'kv_heads', None, None),
      constrain(v, 'length', 'batch', 'kv_heads', None, None),
      sink,
      parameters,
      constants,
    )
    return join_blocks(out, inputs.q_len)


@dataclasses.dataclass(frozen=True)
class _Route:
  """Path of the keys between devices.

  Attributes:
    zigzag: whether device i of n computes with the parts i and 2 n - 1 - i of a row cut into 2 n, instead
      of with its own part.
    first: number of places by which the keys are moved before the first step.
    steps: number of parts of the keys that a device computes with; before every step except the first the keys
      move by one place.
    max_tiles: maximum number of nonempty tiles of a device in a step.
  """

  zigzag: bool
  first: int
  steps: int
  max_tiles: int


@dataclasses.dataclass(frozen=True)
class _RingPlan:
  """Static settings of a kernel call."""

  tile: Plan
  split: Split
  route: _Route
  layout: RowLayout
  q_len: int
  k_len: int


@functools.cache
def _route(
  pattern: Pattern,
  q_len: int,
  k_len: int,
  q_block: int,
  k_block: int,
  layout: RowLayout,
  has_marks: bool,
  num_parts: int,
) -> _Route:
  """Returns the shortest way of the keys past all queries that may see them."""
  schedule = pattern.schedule(q_len, k_len, q_block, k_block, layout=layout, has_marks=has_marks)
  is_visited = schedule != SKIP

  def tiles_per_step(is_visited: np.ndarray) -> np.ndarray:
    rows, columns = is_visited.shape
    parts = is_visited.reshape(num_parts, rows // num_parts, num_parts, columns // num_parts)
    return parts.sum((1, 3))

  tiles = tiles_per_step(is_visited)
  receivers, senders = np.nonzero(tiles)
  shifts = receivers - senders
  first, last = int(shifts.min(initial=0)), int(shifts.max(initial=0))
  if last - first + 1 < num_parts:
    return _Route(False, first, last - first + 1, int(tiles.max()))
  if first < 0 or q_len != k_len or any(size // num_parts % 2 for size in schedule.shape):
    return _Route(False, 0, num_parts, int(tiles.max()))
  early = np.arange(num_parts)
  halves = np.stack([early, 2 * num_parts - 1 - early], 1).reshape(-1)
  order = np.arange(len(schedule)).reshape(2 * num_parts, -1)[halves].reshape(-1)
  return _Route(True, 0, num_parts, int(tiles_per_step(is_visited[order][:, order]).max()))


@functools.partial(jax.jit, static_argnums=0)
def ring_forward(plan, q, k, v, sink, parameters, constants):
  """Computes the output and the logsumexp of each query; arrays have dimensions as in `tile_loops`."""

  def attend(queries, keys, sink, parameters, constants):
    queries, keys = _placed(plan, queries), _placed(plan, keys)
    q = queries[0]

    def visit(state, keys):
      k, v, *_ = keys
      return attend_tiles(
        plan.tile, q, k, v, parameters, _visited(plan, queries, keys, constants), state
      )

    def step(carry, _):
      state, keys = carry
      following = _moved(plan, keys, 1)
      return (visit(state, keys), following), None

    carry = start(q, keys[1], sink), _moved(plan, keys, plan.route.first)
    (state, keys), _ = jax.lax.scan(step, carry, None, length=plan.route.steps - 1)
    return _returned(plan, finish(visit(state, keys), q.dtype))

  queries, keys, rest = _sides((q,), (k, v), constants)
  attend = plan.split.map(attend, (True, True, False, False, False), (True, True))
  return attend(queries, keys, sink, parameters, rest)


@functools.partial(jax.jit, static_argnums=0)
def ring_backward(plan, saved, d_out):
  """Computes all gradients."""
  q, k, v, sink, parameters, constants, out, logsumexp = saved
  weighted = weighted_output(out, d_out)
  dtype = softmax_dtype(q)
  steps = plan.route.steps

  def gradients(queries, keys, parameters, constants):
    queries, keys = _placed(plan, queries), _placed(plan, keys)
    rows = queries[:4]

    def visit(sums, keys):
      k, v, *_ = keys
      visited = _visited(plan, queries, keys, constants)
      return tile_gradients(plan.tile, rows, k, v, parameters, visited, sums)

    def step(carry, _):
      sums, keys = carry
      following = _moved(plan, keys, 1)
      d_q, *d_keys, d_parameters = visit(sums, keys)
      return ((d_q, *_moved(plan, d_keys, 1), d_parameters), following), None

    keys = _moved(plan, keys, plan.route.first)
    carry = zero_sums((rows[0], *keys[:2], parameters), dtype), keys
    (sums, keys), _ = jax.lax.scan(step, carry, None, length=steps - 1)
    d_q, *d_keys, d_parameters = visit(sums, keys)
    d_keys = _moved(plan, d_keys, 1 - steps - plan.route.first)
    d_q, d_k, d_v = _returned(plan, (d_q, *d_keys))
    return d_q, d_k, d_v, jax.lax.psum(d_parameters, plan.split.names)

  queries, keys, rest = _sides((q, d_out, logsumexp, weighted), (k, v), constants)
  gradients = plan.split.map(gradients, (True, True, False, False), (True, True, True, False))
  d_q, d_k, d_v, d_parameters = gradients(queries, keys, parameters, rest)
  d_inputs = d_q, d_k, d_v, sink_gradient(sink, logsumexp, weighted), d_parameters
  return rounded_sums(d_inputs, (q, k, v, sink, parameters))


_attend = attention_with_gradient(ring_forward, ring_backward)


def _sides(
  queries: Sequence[Any], keys: Sequence[Any], constants: Constants
) -> tuple[Any, Any, Any]:
  """Splits the inputs into the arrays of the queries, of the moving keys, and further inputs without a gradient."""
  c = constants
  rest = dataclasses.replace(c, q_tokens=None, k_tokens=None, q_numbers=None, k_numbers=None)
  return (*queries, c.q_tokens, c.q_numbers), (*keys, c.k_tokens, c.k_numbers), rest


def _visited(
  plan: _RingPlan, queries: Sequence[Any], keys: Sequence[Any], constants: Constants
) -> Constants:
  """Returns the inputs without a gradient of a step, with the tiles that the device visits."""
  (*_, q_tokens, q_numbers), (*_, k_tokens, k_numbers) = queries, keys
  tiles = _tiles(plan, q_tokens, q_numbers, k_tokens, k_numbers)
  return dataclasses.replace(
    constants,
    q_tokens=q_tokens,
    k_tokens=k_tokens,
    q_numbers=q_numbers,
    k_numbers=k_numbers,
    tiles=tiles,
  )


def _tiles(plan, q_tokens, q_numbers, k_tokens, k_numbers) -> list[TileList]:
  def row(x):
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])

  def bounds(tokens, block, numbers, length):
    return Bounds.of(jax.tree.map(row, tokens), block, plan.layout, numbers, length)

  q = bounds(q_tokens, plan.tile.q_block, q_numbers, plan.q_len)
  k = bounds(k_tokens, plan.tile.k_block, k_numbers, plan.k_len)
  pattern, max_tiles = plan.tile.pattern, plan.route.max_tiles
  return tiles_of_blocks(pattern, q, k, max_tiles)


def _moved(plan: _RingPlan, arrays: Tree, places: int) -> Tree:
  """Returns the arrays of the device that is `places` places before."""
  n = plan.split.num_parts
  if places % n == 0:
    return arrays
  pairs = [(i, (i + places) % n) for i in range(n)]
  return jax.lax.ppermute(arrays, plan.split.names, pairs)


def _placed(plan: _RingPlan, arrays: Tree) -> Tree:
  """Returns the blocks that the device computes with, given those of its own part, [blocks, ...]."""
  return _exchanged(plan, arrays, lambda pairs: pairs)


def _returned(plan: _RingPlan, arrays: Tree) -> Tree:
  """Returns the blocks of the device's own part, given the blocks that it computed with."""
  return _exchanged(plan, arrays, lambda pairs: [(there, here) for here, there in pairs])


def _exchanged(plan: _RingPlan, arrays: Tree, directed: Callable[[Pairs], Pairs]) -> Tree:
  """Sends both halves of the blocks along the pairs (from, to) of the zigzag, as `directed`."""
  if not plan.route.zigzag:
    return arrays
  n = plan.split.num_parts

  def exchange(x):
    halves = x[: len(x) // 2], x[len(x) // 2 :]
    sent = []
    for second, half in enumerate(halves):
      pairs = [(i, min(2 * i + second, 2 * n - 1 - 2 * i - second)) for i in range(n)]
      sent.append(jax.lax.ppermute(half, plan.split.names, directed(pairs)))
    return jnp.concatenate(sent)

  return jax.tree.map(exchange, arrays)
