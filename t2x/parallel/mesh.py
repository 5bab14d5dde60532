"""The devices as a grid with named axes, and the tables that lay arrays over it: the strategy.

Axes of size 1 always exist, so no sharding is written differently when one of them grows.
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

from t2x.errors import UserError
from t2x.ranges import Count, Range

MESH_AXES = ('data', 'fsdp', 'stage', 'expert', 'context', 'tensor')

# Those that split a batch.
BATCH_AXES = ('data', 'fsdp')

MeshAxes = str | tuple[str, ...] | None

# -1: the devices that are left.
MeshSize = Annotated[int, Range('-1 <= x <= 16777216')]

_AUTO = (AxisType.Auto,) * len(MESH_AXES)

# Logical axis of a parameter -> mesh axes that it is split over. What is not named is replicated.
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

# Logical axis of an activation -> mesh axes. Not named: each device has the whole of it.
ACTIVATION_RULES: Mapping[str, MeshAxes] = MappingProxyType(
  {
    'batch': BATCH_AXES,
    'experts': 'expert',
    'heads': 'tensor',
    'kv_heads': 'tensor',
    'length': 'context',
    'looked_up': 'fsdp',
    'looked_up_batch': 'data',
    'mlp': 'tensor',
    'vocab': 'tensor',
  }
)


@dataclasses.dataclass(frozen=True)
class Mesh:
  """How many devices each mesh axis has, and what is split over it.

  Neighbours in the last axes are the closest in the network, those in the first the furthest: of
  several slices or nodes, each is one step of `data` where its size allows.

  Attributes:
    data: batches, parameters replicated. -1 (of any one axis): the devices that are left.
    fsdp: batches and parameters (https://arxiv.org/abs/1910.02054).
    stage: reserved for pipeline stages.
    expert: experts of a mixture.
    context: the length of sequences.
    tensor: heads, hidden features and vocabulary (https://arxiv.org/abs/1909.08053).
    num_devices: uses the first so many devices; None uses all.
    rules: logical axis of a parameter -> mesh axis, several, or None (replicated). Given, it takes
      the place of the whole table.
    activation_rules: the same for activations, at the borders of blocks and where they matter
      inside.
  """

  data: MeshSize = -1
  fsdp: MeshSize = 1
  stage: MeshSize = 1
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
    sizes = self._asked()
    for axis, size in sizes.items():
      if size < 1 and size != -1:
        raise UserError(f'Mesh.{axis} = {size}: must be at least 1, or -1 for what is left')
    if list(sizes.values()).count(-1) > 1:
      free = ' and '.join(f'Mesh.{axis}' for axis, size in sizes.items() if size == -1)
      raise UserError(f'{free} are -1: only one axis can take what is left')
    for table in ('rules', 'activation_rules'):
      for name, axes in getattr(self, table).items():
        for axis in as_tuple(axes):
          if axis not in MESH_AXES:
            known = ', '.join(MESH_AXES)
            raise UserError(f"Mesh.{table}: '{name}' goes to '{axis}', which is none of {known}")

  def _asked(self) -> dict[str, int]:
    return {axis: getattr(self, axis) for axis in MESH_AXES}

  def sizes(self, num_devices: int) -> dict[str, int]:
    """Devices along each axis.

    Raises:
      UserError: the sizes do not multiply to `num_devices`.
    """
    sizes = self._asked()
    told = ' x '.join(f'{axis} {size}' for axis, size in sizes.items() if size != 1) or '1'
    known = math.prod(size for size in sizes.values() if size != -1)
    if (-1 in sizes.values() and num_devices % known) or (
      -1 not in sizes.values() and num_devices != known
    ):
      raise UserError(
        f'Mesh: {told} does not fit {num_devices} device{"s" * (num_devices != 1)}: '
        'set one axis to -1 for what is left, or Mesh.num_devices'
      )
    return {axis: num_devices // known if size == -1 else size for axis, size in sizes.items()}

  def build(self) -> jax.sharding.Mesh:
    """The mesh over this process group's devices, in an order that suits their network.

    Raises:
      UserError: the sizes do not fit the number of devices.
    """
    devices = jax.devices()
    if self.num_devices is not None:
      if not 1 <= self.num_devices <= len(devices):
        raise UserError(
          f'Mesh.num_devices = {self.num_devices}, but there are {len(devices)} devices'
        )
      devices = devices[: self.num_devices]
    sizes = self.sizes(len(devices))
    shape = tuple(sizes[axis] for axis in MESH_AXES)
    slices = len({getattr(device, 'slice_index', None) for device in devices})
    if slices == 1:
      return jax.make_mesh(shape, MESH_AXES, axis_types=_AUTO, devices=devices)
    across = _across_slices(shape, slices)
    inside = tuple(size // parts for size, parts in zip(shape, across, strict=True))
    grid = mesh_utils.create_hybrid_device_mesh(inside, across, devices)
    return jax.sharding.Mesh(np.asarray(grid), MESH_AXES, axis_types=_AUTO)

  def abstract(self, num_devices: int | None = None) -> AbstractMesh:
    """The mesh over so many devices that need not be there.

    None: as many as the sizes say, -1 being 1.

    Raises:
      UserError: the sizes do not fit the number of devices.
    """
    if num_devices is None:
      num_devices = self.num_devices or math.prod(abs(size) for size in self._asked().values())
    sizes = self.sizes(num_devices)
    return AbstractMesh(tuple(sizes[axis] for axis in MESH_AXES), MESH_AXES, axis_types=_AUTO)


def _across_slices(shape: Sequence[int], slices: int) -> tuple[int, ...]:
  """How many parts of each axis are in different slices: the first axes go across slow links.

  Raises:
    UserError: a slice would hold a part of a part.
  """
  left, across = slices, []
  for size in shape:
    across.append(math.gcd(size, left))
    left //= across[-1]
  if left != 1:
    told = ' x '.join(f'{axis} {size}' for axis, size in zip(MESH_AXES, shape, strict=True))
    raise UserError(
      f'Mesh: {told} does not divide over {slices} slices: make Mesh.data a multiple of {slices}'
    )
  return tuple(across)


def as_tuple(axes: MeshAxes) -> tuple[str, ...]:
  """Mesh axes as a tuple, whatever way a table has them."""
  if axes is None:
    return ()
  return (axes,) if isinstance(axes, str) else tuple(axes)
