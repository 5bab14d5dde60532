"""Second moments factored into rows and columns (Adafactor: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235).

The rule of T5, in which each layer's projection is one matrix [inputs, outputs]. Here layers, experts or heads with a
matrix of their own are the leading dimensions of a parameter, and inputs or outputs may be several dimensions.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from t2x.train.params import ParamInfo

# Smallest root mean square that scales an update, so that parameters that are 0 are trained.
MIN_SCALE = 1e-3

Axes = tuple[int, ...]


def factored_axes(info: ParamInfo, min_dim_size: int) -> tuple[Axes, Axes] | None:
  """Returns the axes of the smaller and of the larger side of each matrix.

  A parameter that is no matrix has its two largest dimensions as sides. None if the smaller side is below
  `min_dim_size`.
  """
  if info.matrix is not None:
    inputs, outputs = info.matrix_axes
    sides = sorted(zip(info.matrix, (inputs, outputs), strict=True), key=lambda side: side[0])
  else:
    first = len(info.stacked)
    order = first + np.argsort(info.shape[first:])[-2:]
    sides = [(info.shape[axis], (int(axis),)) for axis in order]
  if len(sides) < 2 or sides[0][0] < min_dim_size:
    return None
  return sides[0][1], sides[1][1]


class FactoredState(NamedTuple):
  """Moving averages of squared gradients by parameter name.

  Attributes:
    step: number of updates.
    rows: means over the larger side of each matrix, of factored parameters.
    columns: means over the smaller side.
    moments: of the other parameters.
  """

  step: Array
  rows: dict[str, Array]
  columns: dict[str, Array]
  moments: dict[str, Array]


def scale_by_factored_rms(
  infos: Mapping[str, ParamInfo], *, min_dim_size: int, decay_rate: float, eps: float
) -> optax.GradientTransformation:
  """Divides gradients by the root of a factored estimate of their second moments.

  Args:
    infos: metadata of the trained parameters.
    min_dim_size: matrices with a smaller side are not factored.
    decay_rate: the decay rate of the second moment at step t is 1 - t^-decay_rate.
    eps: added to squared gradients.
  """
  sides = {name: factored_axes(info, min_dim_size) for name, info in infos.items()}

  def init(params):
    def zeros(side: int) -> dict[str, Array]:
      """Returns zeros for the means over a side."""
      return {
        name: jnp.zeros(np.delete(infos[name].shape, axes[side]).tolist(), params[name].dtype)
        for name, axes in sides.items()
        if axes is not None
      }

    moments = {name: jnp.zeros_like(params[name]) for name, axes in sides.items() if axes is None}
    return FactoredState(jnp.zeros([], jnp.int32), zeros(1), zeros(0), moments)

  def update(grads, state, params=None):
    decay = 1.0 - jnp.array(state.step + 1, jnp.float32) ** -decay_rate

    def average(old: Array, new: Array) -> Array:
      return (decay * old + (1.0 - decay) * new).astype(old.dtype)

    updates, rows, columns, moments = {}, {}, {}, {}
    for name, grad in grads.items():
      axes, square = sides[name], jnp.square(grad) + eps
      if axes is None:
        moments[name] = average(state.moments[name], square)
        updates[name] = grad * moments[name] ** -0.5
        continue
      smaller, larger = axes
      rows[name] = average(state.rows[name], square.mean(axis=larger))
      columns[name] = average(state.columns[name], square.mean(axis=smaller))
      row = jnp.expand_dims(rows[name], larger)
      by_row = (row / row.mean(axis=smaller, keepdims=True)) ** -0.5
      updates[name] = grad * by_row * jnp.expand_dims(columns[name] ** -0.5, smaller)
    return updates, FactoredState(optax.safe_increment(state.step), rows, columns, moments)

  return optax.GradientTransformation(init, update)


def _rms(x: Array, info: ParamInfo) -> Array:
  """Returns the root mean square of each matrix, or of each stacked copy of another parameter."""
  copies = len(info.stacked) if info.matrix is None else info.matrix_axes[0][0]
  return jnp.sqrt(jnp.square(x).mean(axis=tuple(range(copies, x.ndim)), keepdims=True))


def clip_rms(infos: Mapping[str, ParamInfo], threshold: float) -> optax.GradientTransformation:
  """Scales updates so that the root mean square of each matrix is at most `threshold`."""
  return optax.stateless(
    lambda updates, _: {
      name: update / jnp.maximum(1.0, _rms(update, infos[name]) / threshold)
      for name, update in updates.items()
    }
  )


def scale_by_param_rms(infos: Mapping[str, ParamInfo]) -> optax.GradientTransformation:
  """Multiplies the update of each matrix by the root mean square of its values, at least `MIN_SCALE`."""
  return optax.stateless(
    lambda updates, params: {
      name: update * jnp.maximum(_rms(params[name], infos[name]), MIN_SCALE)
      for name, update in updates.items()
    }
  )
