"""Norms of gradients, parameters and updates by layer, computed inside the train step."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2x.train.params import ParamInfo

KINDS = ('gradient', 'parameter', 'update')


class LayerNorms:
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

  def __call__(self, gradients: Any, params: Any, updates: Any) -> jax.Array:
    """Returns the norms, float32 [num_names].

    Args:
      gradients: gradients of the trained parameters, before clipping.
      params: the trained parameters before the step.
      updates: what the optimizer adds to the parameters.
    """
    return jnp.concatenate([self._norms(tree) for tree in (gradients, params, updates)])

  def _norms(self, tree: Any) -> jax.Array:
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
