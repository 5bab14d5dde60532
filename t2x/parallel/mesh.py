"""The devices as a grid with named axes, and the table that lays parameters over it.

Axes of size 1 always exist, so no sharding is written differently when one of them grows.
"""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType

import jax
from jax.sharding import AxisType

from t2x.errors import UserError

__all__ = ['MESH_AXES', 'RULES', 'Mesh']

MESH_AXES = ('data', 'fsdp', 'stage', 'expert', 'context', 'tensor')

MeshAxes = str | tuple[str, ...] | None

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


@dataclasses.dataclass(frozen=True)
class Mesh:
  """How many devices each mesh axis has, and what is split over it.

  Attributes:
    data: batches, parameters replicated. -1 (of any one axis): the devices that are left.
    fsdp: batches and parameters (https://arxiv.org/abs/1910.02054).
    stage: reserved for pipeline stages.
    expert: experts of a mixture.
    context: the length of sequences.
    tensor: heads, hidden features and vocabulary (https://arxiv.org/abs/1909.08053).
    num_devices: uses the first so many devices; None uses all.
    rules: the strategy: logical axis of a parameter -> mesh axis, several, or None (replicated).
  """

  data: int = -1
  fsdp: int = 1
  stage: int = 1
  expert: int = 1
  context: int = 1
  tensor: int = 1
  num_devices: int | None = None
  rules: Mapping[str, str | tuple[str, ...] | None] = dataclasses.field(
    default_factory=lambda: dict(RULES)
  )

  def __post_init__(self):
    sizes = self._asked()
    for axis, size in sizes.items():
      if size < 1 and size != -1:
        raise UserError(f'Mesh.{axis} = {size}: must be at least 1, or -1 for what is left')
    if list(sizes.values()).count(-1) > 1:
      free = ' and '.join(f'Mesh.{axis}' for axis, size in sizes.items() if size == -1)
      raise UserError(f'{free} are -1: only one axis can take what is left')
    for name, axes in self.rules.items():
      for axis in _as_tuple(axes):
        if axis not in MESH_AXES:
          known = ', '.join(MESH_AXES)
          raise UserError(f"Mesh.rules: '{name}' goes to '{axis}', which is none of {known}")

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
    types = (AxisType.Auto,) * len(MESH_AXES)
    shape = tuple(sizes[axis] for axis in MESH_AXES)
    return jax.make_mesh(shape, MESH_AXES, axis_types=types, devices=devices)


def _as_tuple(axes: MeshAxes) -> tuple[str, ...]:
  if axes is None:
    return ()
  return (axes,) if isinstance(axes, str) else tuple(axes)
