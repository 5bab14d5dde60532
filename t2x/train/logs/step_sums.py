"""Results of a step: sums of its metrics, and in training the norms of gradients, parameters and updates."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t2x.models.losses import Sums
from t2x.train.params import ParamInfo, Params

KINDS = ('gradient', 'parameter', 'update')


class NormsPerLayer:
  """Computes Euclidean norms over all trained parameters of a layer.

  Each layer of a scanned stack has its own norm. Parameters that several layers share count for the first of
  these layers; parameters outside of stacks count for their top-level part, such as the embedding.

  Args:
    infos: metadata of the trained parameters by name.

  Attributes:
    names: KIND/LAYER of each norm: 'gradient/body.stack.03'. Parameters that are trained and frozen in different
      layers count with the trained layers only.
  """

  def __init__(self, infos: Mapping[str, ParamInfo]):
    # In the order of the leaves of a dict.
    self._stacked = [bool(infos[name].layers) for name in sorted(infos)]
    rows = [layer for name in sorted(infos) for layer in _layers(infos[name])]
    # 'body.stack', 3 -> 'body.stack.03'.
    width = len(str(max(number for _, number in rows)))
    layers = sorted(set(rows))
    labels = [part if number < 0 else f'{part}.{number:0{width}}' for part, number in layers]
    self.names = tuple(f'{kind}/{label}' for kind in KINDS for label in labels)
    members = [[i for i, row in enumerate(rows) if row == layer] for layer in layers]
    # Indices of the rows of each layer, padded with the index of a zero.
    longest = max(map(len, members))
    self._members = np.array([m + [len(rows)] * (longest - len(m)) for m in members])

  def __call__(self, gradients: Params, params: Params, updates: Params) -> jax.Array:
    """Returns the norms, float32 [num_names].

    Args:
      gradients: gradients of the trained parameters, before clipping.
      params: the trained parameters before the step.
      updates: what the optimizer adds to the parameters.
    """
    return jnp.concatenate([self._norms(tree) for tree in (gradients, params, updates)])

  def _norms(self, tree: Params) -> jax.Array:
    squares = [
      jnp.square(leaf.astype(jnp.float32))
      .sum(axis=range(1, leaf.ndim) if stacked else None)
      .ravel()
      for leaf, stacked in zip(jax.tree.leaves(tree), self._stacked, strict=True)
    ]
    # A gather: float32 scatter-adds are slow on GPUs.
    return jnp.sqrt(jnp.concatenate([*squares, jnp.zeros(1)])[self._members].sum(axis=1))


def _layers(info: ParamInfo) -> list[tuple[str, int]]:
  """Returns (part, layer) of each row of a parameter; layer -1 outside of stacks."""
  if not info.layers:
    return [(info.name.partition('.')[0], -1)]
  stack = info.name.partition('.blocks.')[0]
  return [(stack, users[0]) for users in info.layers]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepSums:
  """Sums and norms of a step, packed into one array that the host fetches in one transfer.

  Attributes:
    names: names of the sums, in order.
    values: sum and weight of each name, the gradient norms, then the norms by layer; float32
      [..., 2 * num_names + num_params + num_layer_names].
    layer_names: names of the norms by layer; () without `Trainer.layer_norms`.
  """

  names: tuple[str, ...] = dataclasses.field(metadata={'static': True})
  values: Any
  layer_names: tuple[str, ...] = dataclasses.field(default=(), metadata={'static': True})

  @classmethod
  def pack(cls, sums: Sums, norms: jax.Array) -> 'StepSums':
    """Packs (sum, weight) by name and the gradient norms."""
    flat = [jnp.asarray(number, jnp.float32) for pair in sums.values() for number in pair]
    return cls(tuple(sums), jnp.concatenate([jnp.stack(flat), norms.astype(jnp.float32)]))

  def with_layer_norms(
    self, layer_norms: NormsPerLayer | None, gradients: Params, params: Params, updates: Params
  ) -> 'StepSums':
    """Returns the sums with norms by layer; without `layer_norms` unchanged."""
    if layer_norms is None:
      return self
    values = jnp.concatenate([self.values, layer_norms(gradients, params, updates)])
    return dataclasses.replace(self, values=values, layer_names=layer_norms.names)

  @property
  def sums(self) -> Sums:
    """Pairs (sum, weight) by name."""
    return {
      name: (self.values[..., 2 * i], self.values[..., 2 * i + 1])
      for i, name in enumerate(self.names)
    }

  @property
  def norms(self) -> Any:
    """Gradient norm of each trained parameter, in the order of their sorted names."""
    return self.values[..., 2 * len(self.names) : self._num_values]

  @property
  def layer_norms(self) -> dict[str, Any]:
    """Norms by layer, by name."""
    return {name: self.values[..., self._num_values + i] for i, name in enumerate(self.layer_names)}

  @property
  def _num_values(self) -> int:
    """Number of the values before the norms by layer."""
    return self.values.shape[-1] - len(self.layer_names)

  @property
  def loss(self) -> float:
    """Mean loss of the step; waits for the device."""
    total, weight = jax.device_get(self).sums['loss']
    return float(total / weight)


class EvalSums(NamedTuple):
  """Results of an evaluation step.

  Attributes:
    sums: metrics of the batch as (sum, weight).
    examples: values of each row by metric, [batch]; those of `Task.example_metrics`.
  """

  sums: Sums
  examples: dict[str, jax.Array]
