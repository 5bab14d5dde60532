"""Meshes and shardings, the only code that names mesh axes; and the processes of a run."""

from t2x.parallel.cluster import Cluster, find_cluster
from t2x.parallel.inherit import check_shardings
from t2x.parallel.mesh import ACTIVATION_RULES, MESH_AXES, RULES, Mesh
from t2x.parallel.processes import Processes, connect, process_part
from t2x.parallel.report import sharding_table
from t2x.parallel.sharding import (
  BATCH_AXES,
  Activations,
  batch_sharding,
  check_batch,
  check_length,
  partition_spec,
  state_shardings,
)

__all__ = [
  'ACTIVATION_RULES',
  'BATCH_AXES',
  'MESH_AXES',
  'RULES',
  'Activations',
  'Cluster',
  'Mesh',
  'Processes',
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
