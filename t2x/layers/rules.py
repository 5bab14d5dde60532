"""Parameters of kind 'rule': they have no gradient, and a rule moves them once per step.

A step replaces such a parameter by `rule(value, statistic)`. The part that has the parameter computes the statistic in
its forward pass (`reported`). It takes the place of the gradient, so that a step adds it up over micro-batches, devices
and the calls of the part, whatever stack, rematerialisation or scan the part is in.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.step import is_plain


@runtime_checkable
class Rule(Protocol):
  """Rule that moves a parameter; hashable."""

  def __call__(
    self, value: Float[Array, '*shape'], statistic: Float[Array, '*shape']
  ) -> Float[Array, '*shape']:
    """Returns the value after a step.

    Args:
      value: the parameter.
      statistic: sum of the reported statistics over the step; 0 if there is none.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Fixed(Rule):
  """Leaves a parameter as it is: statistics of an imported model."""

  def __call__(self, value, statistic):
    return value


@jax.custom_vjp
def _reported(x: Array, parameter: Array, statistic: Array) -> Array:
  return x


_reported.defvjp(
  lambda x, parameter, statistic: (x, statistic),
  lambda statistic, gradient: (gradient, statistic, jnp.zeros_like(statistic)),
)


def reported(
  x: Float[Array, '...'], parameter: Float[Array, '*shape'], statistic: Float[Array, '*shape']
) -> Float[Array, '...']:
  """Returns `x`, and reports the statistic of a parameter of kind 'rule' in the backward pass.

  Args:
    x: an array that the loss depends on.
    parameter: the parameter's value, on which nothing else may depend with a gradient.
    statistic: what is added to the statistic of the step, float32.
  """
  return x if is_plain() else _reported(x, parameter, statistic)
