"""Device meshes with named axes, and the rules that map logical axes of arrays to mesh axes.

Every mesh has all axes, some of size 1, so shardings do not depend on which axes are used.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Range

__all__ = ['ACTIVATION_RULES', 'MESH_AXES', 'RULES', 'Mesh', 'as_tuple']

MESH_AXES = ('data', 'fsdp', 'expert', 'context', 'tensor')

# Mesh axes that split a batch.
BATCH_AXES = ('data', 'fsdp', 'expert')

MeshAxes = str | tuple[str, ...] | None

# -1: all remaining devices.
MeshSize = Annotated[int, Range('-1 <= x <= 16777216')]

_AUTO = (AxisType.Auto,) * len(MESH_AXES)

# Logical axis of a parameter -> mesh axes that split it. Other axes are replicated.
RULES: Mapping[str, MeshAxes] = MappingProxyType(
  {
    'embed': 'fsdp',
    'experts': 'expert',
    'heads': 'tensor',
    'kv_heads': 'tensor',
    'mlp': 'tensor',
    'vocab': 'tensor',
  }
)

# Logical axis of an activation -> mesh axes that split it. Other axes are replicated.
ACTIVATION_RULES: Mapping[str, MeshAxes] = MappingProxyType(
  {
    'batch': BATCH_AXES,
    # Rows whose tokens are at their experts: the axis `expert` splits the experts instead of the rows.
    'dispatched': ('data', 'fsdp'),
    'experts': 'expert',
    'heads': 'tensor',
    'kv_heads': 'tensor',
    'length': 'context',
    'looked_up': ('fsdp', 'expert'),
    'looked_up_batch': 'data',
    'mlp': 'tensor',
    # Places for the tokens of a row at an expert.
    'slots': 'context',
    'vocab': 'tensor',
  }
)


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Number of devices along each mesh axis, and the rules that split arrays over the axes.

  Devices that are neighbours along the last axes are close in the network, along the first axes far apart.
  With several slices or nodes, each is one index of `data` if its size allows.

  Attributes:
    data: splits batches, replicates parameters. -1 (for at most one axis): all remaining devices.
    fsdp: splits batches and parameters (https://arxiv.org/abs/1910.02054).
    expert: splits batches, and the experts of a mixture (https://arxiv.org/abs/2006.16668).
    context: splits sequences along their length.
    tensor: splits heads, hidden features and vocabulary (https://arxiv.org/abs/1909.08053).
    num_devices: number of devices to use, the first ones; None uses all.
    rules: logical axis of a parameter -> mesh axis, several mesh axes, or None (replicated). Replaces the
      default table.
    activation_rules: the same for activations, which are constrained at the boundaries of blocks and at
      selected places within.
  """

  data: MeshSize = -1
  fsdp: MeshSize = 1
  expert: MeshSize = 1
  context: MeshSize = 1
  tensor: MeshSize = 1
  num_devices: Count | None = None
  rules: Mapping[str, str | tuple[str, ...] | None] = dataclasses.field(
    default_factory=lambda: dict(RULES)
  )
  activation_rules: Mapping[str, str | tuple[str, ...] | None] = dataclasses.field(
    default_factory=lambda: dict(ACTIVATION_RULES)
  )

  def __post_init__(self):
    sizes = self._configured_sizes()
    for axis, size in sizes.items():
      if size < 1 and size != -1:
        raise UserError(
          f'Mesh.{axis} = {size}: must be at least 1, or -1 for the remaining devices'
        )
    if list(sizes.values()).count(-1) > 1:
      free = ' and '.join(f'Mesh.{axis}' for axis, size in sizes.items() if size == -1)
      raise UserError(f'{free} are -1: only one axis can take the remaining devices')
    for table in ('rules', 'activation_rules'):
      for name, axes in getattr(self, table).items():
        for axis in as_tuple(axes):
          if axis not in MESH_AXES:
            allowed = ', '.join(MESH_AXES)
            raise UserError(f"Mesh.{table}: '{name}' maps to '{axis}': must be one of {allowed}")

  def _configured_sizes(self) -> dict[str, int]:
    return {axis: getattr(self, axis) for axis in MESH_AXES}

  def sizes(self, num_devices: int) -> dict[str, int]:
    """Returns the number of devices along each axis of a mesh of `num_devices`.

    Raises:
      UserError: the product of the sizes is not `num_devices`.
    """
    sizes = self._configured_sizes()
    shape = ' x '.join(f'{axis} {size}' for axis, size in sizes.items() if size != 1) or '1'
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if (-1 in sizes.values() and num_devices % fixed) or (
      -1 not in sizes.values() and num_devices != fixed
    ):
      raise UserError(
        f'Mesh: {shape} does not fit {num_devices} device{"s" * (num_devices != 1)}: '
        'set one axis to -1 for the remaining devices, or set Mesh.num_devices'
      )
    return {axis: num_devices // fixed if size == -1 else size for axis, size in sizes.items()}

  def build(self) -> jax.sharding.Mesh:
    """Builds the mesh over the devices of all processes, ordered by their network topology.

    Raises:
      UserError: the sizes do not fit the number of devices.
    """
    devices = jax.devices()
    if self.num_devices is not None:
      if not 1 <= self.num_devices <= len(devices):
        raise UserError(
          f'Mesh.num_devices = {self.num_devices}: must be at least 1 and at most {len(devices)}, the '
          'number of devices'
        )
      devices = devices[: self.num_devices]
    sizes = self.sizes(len(devices))
    shape = tuple(sizes[axis] for axis in MESH_AXES)
    slices = len({getattr(device, 'slice_index', None) for device in devices})
    if slices == 1:
      return jax.make_mesh(shape, MESH_AXES, axis_types=_AUTO, devices=devices)
    across = _split_over_slices(shape, slices)
    inside = tuple(size // parts for size, parts in zip(shape, across, strict=True))
    grid = mesh_utils.create_hybrid_device_mesh(inside, across, devices)
    return jax.sharding.Mesh(np.asarray(grid), MESH_AXES, axis_types=_AUTO)

  def abstract(self, num_devices: int | None = None) -> AbstractMesh:
    """Returns an abstract mesh of `num_devices`, which need not exist.

    Args:
      num_devices: number of devices; None: `Mesh.num_devices` or the product of the sizes, with -1 as 1.

    Raises:
      UserError: the sizes do not fit the number of devices.
    """
    if num_devices is None:
      num_devices = self.num_devices or math.prod(
        abs(size) for size in self._configured_sizes().values()
      )
    sizes = self.sizes(num_devices)
    return AbstractMesh(tuple(sizes[axis] for axis in MESH_AXES), MESH_AXES, axis_types=_AUTO)


def _split_over_slices(shape: Sequence[int], slices: int) -> tuple[int, ...]:
  """Returns the number of slices along each axis; the first axes cross the slow links between slices.

  Raises:
    UserError: the axes do not divide evenly over the slices.
  """
  remaining, across = slices, []
  for size in shape:
    across.append(math.gcd(size, remaining))
    remaining //= across[-1]
  if remaining != 1:
    sizes = ' x '.join(f'{axis} {size}' for axis, size in zip(MESH_AXES, shape, strict=True))
    raise UserError(
      f'Mesh: {sizes} does not divide over {slices} slices: make Mesh.data a multiple of {slices}'
    )
  return tuple(across)


def as_tuple(axes: MeshAxes) -> tuple[str, ...]:
  """Returns the mesh axes of a rule as a tuple."""
  if axes is None:
    return ()
  return (axes,) if isinstance(axes, str) else tuple(axes)
