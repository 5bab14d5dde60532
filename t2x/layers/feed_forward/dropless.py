"""Dispatch of vectors to their experts without a capacity per row: the choices are sorted by expert."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from t2x.base.errors import UserError
from t2x.base.ranges import Positive
from t2x.base.step import check_whole_batch, is_plain
from t2x.layers.constraints import map_shards, mesh_axes, num_parts
from t2x.layers.dtypes import Dtypes
from t2x.layers.feed_forward.dispatch import Dispatch
from t2x.layers.grouped import Groups, block_size
from t2x.layers.interfaces import Aux
from t2x.layers.keys import named_key, row_keys

__all__ = ['Dropless']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropless(Dispatch):
  """Lets each expert process all tokens that chose it (https://arxiv.org/abs/2211.15841).

  The choices are sorted by expert, and the products of `Linear` multiply each of them with the kernel of its expert
  (see `t2x.layers.grouped`; an expert that computes with its parameters in another way is slow). Devices that split
  the experts each gather the vectors of all of these devices, apply their own experts, and return sums. Without `room`
  they have places for the case that all choices are theirs.

  With `room` an expert processes at most room * choices / num_experts of the choices of the rows of a device, rounded
  up; devices that split the experts count the rows of all of them. The choices take places in the order of the rows,
  each row in its own order, and those without a place add 0, as in `Capacity`: what a row is mapped to depends on the
  rows before it, so that a step which splits the batch into micro-batches is refused. A call with one token per row, as
  in generation, has places for all. Returns the metric 'dropped_tokens', the fraction of choices without a place.

  An auxiliary loss of the experts is shared equally by the rows of the batch.

  Attributes:
    room: places of an expert relative to the mean, which bounds the memory of a device; None: nothing is dropped.
  """

  room: Positive | None = None
  is_causal: ClassVar[bool] = True

  @property
  def is_independent(self) -> bool:
    return self.room is None

  def __call__(self, experts, x, routing):
    if others := sorted(set(mesh_axes('experts')) - set(mesh_axes('batch'))):
      raise UserError(
        f'Dropless: the mesh axis {others[0]} splits the experts but not the batch: give the '
        'logical axis experts an axis of '
        'the logical axis batch in Mesh.rules and Mesh.activation_rules, or use Capacity'
      )
    if self.room is not None:
      check_whole_batch('With Dropless.room experts have places for', 'set Dropless.room = None')
    batch, number = len(x), experts.num_experts
    devices = num_parts('batch') * num_parts('length') // num_parts('experts')
    block = block_size(routing.expert.size / devices / number)
    room = None if x.shape[1] == 1 else self.room
    arrange = functools.partial(_arrange, number, block, room)
    sizes, part, choice, place = _on_devices(arrange, routing.expert)
    # The places of a device relative to the mean number of its choices.
    places = num_parts('experts') if room is None else min(num_parts('experts'), max(1.0, room))
    groups = Groups(sizes, part[..., 0], block, 1 / places)
    h = _on_devices(_to_places, x, choice, place)
    keys = _keys(named_key(experts.call.key, 'expert'), x.shape, groups.part, choice, place)
    y, aux = experts.of_rows(h, groups, keys)
    y = _on_devices(_to_tokens, y, routing.weight, choice, place)
    losses = {name: jnp.full(batch, loss.sum() / batch) for name, loss in aux.losses.items()}
    metrics = dict(aux.metrics)
    if self.room is not None:
      chosen, placed = ((index < number).sum(dtype=jnp.float32) for index in (routing.expert, part))
      metrics['dropped_tokens'] = (chosen - placed, chosen)
    return y, Aux(losses, metrics)


def _on_devices(function: Callable[..., Any], *arrays: Array) -> Any:
  """Applies a function to the arrays [batch length size] of each device; see `map_shards`."""
  axes = 'batch', 'length', None
  return map_shards(function, (axes,) * len(arrays), axes)(*arrays)


def _gathered(x: Shaped[Array, 'batch length size']) -> Shaped[Array, 'tokens size']:
  """Returns the tokens of all devices that have different experts."""
  names = mesh_axes('experts')
  x = jax.lax.all_gather(x, names, tiled=True) if names else x
  return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


def _arrange(
  num_experts: int, block: int, room: float | None, expert: Int[Array, 'batch length choices']
) -> tuple[Array, Array, Array, Array]:
  """Assigns places to the choices of the experts of a device, sorted by expert.

  Returns:
    the number of places of each expert, [1 1 experts], and for each place its expert, [1 places 1] (num_experts:
    none), and its choice, [1 places 1] (the number of choices: none); and the place of each choice, [1 tokens choices]
    (the number of places: none).
  """
  expert = _gathered(expert)
  num_choices, num_own = expert.size, num_experts // num_parts('experts')
  most = (
    num_choices if room is None else min(num_choices, math.ceil(room * num_choices / num_experts))
  )
  num_places = (num_choices + num_own * (block - 1)) // block * block
  num_places = min(num_places, num_own * -(-most // block) * block)
  names = mesh_axes('experts')
  first = jax.lax.axis_index(names) * num_own if names else 0
  own = expert.reshape(num_choices) - first
  own = jnp.where((own >= 0) & (own < num_own), own, num_own)
  order = jnp.argsort(own, stable=True)
  # The number of choices before each expert, and before none.
  before = jnp.searchsorted(own[order], jnp.arange(num_own + 1))
  counts = jnp.minimum(before[1:] - before[:-1], most)
  sizes = -(-counts // block) * block
  ends = jnp.cumsum(sizes)
  rank = jnp.arange(num_choices) - before[own[order]]
  first_place = jnp.append(ends - sizes, num_places)
  sorted_place = jnp.where(rank < most, first_place[own[order]] + rank, num_places)
  choice = jnp.full(num_places, num_choices).at[sorted_place].set(order, mode='drop')
  place = jnp.zeros(num_choices, sorted_place.dtype).at[order].set(sorted_place)
  place = jnp.minimum(place, num_places).reshape(1, *expert.shape)
  part = first + jnp.searchsorted(ends, jnp.arange(num_places), side='right')
  part = jnp.where(choice < num_choices, part, num_experts)
  return sizes[None, None], part[None, :, None], choice[None, :, None], place


def _to_places(
  x: Float[Array, 'batch length d_model'], choice: Array, place: Array
) -> Float[Array, '1 places d_model']:
  """Returns the vector in each place; zeros in an empty one."""
  spread = _spread_values if is_plain() else _spread
  return spread(_gathered(x), choice[0, :, 0], place[0])[None]


def _to_tokens(
  y: Float[Array, '1 places d_model'],
  weight: Float[Array, 'batch length choices'],
  choice: Array,
  place: Array,
) -> Float[Array, 'batch length d_model']:
  """Returns the sum of weight * y over the choices of each token."""
  collect = _collect_values if is_plain() else _collect
  length = weight.shape[1]
  total = collect(y[0], _gathered(weight), choice[0, :, 0], place[0])
  total = total.reshape(len(total) // length, length, total.shape[1])
  names = mesh_axes('experts')
  return jax.lax.psum_scatter(total, names, tiled=True) if names else total


def _spread_values(
  x: Shaped[Array, 'tokens width'], choice: Int[Array, ' places'], place: Int[Array, 'tokens k']
) -> Shaped[Array, 'places width']:
  return x.at[choice // place.shape[1]].get(mode='fill', fill_value=0)


def _collect_values(
  y: Float[Array, 'places width'],
  weight: Float[Array, 'tokens k'],
  choice: Int[Array, ' places'],
  place: Int[Array, 'tokens k'],
) -> Float[Array, 'tokens width']:
  y_of_choices = y.at[place].get(mode='fill', fill_value=0)
  return (y_of_choices * weight[..., None]).sum(axis=1).astype(y.dtype)


# Places and choices are permutations of each other, so that the gradient of a gather is a gather.


@jax.custom_vjp
def _spread(x: Array, choice: Array, place: Array) -> Array:
  return _spread_values(x, choice, place)


def _spread_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
  choice, place = saved
  ones = jnp.ones(place.shape, Dtypes.reductions)
  return _collect_values(gradient, ones, choice, place), None, None


_spread.defvjp(lambda *args: (_spread_values(*args), args[1:]), _spread_backward)


@jax.custom_vjp
def _collect(y: Array, weight: Array, choice: Array, place: Array) -> Array:
  return _collect_values(y, weight, choice, place)


def _collect_backward(saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, None, None]:
  y, weight, choice, place = saved
  of_place = weight.reshape(weight.size, 1).at[choice].get(mode='fill', fill_value=0)
  dy = (_spread_values(gradient, choice, place) * of_place).astype(y.dtype)
  y_of_choices = y.at[place].get(mode='fill', fill_value=0).astype(weight.dtype)
  dweight = (y_of_choices * gradient[:, None].astype(weight.dtype)).sum(axis=-1)
  return dy, dweight, None, None


_collect.defvjp(lambda *args: (_collect_values(*args), args), _collect_backward)


def _keys(
  key: Array | None, shape: tuple[int, ...], part: Array, choice: Array, place: Array
) -> Array | None:
  """Returns a key for each place, which depends on the row, the position and the expert of its choice."""
  if key is None:
    return None
  batch, length, _ = shape
  of_rows = key if key.ndim else row_keys(key, batch)
  of_tokens = jax.vmap(lambda key: row_keys(key, length))(of_rows)

  def of_places(data: Array, choice: Array, place: Array) -> Array:
    return _spread_values(_gathered(data), choice[0, :, 0], place[0])[None]

  data = _on_devices(of_places, jax.random.key_data(of_tokens), choice, place)
  keys = jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
  return jax.vmap(jax.vmap(jax.random.fold_in))(keys, part)
