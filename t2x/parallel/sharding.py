"""Where each array of a train state and of a batch lives."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from t2x.errors import UserError

__all__ = ['BATCH_AXES', 'batch_sharding', 'check_batch', 'partition_spec', 'state_shardings']

# Mesh axes that split a batch.
BATCH_AXES = ('data', 'fsdp')

Rules = Mapping[str, Any]
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def batch_sharding(mesh: AnyMesh) -> NamedSharding:
  """Of arrays [batch, ...]: rows are spread over the axes `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def check_batch(mesh: AnyMesh, batch_size: int, name: str = 'Trainer.batch_size') -> None:
  """Raises UserError when a global batch does not divide over the mesh."""
  parts = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
  if batch_size % parts:
    sizes = ' x '.join(f'{axis} {mesh.shape[axis]}' for axis in BATCH_AXES)
    raise UserError(
      f'{name} = {batch_size} does not divide over the mesh axes {sizes} = {parts}: '
      f'choose a multiple of {parts}, or set Mesh.num_devices'
    )


def partition_spec(
  mesh: AnyMesh,
  rules: Rules,
  axes: Sequence[str | None],
  shape: Sequence[int],
  name: str = 'a parameter',
) -> PartitionSpec:
  """The mesh axes of each dimension of a parameter.

  A mesh axis splits one dimension at most: the first that asks for it.

  Args:
    mesh: the devices.
    rules: logical axis -> mesh axis, several, or None.
    axes: the parameter's logical axes; a leading dimension more in `shape` is 'layers'.
    shape: its shape.
    name: for the error.

  Raises:
    UserError: a dimension that does not divide over its mesh axes.
  """
  if len(shape) == len(axes) + 1:
    axes = ('layers', *axes)
  taken: set[str] = set()
  spec: list[str | tuple[str, ...] | None] = []
  for axis, size in zip(axes, shape, strict=True):
    wanted = rules.get(axis) if axis is not None else None
    wanted = (wanted,) if isinstance(wanted, str) else tuple(wanted or ())
    free = tuple(one for one in wanted if one not in taken)
    taken.update(free)
    parts = math.prod(mesh.shape[one] for one in free)
    if size % parts:
      told = ' x '.join(f'{one} {mesh.shape[one]}' for one in free)
      raise UserError(
        f"{name} of shape {tuple(shape)}: its axis '{axis}' of size {size} does not divide over "
        f'the mesh axis {told}; change one of the two, or Mesh.rules'
      )
    spec.append(free[0] if len(free) == 1 else free or None)
  while spec and spec[-1] is None:
    spec.pop()
  return PartitionSpec(*spec)


def state_shardings(mesh: AnyMesh, rules: Rules, tree: Any) -> Any:
  """A NamedSharding for each leaf of a train state (or of a bare model), in the same structure.

  The first module of the tree is the model. Optimizer states and averages hold trees like it: a
  leaf of the parameter's shape is laid out as the parameter. All else (counts, keys, Adafactor's
  rows and columns) is replicated.

  Args:
    mesh: the devices.
    rules: logical axis -> mesh axis, several, or None.
    tree: arrays or their shapes; parameters are `nnx.Variable`s with metadata `axes`.

  Raises:
    UserError: a dimension that does not divide over its mesh axes, with the parameter's name.
  """
  replicated = NamedSharding(mesh, PartitionSpec())
  model: dict[str, NamedSharding] = {}
  shapes: dict[str, tuple[int, ...]] = {}

  def of_variable(path, variable):
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    axes = variable.get_metadata().get('axes') if isinstance(variable, nnx.Variable) else None

    def of_leaf(leaf):
      if axes is None:
        return replicated
      if name not in shapes:
        spec = partition_spec(mesh, rules, axes, leaf.shape, name)
        model[name], shapes[name] = NamedSharding(mesh, spec), tuple(leaf.shape)
      return model[name] if tuple(leaf.shape) == shapes[name] else replicated

    return jax.tree.map(of_leaf, variable)

  def of_part(part):
    if not isinstance(part, nnx.Module):
      return replicated
    return jax.tree_util.tree_map_with_path(
      of_variable, part, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )

  return jax.tree.map(of_part, tree, is_leaf=lambda x: isinstance(x, nnx.Module))
