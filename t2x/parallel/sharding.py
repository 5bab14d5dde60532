"""Shardings of train states, batches and activations."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding, PartitionSpec

from t2x.base.errors import UserError
from t2x.layers.arrays import name_of
from t2x.parallel.mesh import BATCH_AXES, Mesh, as_tuple

__all__ = [
  'Activations',
  'batch_sharding',
  'check_batch',
  'check_length',
  'check_shardings',
  'partition_spec',
  'state_shardings',
]

Rules = Mapping[str, Any]
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def batch_sharding(mesh: AnyMesh) -> NamedSharding:
  """Returns the sharding of arrays [batch, ...], whose rows are split over the axes `data`, `fsdp` and `expert`."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def check_batch(mesh: AnyMesh, batch_size: int, name: str = 'Trainer.batch_size') -> None:
  """Raises UserError if a global batch or a micro-batch does not divide evenly over the mesh."""
  parts = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
  if batch_size % parts:
    sizes = ' x '.join(f'{axis} {mesh.shape[axis]}' for axis in BATCH_AXES if mesh.shape[axis] > 1)
    raise UserError(
      f'{name} = {batch_size} does not divide over the mesh axes {sizes} = {parts}: '
      f'choose a multiple of {parts}, or set Mesh.num_devices'
    )


def check_length(mesh: AnyMesh, rules: Rules, length: int, name: str) -> None:
  """Raises UserError if rows of `length` tokens do not divide evenly over the mesh.

  Args:
    mesh: the devices.
    rules: `Mesh.activation_rules`.
    length: number of tokens in a row of the model.
    name: name of the row in the error.
  """
  _split(mesh, rules, ('length',), (length,), name, 'Mesh.activation_rules')


def partition_spec(
  mesh: AnyMesh,
  rules: Rules,
  axes: Sequence[str | None],
  shape: Sequence[int],
  name: str = 'a parameter',
) -> PartitionSpec:
  """Returns the mesh axes of each dimension of a parameter.

  A mesh axis splits at most one dimension: the first whose rule names it.

  Args:
    mesh: the devices.
    rules: logical axis -> mesh axis, several mesh axes, or None.
    axes: logical axis of each dimension of the parameter, including stacked ones.
    shape: shape of the parameter.
    name: name of the parameter in errors.

  Raises:
    UserError: a dimension does not divide evenly over its mesh axes.
  """
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
  """Returns one PartitionSpec entry per dimension; errors name the array `name` and the rules `table`."""
  spec: list[str | tuple[str, ...] | None] = []
  for axis, size, free in zip(axes, shape, _mesh_axes(rules, axes), strict=True):
    parts = math.prod(mesh.shape[mesh_axis] for mesh_axis in free)
    if size % parts:
      sizes = ' x '.join(f'{mesh_axis} {mesh.shape[mesh_axis]}' for mesh_axis in free)
      raise UserError(
        f"{name} of shape {tuple(shape)}: its axis '{axis}' of size {size} does not divide over "
        f'the mesh axis {sizes} (the next size that does is {-(-size // parts) * parts}); change the '
        f'size, the mesh axis or {table}'
      )
    spec.append(free[0] if len(free) == 1 else free or None)
  return spec


def _mesh_axes(rules: Rules, axes: Sequence[str | None]) -> list[tuple[str, ...]]:
  """Returns the mesh axes that split each dimension; a mesh axis splits the first that its rules name."""
  used: set[str] = set()
  result = []
  for axis in axes:
    requested = as_tuple(rules.get(axis) if axis is not None else None)
    free = tuple(mesh_axis for mesh_axis in requested if mesh_axis not in used)
    used.update(free)
    result.append(free)
  return result


@dataclasses.dataclass(frozen=True)
class Activations:
  """Constrains the sharding of activations; implements `t2x.layers.constraints.Layout`.

  Attributes:
    mesh: the devices.
    rules: logical axis -> mesh axis, several mesh axes, or None.
  """

  mesh: AnyMesh
  rules: Rules

  @classmethod
  def of(cls, mesh: AnyMesh, settings: Mesh) -> 'Activations | None':
    """Returns the activation layout of a mesh, or None for a single device, which needs no constraints."""
    return cls(mesh, settings.activation_rules) if mesh.size > 1 else None

  def __hash__(self) -> int:
    return hash((self.mesh, tuple(sorted(self.rules.items()))))

  def whole_rows(self, batch: bool = True) -> 'Activations':
    """Returns the layout that does not split rows along their length; without `batch`, neither the batch, nor the
    experts, which devices with rows of their own exchange."""
    axes = ['length', 'slots']
    if not batch:
      axes += ['batch', 'looked_up_batch', 'dispatched', 'experts']
    return dataclasses.replace(self, rules={**self.rules, **dict.fromkeys(axes)})

  def constrain(self, x: jax.Array, axes: Sequence[str | EllipsisType | None]) -> jax.Array:
    """Returns `x` with a sharding constraint on the dimensions that `axes` names.

    The dimension 'vocab' may be split unevenly: logits do not have the padding of the table.

    Raises:
      UserError: another dimension does not divide evenly over its mesh axes.
    """
    free = x.ndim - len(axes) + 1 if axes[0] is ... else 0
    named = tuple(axis for axis in axes if not isinstance(axis, EllipsisType))
    name = f'an activation ({", ".join("..." if axis is ... else str(axis) for axis in axes)})'
    shape = [
      -(-size // self.num_parts(axis)) * self.num_parts(axis) if axis == 'vocab' else size
      for axis, size in zip(named, x.shape[free:], strict=True)
    ]
    spec = _split(self.mesh, self.rules, named, shape, name, 'Mesh.activation_rules')
    spec = [PartitionSpec.UNCONSTRAINED] * free + spec
    return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*spec)))

  def num_parts(self, axis: str) -> int:
    """Returns the number of parts into which a logical axis is split."""
    return math.prod(self.mesh.shape[mesh_axis] for mesh_axis in self.mesh_axes(axis))

  def mesh_axes(self, axis: str) -> tuple[str, ...]:
    """Returns the axes of the mesh over which a logical axis is split."""
    return as_tuple(self.rules.get(axis))

  def map_shards(
    self,
    function: Callable[..., Any],
    in_axes: Sequence[Sequence[str | None]],
    out_axes: Sequence[str | None],
  ) -> Callable[..., Any]:
    """Returns a function that each device applies to its shards; see `t2x.layers.constraints.map_shards`.

    Raises:
      UserError: when called, if a dimension does not divide evenly over its mesh axes.
    """
    specs = [PartitionSpec(*_mesh_axes(self.rules, axes)) for axes in (*in_axes, out_axes)]
    # Replication is not checked: kernels do not state over which axes their outputs vary.
    mapped = jax.shard_map(
      function, mesh=self.mesh, in_specs=tuple(specs[:-1]), out_specs=specs[-1], check_vma=False
    )

    def call(*arguments: object) -> Any:
      pairs = zip(arguments, in_axes, strict=True)
      return mapped(*(jax.tree.map(lambda x, a=axes: self.constrain(x, a), y) for y, axes in pairs))

    return call


class AxesAndShape(Protocol):
  """Interface of parameter metadata that determines a sharding."""

  @property
  def all_axes(self) -> Sequence[str | None]:
    """Logical axis of each dimension, including stacked ones."""

  @property
  def shape(self) -> Sequence[int]:
    """Shape of the array."""


def state_shardings(
  mesh: AnyMesh, rules: Rules, params: Mapping[str, AxesAndShape], tree: object
) -> Any:
  """Returns a NamedSharding for each leaf of a train state, in the same structure.

  A leaf under the key of a parameter (the parameter itself, its moments, its average) is sharded like the
  parameter if it has the same shape. Other leaves (counts, keys, Adafactor's rows and columns) are
  replicated.

  Args:
    mesh: the devices.
    rules: logical axis -> mesh axis, several mesh axes, or None.
    params: metadata of the parameters by name.
    tree: arrays or their shapes.

  Raises:
    UserError: a dimension does not divide evenly over its mesh axes. Names the parameter.
  """
  replicated = NamedSharding(mesh, PartitionSpec())
  shardings = {
    name: NamedSharding(mesh, partition_spec(mesh, rules, param.all_axes, param.shape, name))
    for name, param in params.items()
  }

  def leaf_sharding(path, leaf):
    name = str(getattr(path[-1], 'key', ''))
    same_shape = name in params and tuple(params[name].shape) == leaf.shape
    return shardings[name] if same_shape else replicated

  return jax.tree_util.tree_map_with_path(leaf_sharding, tree)


def check_shardings(expected: object, state: object) -> None:
  """Checks that no array of a train state was silently replicated or moved.

  Each leaf must have the expected sharding. Each array under a parameter's key that has the parameter's
  shape (moments, averages, accumulators) must have the parameter's sharding.

  Args:
    expected: shapes with shardings, as `Program.abstract`.
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
    for text, other in (('expected', shape), ('but its parameter is', owner)):
      if not leaf.sharding.is_equivalent_to(other.sharding, leaf.ndim):
        wrong.append(f'{name_of(path)} {leaf.shape} is {_format(leaf)}, {text} {_format(other)}')
  if wrong:
    more = f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''
    raise UserError(
      f'the train state has the wrong sharding after the first step: {wrong[0]}{more}'
    )


def _format(leaf: jax.Array | jax.ShapeDtypeStruct) -> str:
  spec = getattr(leaf.sharding, 'spec', leaf.sharding)
  return 'replicated' if leaf.sharding.is_fully_replicated else str(spec)
