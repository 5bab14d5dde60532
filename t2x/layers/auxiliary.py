"""Auxiliary losses and metrics of the parts of a model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ['NO_AUX', 'Aux']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Aux:
  """Auxiliary losses and metrics of the parts of a model, by name.

  Attributes:
    losses: one value per row, [batch], including the coefficient. Values of the same name are summed over
      layers; the train step adds their mean over the global batch to the loss.
    metrics: (sum, weight). Both are summed over layers; the reported metric is their quotient.
  """

  # A scan over layers stacks the values, and tree functions put leaves other than arrays there.
  losses: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  metrics: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

  def __add__(self, other: 'Aux') -> 'Aux':
    """Sums the losses and metrics of two parts by name."""
    return Aux(_add(self.losses, other.losses), _add(self.metrics, other.metrics))


NO_AUX = Aux()


def _add(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
  both = {name: jax.tree.map(jnp.add, a[name], b[name]) for name in a if name in b}
  return {**a, **b, **both}
