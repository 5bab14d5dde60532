"""Device meshes, shardings and multi-process runs. Only this package names mesh axes."""

from t2x.parallel.cluster import Cluster, find_cluster
from t2x.parallel.mesh import ACTIVATION_RULES, MESH_AXES, RULES, Mesh, as_tuple
from t2x.parallel.processes import Processes, connect, process_part
from t2x.parallel.report import sharding_table
from t2x.parallel.sharding import (
  Activations,
  batch_sharding,
  check_batch,
  check_length,
  check_shardings,
  partition_spec,
  state_shardings,
)

__all__ = [
  'ACTIVATION_RULES',
  'MESH_AXES',
  'RULES',
  'Activations',
  'Cluster',
  'Mesh',
  'Processes',
  'as_tuple',
  'batch_sharding',
  'check_batch',
  'check_length',
  'check_shardings',
  'connect',
  'find_cluster',
  'partition_spec',
  'process_part',
  'sharding_table',
  'state_shardings',
]
