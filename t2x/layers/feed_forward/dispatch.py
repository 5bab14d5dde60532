"""Dispatch of vectors to their experts and back: the interface, and the dispatch by capacity."""

import dataclasses
import math
from typing import ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size
from t2x.base.step import step_context
from t2x.layers.constraints import constrain, num_parts
from t2x.layers.counting import used_rows
from t2x.layers.feed_forward.routing import Routing
from t2x.layers.grouped import Groups, grouped_parts
from t2x.layers.interfaces import Aux, Call, Sublayer
from t2x.layers.keys import fold_in, named_key
from t2x.layers.tokens import Tokens

__all__ = ['Capacity', 'CapacityByChoice', 'Dispatch']


@dataclasses.dataclass(frozen=True)
class Experts:
  """Parts of one class whose parameters are stacked along the axis 'experts', during a call.

  Attributes:
    stacked: the parts.
    num_experts: number of parts.
    call: arguments of the call. Parts get its keys, folded with their number, and its step.
  """

  stacked: Sublayer
  num_experts: int
  call: Call

  def __call__(
    self,
    h: Float[Array, 'experts batch slots d_model'],
    occupied: Bool[Array, 'experts batch slots'],
  ) -> tuple[Float[Array, 'experts batch slots d_model'], Aux]:
    """Applies each expert to vectors of its own.

    Devices that split the experts exchange vectors, of which they hold other rows of the batch before and after.

    Args:
      h: the vectors.
      occupied: whether a slot has a token; empty slots are padding for the expert.
    """

    def apply(expert: Sublayer, number: Array, h: Array, occupied: Array) -> tuple[Array, Aux]:
      tokens = Tokens.row(h.shape[1], segments=occupied.astype(jnp.int32))
      key = named_key(self.call.key, 'expert')
      own = Call(tokens, key=None if key is None else fold_in(key, number), step=self.call.step)
      result = expert(h, own)
      return result.x, result.aux

    h = constrain(constrain(h, *_ROWS), *_DISPATCHED)
    y, aux = jax.vmap(apply)(self.stacked, jnp.arange(self.num_experts), h, occupied)
    y = constrain(constrain(y, *_DISPATCHED), *_ROWS)
    return y, jax.tree.map(lambda a: a.sum(axis=0), aux)

  def of_rows(
    self, h: Float[Array, 'batch rows d_model'], groups: Groups, key: Array | None
  ) -> tuple[Float[Array, 'batch rows d_model'], Aux]:
    """Applies to each vector its expert.

    Args:
      h: the vectors; the first dimension has one index for each part of the batch that a device holds.
      groups: the expert of each vector.
      key: a key for each vector; None: no dropout.
    """

    def apply(expert: Sublayer, number: Array) -> tuple[Array, Aux]:
      segments = (groups.part == number).astype(jnp.int32)
      call = Call(Tokens.row(h.shape[1], segments=segments), key=key, step=self.call.step)
      result = expert(h, call)
      return result.x, result.aux

    y, aux = grouped_parts(apply, groups, self.stacked, jnp.arange(self.num_experts))
    return y, jax.tree.map(lambda a: a.sum(axis=0), aux)


_ROWS = (None, 'batch', None, 'embed')
_DISPATCHED = ('experts', 'dispatched', 'slots', 'embed')


@runtime_checkable
class Dispatch(Protocol):
  """Brings vectors to their experts and the outputs back."""

  @property
  def is_causal(self) -> bool:
    """Whether no later token changes which experts process an earlier one."""
    ...

  @property
  def is_independent(self) -> bool:
    """Whether no token at all changes which experts process another one."""
    ...

  def __call__(
    self, experts: Experts, x: Float[Array, 'batch length d_model'], routing: Routing
  ) -> tuple[Float[Array, 'batch length d_model'], Aux]:
    """Returns the sum of weight * expert(x) over the experts of each token, and losses and metrics.

    Args:
      experts: the experts.
      x: the vectors of the tokens.
      routing: the experts of each token; padding has none.
    """
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity(Dispatch):
  """Gives each expert the same number of slots in each row (https://arxiv.org/abs/2006.16668).

  An expert processes at most factor * choices * length / num_experts tokens of a row, rounded up, or a fixed number of
  tokens. Tokens take slots in the order of the row, each with all of its choices before the next token, so that later
  tokens change no earlier ones. A choice without a slot is dropped: it adds 0, and only the residual stream carries the
  token. Examples packed into a row share its slots. In generation the number of slots follows from the length of each
  call, so that a single new token is never dropped; with factor >= num_experts / choices nothing is dropped.

  Returns the metric 'dropped_tokens', the fraction of choices that were dropped.

  Attributes:
    factor: slots of an expert relative to choices * length / num_experts; None: `slots` is set.
    slots: slots of an expert in a row of any length, as in transformers' Switch Transformers; None: `factor` is set.
  """

  factor: Positive | None = 1.25
  slots: Size | None = None
  is_causal: ClassVar[bool] = True
  is_independent: ClassVar[bool] = False

  def __post_init__(self):
    if (self.factor is None) == (self.slots is None):
      name = type(self).__name__
      raise UserError(
        f'{name}.factor = {self.factor} and {name}.slots = {self.slots} both set the number of slots, or neither does: '
        'set one of them, and the other one to None'
      )

  def __call__(self, experts, x, routing):
    if step_context().groups is not None:
      raise UserError(
        f'{type(self).__name__} gives slots to the tokens of each row, but the tokens of an expert of Dropless are not '
        'rows: use Dropless in the inner mixture too, or Capacity in the outer one'
      )
    (batch, length, width), k = x.shape, routing.expert.shape[-1]
    num_experts, choices = experts.num_experts, routing.expert.reshape(batch, length * k)
    num_slots = self.num_slots(length * k, length, num_experts)
    # Devices that split a row have the same number of slots, of which some are never occupied.
    size = -(-num_slots // num_parts('slots')) * num_parts('slots')
    slot = self.assigned(routing.expert, num_experts, num_slots, size)
    choice = inverse(slot, num_experts * size)
    # The token of no choice is out of range.
    h = take_rows(x, choice // k).reshape(batch, num_experts, size, width)
    occupied = (choice < length * k).reshape(h.shape[:-1])
    with used_rows(min(1.0, length * k / (num_experts * size))):
      y, aux = experts(h.swapaxes(0, 1), occupied.swapaxes(0, 1))
    y = take_rows(y.swapaxes(0, 1).reshape(batch, num_experts * size, width), slot)
    y = (y.reshape(batch, length, k, width) * routing.weight[..., None]).sum(axis=2)
    chosen = choices < num_experts
    dropped = chosen & (slot == num_experts * size)
    counts = (dropped.sum(dtype=jnp.float32), chosen.sum(dtype=jnp.float32))
    return y, aux + Aux(metrics={'dropped_tokens': counts})

  def num_slots(self, num_choices: int, length: int, num_experts: int) -> int:
    """Returns the slots of an expert in a row of `length` tokens, which an expert receives at most once each."""
    if self.factor is None:
      assert self.slots is not None
      return min(length, self.slots)
    return min(length, math.ceil(self.factor * num_choices / num_experts))

  def assigned(
    self, expert: Int[Array, 'batch length choices'], num_experts: int, num_slots: int, size: int
  ) -> Int[Array, 'batch length*choices']:
    """Returns the slot of each choice, those of a token in succession; see the function `slots`."""
    return slots(expert.reshape(len(expert), -1), num_experts, num_slots, size)


class CapacityByChoice(Capacity):
  """Capacity whose slots are taken by the first choices of all tokens of a row, then by the second choices, and so on,
  as in GShard and V-MoE, so that first choices are dropped last. Later tokens take slots of earlier ones."""

  is_causal = False

  def assigned(self, expert, num_experts, num_slots, size):
    batch, length, k = expert.shape
    slot = super().assigned(expert.swapaxes(1, 2), num_experts, num_slots, size)
    return slot.reshape(batch, k, length).swapaxes(1, 2).reshape(batch, -1)


def slots(
  expert: Int[Array, 'batch choices'], num_experts: int, num_slots: int, size: int
) -> Int[Array, 'batch choices']:
  """Returns the slot of each choice in a row: expert * size + the number of earlier choices of the expert.

  Args:
    expert: index of the expert; num_experts: none.
    num_experts: number of experts.
    num_slots: number of choices of an expert that have a slot; others have the slot num_experts * size.
    size: number of slots of an expert.
  """
  chosen = jax.nn.one_hot(expert, num_experts, dtype=jnp.int32)
  rank = (jnp.cumsum(chosen, axis=1) * chosen).sum(axis=-1) - 1
  has_slot = (expert < num_experts) & (rank < num_slots)
  return jnp.where(has_slot, expert * size + rank, num_experts * size)


def inverse(slot: Int[Array, 'batch choices'], num_slots: int) -> Int[Array, 'batch slots']:
  """Returns the choice in each slot, the number of choices for an empty slot."""
  batch, num_choices = slot.shape
  empty = jnp.full((batch, num_slots), num_choices, slot.dtype)
  indices = jnp.arange(num_choices, dtype=slot.dtype)
  return jax.vmap(lambda row, slot: row.at[slot].set(indices, mode='drop'))(empty, slot)


def take_rows(
  x: Float[Array, 'batch rows width'], index: Int[Array, 'batch taken']
) -> Float[Array, 'batch taken width']:
  """Returns the rows at `index`; zeros for an index out of range."""
  return jnp.take_along_axis(x, index[..., None], axis=1, mode='fill', fill_value=0)
