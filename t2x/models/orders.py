"""Which layers of a stack share parameters, and in which order they run (Takase and Kiyono 2021, "Lessons on Parameter
Sharing across Layers in Transformers", https://arxiv.org/abs/2104.06022, figure 2 and algorithm 1)."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.layers.dtypes import Tree, float32_sums, gather

__all__ = ['cycle', 'cycle_reverse', 'sequence']

# Returns the parameter set of each repeat, from the numbers of repeats and of sets.
Order = Callable[[int, int], Sequence[int]]


def sequence(num_repeats: int, num_groups: int) -> Sequence[int]:
  """Neighbouring repeats share a parameter set, as in ALBERT: 0, 0, 1, 1, 2, 2.

  Raises:
    UserError: `num_groups` does not divide `num_repeats`.
  """
  if num_repeats % num_groups:
    raise UserError(
      f'num_groups = {num_groups}: must divide {num_repeats}, the number of repeats of blocks'
    )
  return [repeat * num_groups // num_repeats for repeat in range(num_repeats)]


def cycle(num_repeats: int, num_groups: int) -> Sequence[int]:
  """All parameter sets run in turn, again and again: 0, 1, 2, 0, 1, 2."""
  return [repeat % num_groups for repeat in range(num_repeats)]


def cycle_reverse(num_repeats: int, num_groups: int) -> Sequence[int]:
  """`cycle`, whose last round runs in reverse: 0, 1, 2, 2, 1, 0."""
  order = list(cycle(num_repeats, num_groups))
  last = max(num_groups, (math.ceil(num_repeats / num_groups) - 1) * num_groups)
  return order[:last] + [num_groups - 1 - group for group in order[last:]]


@dataclasses.dataclass(frozen=True)
class SharedSets:
  """The parameter set of each repeat of a stack.

  Attributes:
    order: the index of the set of each repeat.
  """

  order: tuple[int, ...]

  @classmethod
  def of(
    cls, name: str, num_repeats: int, num_groups: int | None, order: Order | Sequence[int]
  ) -> 'SharedSets':
    """Returns the sets of a stack.

    Args:
      name: the class of the stack, for messages.
      num_repeats: number of repeats.
      num_groups: number of sets; None: that of `order`, or one per repeat.
      order: the set of each repeat, or a function that returns them.

    Raises:
      UserError: `order` does not name a set for each repeat, or each set, or has no effect.
    """
    if callable(order):
      num_groups = num_groups or num_repeats
      try:
        sets = tuple(order(num_repeats, num_groups))
      except UserError as error:
        raise UserError(f'{name}.{error}') from error
    else:
      sets = tuple(order)
      num_groups = num_groups or max(sets, default=0) + 1
    if len(sets) != num_repeats or set(sets) != set(range(num_groups)):
      raise UserError(
        f'{name}.order is {list(sets)}: must name one of the parameter sets 0 to {num_groups - 1} '
        f'({name}.num_groups) for each of {num_repeats} repeats of {name}.blocks, and each set at least once'
      )
    if order is not sequence and num_groups in (1, num_repeats):
      raise UserError(
        f'{name}.order has no effect, because {name}.num_groups is {num_groups} for {num_repeats} repeats: set another '
        f'number of parameter sets, or leave out {name}.order'
      )
    return cls(sets)

  @property
  def num_sets(self) -> int:
    """Number of parameter sets."""
    return max(self.order) + 1

  @functools.cached_property
  def uses(self) -> int:
    """Number of repeats for which a set is used before another: the common divisor of all such numbers."""
    return math.gcd(*(len(list(run)) for _, run in itertools.groupby(self.order)))

  def repeats(self, group: int) -> list[int]:
    """Returns the repeats that use a set."""
    return [repeat for repeat, own in enumerate(self.order) if own == group]

  def each(self, sets: Tree, uses: int = 1) -> Tree:
    """Returns the arrays [sets, ...] for each repeat, or for each `uses` repeats with the same set."""
    order = self.order[::uses]
    if order == tuple(range(self.num_sets)):
      return sets
    index = jnp.asarray(order)

    def of_repeats(leaf: Array) -> Array:
      return gather(leaf, index) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf[index]

    return jax.tree.map(of_repeats, sets)

  def in_runs(self, per_repeat: Tree) -> Tree:
    """Reshapes arrays [repeats, ...] to [runs of `uses` repeats, uses, ...]."""
    return jax.tree.map(lambda a: a.reshape(-1, self.uses, *a.shape[1:]), per_repeat)

  def scan(
    self, repeat: Callable[..., Any], carry: Tree, sets: object, per_repeat: object, unroll: int
  ) -> tuple[Tree, Any]:
    """Applies all repeats in a scan over runs, and within each run a scan over the repeats that use its set.

    Args:
      repeat: called as `repeat(set, carry, inputs)`; returns the carry and the outputs of a repeat.
      carry: that of the first repeat.
      sets: the parameters, [sets, ...].
      per_repeat: the inputs, [repeats, ...].
      unroll: number of repeats per iteration of the scan.

    Returns:
      The carry after the last repeat, and the outputs, [repeats, ...].
    """
    sets = self.each(sets, self.uses)
    if self.uses == 1:
      return jax.lax.scan(
        lambda carry, inputs: repeat(inputs[0], carry, inputs[1]),
        carry,
        (sets, per_repeat),
        unroll=unroll,
      )

    def run(carry, inputs):
      own, run_inputs = inputs
      read = float32_sums(own)
      return jax.lax.scan(
        lambda carry, inputs: repeat(read(), carry, inputs),
        carry,
        run_inputs,
        length=self.uses,
        unroll=unroll,
      )

    carry, outputs = jax.lax.scan(run, carry, (sets, self.in_runs(per_repeat)))
    return carry, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), outputs)
