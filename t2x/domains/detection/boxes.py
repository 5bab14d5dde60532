"""Boxes in the loss of detectors: generalised intersection over union (https://arxiv.org/abs/1902.09630) and the
matching of predictions and objects with the least cost (Hungarian algorithm)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def corners(boxes: Float[Array, '*rest 4']) -> Float[Array, '*rest 4']:
  """Returns left, top, right and bottom of boxes of centre, width and height."""
  centre, half = boxes[..., :2], boxes[..., 2:] / 2
  return jnp.concatenate([centre - half, centre + half], axis=-1)


def overlaps(
  a: Float[Array, '*#rest 4'], b: Float[Array, '*#rest 4']
) -> tuple[Float[Array, '...'], Float[Array, '...']]:
  """Returns the intersection over union of boxes of centre, width and height, which broadcast, and the generalised one,
  which is smaller by the share of the smallest box around both that neither covers."""

  def area(first, last):
    width, height = jnp.moveaxis(jnp.maximum(last - first, 0), -1, 0)
    return width * height

  a, b = corners(a), corners(b)
  (first, last), (others, others_last) = ((c[..., :2], c[..., 2:]) for c in (a, b))
  shared = area(jnp.maximum(first, others), jnp.minimum(last, others_last))
  union = area(first, last) + area(others, others_last) - shared
  around = area(jnp.minimum(first, others), jnp.maximum(last, others_last))
  iou = shared / union
  return iou, iou - (around - union) / around


def least_cost(
  cost: Float[Array, '*rest queries objects'], present: Bool[Array, '*rest objects']
) -> Int[Array, '*rest queries']:
  """Returns the object of each query, of the assignment of present objects to queries with the least total cost.

  Other queries get the objects that are not present, in their order. It runs on the host, and has no gradient.

  Args:
    cost: square matrices.
    present: objects that must be assigned.
  """
  shape = jax.ShapeDtypeStruct(cost.shape[:-1], jnp.int32)
  arrays = jax.lax.stop_gradient((cost, present))
  return jax.pure_callback(_assigned, shape, *arrays, vmap_method='broadcast_all')


def _assigned(cost: Any, present: Any) -> np.ndarray:
  from scipy.optimize import linear_sum_assignment

  cost, present = np.asarray(cost, np.float64), np.asarray(present)
  largest = float(np.finfo(np.float32).max)
  # Invalid predictions are matched last.
  cost = np.nan_to_num(cost, nan=largest, posinf=largest, neginf=largest)
  result = np.empty(cost.shape[:-1], np.int32)
  for index in np.ndindex(result.shape[:-1]):
    objects = np.flatnonzero(present[index])
    queries, places = linear_sum_assignment(cost[index][:, objects])
    row = np.full(result.shape[-1], -1, np.int32)
    row[queries] = objects[places]
    row[row < 0] = np.flatnonzero(~present[index])
    result[index] = row
  return result
