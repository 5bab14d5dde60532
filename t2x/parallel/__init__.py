"""Meshes and shardings: the only code that names mesh axes."""

from t2x.parallel.mesh import MESH_AXES, RULES, Mesh
from t2x.parallel.sharding import (
  BATCH_AXES,
  batch_sharding,
  check_batch,
  partition_spec,
  state_shardings,
)

__all__ = [
  'BATCH_AXES',
  'MESH_AXES',
  'RULES',
  'Mesh',
  'batch_sharding',
  'check_batch',
  'partition_spec',
  'state_shardings',
]
