"""Meshes and shardings, the only code that names mesh axes; and the processes of a run."""

from t2x.parallel.cluster import Cluster, find_cluster
from t2x.parallel.mesh import MESH_AXES, RULES, Mesh
from t2x.parallel.processes import Processes, connect, process_part
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
  'Cluster',
  'Mesh',
  'Processes',
  'batch_sharding',
  'check_batch',
  'connect',
  'find_cluster',
  'partition_spec',
  'process_part',
  'state_shardings',
]
