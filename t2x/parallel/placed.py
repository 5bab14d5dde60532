"""Models with the layout of their devices: whatever runs them traces the program that training traces."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t2x.base.step import in_step
from t2x.parallel.mesh import BATCH_AXES
from t2x.parallel.sharding import Activations

__all__ = ['Placed', 'module_of', 'runs_model', 'spread_over', 'whole_rows']

Function = TypeVar('Function', bound=Callable[..., Any])


@functools.partial(jax.tree_util.register_dataclass, data_fields=['model'], meta_fields=['layout'])
@dataclasses.dataclass(frozen=True)
class Placed:
  """A model with its parameters on the devices of a mesh.

  Functions decorated with `runs_model`, and calls of it, are traced in `in_step(layout=...)`, as train steps are.

  Attributes:
    model: the module, to read its settings: what it computes outside of a layout is not sharded as in training.
    layout: sharding of its activations; None for one device.
  """

  model: Any
  layout: Activations | None

  def __call__(self, *args: Any, **settings: Any) -> Any:
    """Returns the output of the model."""
    with in_step(layout=self.layout):
      return self.model(*args, **settings)


def runs_model(function: Function) -> Function:
  """Decorates a function whose first argument is a model, which may be `Placed`: the function gets the module, and is
  traced in the layout. A compiled function is decorated before it is compiled."""

  @functools.wraps(function)
  def in_layout(model: object, *args: object, **settings: object) -> Any:
    if not isinstance(model, Placed):
      return function(model, *args, **settings)
    with in_step(layout=model.layout):
      return function(model.model, *args, **settings)

  return in_layout  # type: ignore[return-value]


def module_of(model: object) -> Any:
  """Returns the module of a model, which may be `Placed`, to read what it is made of."""
  return model.model if isinstance(model, Placed) else model


def whole_rows(model: object, batch: bool = True) -> Any:
  """Returns a model that does not split rows along their length, for rows of any length.

  Args:
    model: the model; without a layout it is returned as it is.
    batch: whether it may split the batch.
  """
  if not isinstance(model, Placed) or model.layout is None:
    return model
  return Placed(model.model, model.layout.whole_rows(batch))


def spread_over(model: object, batch: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
  """Returns two functions that place arrays on the model's mesh, and gather them.

  The first shards arrays [batch, ...], equal on all processes, by row over the axes of the mesh that split a batch. If
  they do not divide the batch, a `Placed` model gets copies of the last row, and arrays of another model are
  replicated. The second replicates sharded arrays [batch, ...] on every process, without these copies.
  """
  layout = model.layout if isinstance(model, Placed) else None
  meshes = (leaf.sharding.mesh for leaf in jax.tree.leaves(model) if _has_mesh(leaf))
  mesh = next(meshes, None) if layout is None else layout.mesh
  if mesh is None:
    return jnp.asarray, lambda arrays: arrays
  axes = [axis for axis in BATCH_AXES if axis in mesh.shape]
  added = -batch % math.prod(mesh.shape[axis] for axis in axes)
  replicated = NamedSharding(mesh, PartitionSpec())
  by_row = NamedSharding(mesh, PartitionSpec(tuple(axes)))
  if added and layout is None:
    added, by_row = 0, replicated

  def spread(array: object) -> jax.Array:
    array, sharding = np.asarray(array), replicated
    # Token metadata shared by all rows has a batch of 1.
    if len(array) == batch:
      array, sharding = np.concatenate([array, np.repeat(array[-1:], added, axis=0)]), by_row
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

  def gather(arrays: object) -> Any:
    if not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(arrays)):
      arrays = jax.jit(lambda x: x, out_shardings=replicated)(arrays)
    return jax.tree.map(lambda a: a[:batch], arrays) if added else arrays

  return spread, gather


def _has_mesh(leaf: object) -> bool:
  return isinstance(getattr(leaf, 'sharding', None), NamedSharding)
