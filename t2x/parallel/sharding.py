"""Where each array of a train state, of a batch and of a step lives."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding, PartitionSpec

from t2x.arrays import name_of
from t2x.errors import UserError
from t2x.parallel.mesh import BATCH_AXES, Mesh, as_tuple

Rules = Mapping[str, Any]
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def batch_sharding(mesh: AnyMesh) -> NamedSharding:
  """Of arrays [batch, ...]: rows are spread over the axes `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def check_batch(mesh: AnyMesh, batch_size: int, name: str = 'Trainer.batch_size') -> None:
  """Raises UserError when a global batch, or a part of one, does not divide over the mesh."""
  parts = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
  if batch_size % parts:
    sizes = ' x '.join(f'{axis} {mesh.shape[axis]}' for axis in BATCH_AXES)
    raise UserError(
      f'{name} = {batch_size} does not divide over the mesh axes {sizes} = {parts}: '
      f'choose a multiple of {parts}, or set Mesh.num_devices'
    )


def check_length(mesh: AnyMesh, rules: Rules, length: int, name: str) -> None:
  """Raises UserError when rows of `length` tokens do not divide over the mesh.

  Args:
    mesh: the devices.
    rules: the strategy's table of activations.
    length: tokens in a row of the model.
    name: of what, for the error.
  """
  _split(mesh, rules, ('length',), (length,), name, 'Mesh.activation_rules')


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
  spec = _split(mesh, rules, axes, shape, name, 'Mesh.rules')
  while spec and spec[-1] is None:
    spec.pop()
  return PartitionSpec(*spec)


def _split(
  mesh: AnyMesh,
  rules: Rules,
  axes: Sequence[str | None],
  shape: Sequence[int],
  name: str,
  table: str,
) -> list[Any]:
  """The entries of a PartitionSpec, one a dimension; `name` and `table` are for the error."""
  taken: set[str] = set()
  spec: list[str | tuple[str, ...] | None] = []
  for axis, size in zip(axes, shape, strict=True):
    wanted = as_tuple(rules.get(axis) if axis is not None else None)
    free = tuple(one for one in wanted if one not in taken)
    taken.update(free)
    parts = math.prod(mesh.shape[one] for one in free)
    if size % parts:
      told = ' x '.join(f'{one} {mesh.shape[one]}' for one in free)
      raise UserError(
        f"{name} of shape {tuple(shape)}: its axis '{axis}' of size {size} does not divide over "
        f'the mesh axis {told} (the next that does is {-(-size // parts) * parts}); change one of '
        f'the two, or {table}'
      )
    spec.append(free[0] if len(free) == 1 else free or None)
  return spec


@dataclasses.dataclass(frozen=True)
class Activations:
  """Lays activations over a mesh by a strategy's table: a `t2x.layers.constraints.Layout`.

  Attributes:
    mesh: the devices.
    rules: logical axis -> mesh axis, several, or None.
  """

  mesh: AnyMesh
  rules: Rules

  @classmethod
  def of(cls, mesh: AnyMesh, settings: Mesh) -> 'Activations | None':
    """None for one device: there is nothing to lay out, and the program stays as it is."""
    return cls(mesh, settings.activation_rules) if mesh.size > 1 else None

  def constrain(self, x: jax.Array, axes: Sequence[str | EllipsisType | None]) -> jax.Array:
    """`x`, with a constraint on the dimensions that are named.

    Raises:
      UserError: a dimension that does not divide over its mesh axes.
    """
    free = x.ndim - len(axes) + 1 if axes[0] is ... else 0
    named = tuple(axis for axis in axes if not isinstance(axis, EllipsisType))
    name = f'an activation ({", ".join("..." if axis is ... else str(axis) for axis in axes)})'
    spec = _split(self.mesh, self.rules, named, x.shape[free:], name, 'Mesh.activation_rules')
    spec = [PartitionSpec.UNCONSTRAINED] * free + spec
    return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*spec)))

  def num_parts(self, axis: str) -> int:
    """Over how many devices an axis is split."""
    return math.prod(self.mesh.shape[one] for one in as_tuple(self.rules.get(axis)))


class Placed(Protocol):
  """The part of a parameter's metadata that decides where it lives."""

  @property
  def axes(self) -> Sequence[str | None]:
    """Logical axis of each dimension, without the axis of stacked layers."""

  @property
  def shape(self) -> Sequence[int]:
    """Shape of the array."""


def state_shardings(mesh: AnyMesh, rules: Rules, params: Mapping[str, Placed], tree: Any) -> Any:
  """Returns a NamedSharding for each leaf of a train state, in the same structure.

  A leaf under the key of a parameter (the parameter itself, its moments, its average) is laid out as the
  parameter if it has its shape. All else (counts, keys, Adafactor's rows and columns) is replicated.

  Args:
    mesh: the devices.
    rules: logical axis -> mesh axis, several, or None.
    params: metadata of the parameters by name.
    tree: arrays or their shapes.

  Raises:
    UserError: a dimension that does not divide over its mesh axes, with the parameter's name.
  """
  replicated = NamedSharding(mesh, PartitionSpec())
  shardings = {
    name: NamedSharding(mesh, partition_spec(mesh, rules, one.axes, one.shape, name))
    for name, one in params.items()
  }

  def of(path, leaf):
    name = str(getattr(path[-1], 'key', ''))
    has_its_shape = name in params and tuple(params[name].shape) == leaf.shape
    return shardings[name] if has_its_shape else replicated

  return jax.tree_util.tree_map_with_path(of, tree)


def check_shardings(expected: Any, state: Any) -> None:
  """Checks that no array of a train state was silently replicated or moved.

  Each leaf must have the expected sharding, and each array of a parameter's shape under a parameter's key
  (moments, averages, accumulators) the sharding of that parameter.

  Args:
    expected: shapes with shardings, as `TrainProgram.abstract`.
    state: the arrays, in the same structure; parameters are under `params`.

  Raises:
    UserError: a leaf has another sharding. Names the leaf.
  """
  wrong = []
  leaves = jax.tree_util.tree_leaves_with_path(state)
  params = {path[1:]: leaf for path, leaf in leaves if name_of(path[:1]) == 'params'}
  for (path, leaf), shape in zip(leaves, jax.tree.leaves(expected), strict=True):
    keys = (path[start:] for start in range(1, len(path)))
    owners = (params[key] for key in keys if key in params)
    owner = next((param for param in owners if param.shape == leaf.shape), leaf)
    for what, other in (('asked for', shape), ('its parameter', owner)):
      if not leaf.sharding.is_equivalent_to(other.sharding, leaf.ndim):
        wrong.append(f'{name_of(path)} {leaf.shape} is {_spec(leaf)}, {what} {_spec(other)}')
  if wrong:
    more = f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''
    raise UserError(f'after the first step {wrong[0]}{more}: the state is not laid out as asked')


def _spec(leaf: Any) -> str:
  spec = getattr(leaf.sharding, 'spec', leaf.sharding)
  return 'replicated' if leaf.sharding.is_fully_replicated else str(spec)
