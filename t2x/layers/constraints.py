"""Sharding constraints on activations, in terms of logical axes.

A layer names the logical axes of an array: `constrain(x, 'batch', 'length', 'embed')`. The `Layout` under
which the step is traced maps them to a mesh; without a layout nothing is added to the program. The
constraints are those of GSPMD (https://arxiv.org/abs/2105.04663).
"""

import dataclasses
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from t2x.base.step import step_context

Axis = str | EllipsisType | None


@runtime_checkable
class Layout(Protocol):
  """Maps logical axes of activations to shardings."""

  @property
  def mesh(self) -> Any:
    """The devices, a mesh of JAX."""

  def constrain(self, x: Array, axes: tuple[Axis, ...]) -> Array:
    """Returns `x` with the sharding of its logical `axes`."""

  def num_parts(self, axis: str) -> int:
    """Returns the number of devices that an axis is split over."""

  def mesh_axes(self, axis: str) -> tuple[str, ...]:
    """Returns the axes of the mesh that an axis is split over."""

  def map_shards(
    self,
    function: Callable[..., Any],
    in_axes: Sequence[tuple[str | None, ...]],
    out_axes: tuple[str | None, ...],
  ) -> Callable[..., Any]:
    """Returns a function that each device applies to its shards; see `map_shards`."""


def constrain(x: Array, *axes: Axis) -> Array:
  """Returns `x` with the sharding that the current layout gives to its logical axes.

  Args:
    x: an activation.
    axes: the logical name of each dimension, or None for a dimension that is not split. A leading `...`
      leaves the preceding dimensions to the compiler.

  Raises:
    UserError: the size of a dimension is not divisible by the number of devices that it is split over.
  """
  layout = step_context().layout
  return x if layout is None else layout.constrain(x, axes)


def num_parts(axis: str) -> int:
  """Returns the number of devices that a logical axis is split over; 1 without a layout."""
  layout = step_context().layout
  return 1 if layout is None else layout.num_parts(axis)


def mesh_axes(axis: str | None) -> tuple[str, ...]:
  """Returns the axes of the mesh, of more than one device, that a logical axis is split over; none without a layout."""
  layout = step_context().layout
  if layout is None or axis is None:
    return ()
  return tuple(name for name in layout.mesh_axes(axis) if layout.mesh.shape[name] > 1)


def num_devices() -> int:
  """Returns the number of devices of the mesh; 1 without a layout."""
  layout = step_context().layout
  return 1 if layout is None else layout.mesh.size


@dataclasses.dataclass(frozen=True)
class Split:
  """Devices that hold consecutive parts of a dimension.

  Attributes:
    mesh: the devices, a mesh of JAX.
    names: the axes of the mesh that the dimension is split over.
    num_parts: number of parts.
  """

  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
  names: tuple[str, ...]
  num_parts: int

  def map(
    self,
    function: Callable[..., Any],
    is_split: Sequence[bool],
    out_is_split: bool | Sequence[bool],
  ) -> Any:
    """Returns `function` applied by each device to its parts; other axes of the mesh are left to the compiler.

    Args:
      function: computes parts of arrays from parts. It may move data between devices by collectives over `names`.
      is_split: for each argument, an array or a tree of arrays, whether its first dimension is split or
        every device has a copy.
      out_is_split: the same for each output, a tree of booleans.
    """
    specs = {True: PartitionSpec(self.names), False: PartitionSpec()}
    return jax.shard_map(
      function,
      mesh=self.mesh,
      in_specs=tuple(specs[x] for x in is_split),
      out_specs=jax.tree.map(specs.get, out_is_split),
      axis_names=set(self.names),
      check_vma=False,
    )


def split_of(axis: str) -> Split | None:
  """Returns the devices that a logical axis is split over; None if it is not split."""
  layout = step_context().layout
  if layout is None or layout.num_parts(axis) == 1:
    return None
  return Split(layout.mesh, layout.mesh_axes(axis), layout.num_parts(axis))


def map_shards(
  function: Callable[..., Any],
  in_axes: Sequence[tuple[str | None, ...]],
  out_axes: tuple[str | None, ...],
) -> Callable[..., Any]:
  """Returns `function` applied by each device to its shards, for programs that the compiler cannot split,
  such as Pallas kernels. Without a layout it is `function` itself.

  Args:
    function: computes the shard of an array from the shards of its arguments, which it treats independently.
    in_axes: for each argument, an array or a tree of arrays, the logical name of each dimension, or None for
      a dimension that is not split.
    out_axes: the names of the first dimensions of the output, an array or a tree of arrays.

  Raises:
    UserError: when called, if a dimension is not divisible by the number of devices that it is split over.
  """
  layout = step_context().layout
  return function if layout is None else layout.map_shards(function, in_axes, out_axes)
