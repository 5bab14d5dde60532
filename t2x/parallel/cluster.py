"""Detects the processes of a run from command-line options or the cluster manager."""

import dataclasses
import importlib.util
import os

from jax._src import clusters

from t2x.base.errors import UserError

__all__ = ['Cluster', 'find_cluster']


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Arguments of `jax.distributed.initialize`.

  Attributes:
    coordinator: host:port where process 0 listens.
    count: number of processes of the run.
    index: index of this process.
    local_devices: indices of the machine's devices that this process uses; None: all visible devices.
  """

  coordinator: str
  count: int
  index: int
  local_devices: tuple[int, ...] | None = None


def find_cluster(
  coordinator: str | None, count: int | None, index: int | None, wait: float
) -> Cluster | None:
  """Returns the processes from the options, completed by the cluster manager; None for a single process.

  Args:
    coordinator: host:port, or None to detect it.
    count: number of processes, or None to detect it. 1: a single process, even inside a cluster.
    index: index of this process, or None to detect it.
    wait: seconds to wait for the cluster manager to publish the coordinator's address.

  Raises:
    UserError: an option is missing and no cluster is detected, or an option is invalid.
  """
  if count == 1:
    return None
  options = {'--coordinator': coordinator, '--num-processes': count, '--process-id': index}
  missing = [name for name, value in options.items() if value is None]
  if not missing:
    assert coordinator is not None and count is not None and index is not None
    _check(coordinator, count, index)
    return Cluster(coordinator, count, index, _devices_from_environment())
  detected = _detect(wait)
  if detected is None:
    if len(missing) < len(options):
      raise UserError(f'{", ".join(missing)}: required too, because no cluster was detected')
    return None
  cluster = Cluster(
    coordinator or detected.coordinator,
    detected.count if count is None else count,
    detected.index if index is None else index,
    detected.local_devices,
  )
  _check(cluster.coordinator, cluster.count, cluster.index)
  return cluster


def _check(coordinator: str, count: int, index: int) -> None:
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdigit():
    raise UserError(f"--coordinator '{coordinator}': must be host:port")
  if not 0 <= index < count:
    raise UserError(
      f'--process-id {index}: must be at least 0 and less than --num-processes {count}'
    )


def _detect(wait: float) -> Cluster | None:
  """Returns the cluster that JAX detects around this process; None for fewer than two processes."""
  _check_indexed_job()
  for kind in clusters.ClusterEnv._cluster_types:
    if kind.opt_in_only_method or not _is_usable(kind.__name__) or not kind.is_env_present():
      continue
    count = kind.get_process_count()
    if count < 2:
      return None
    port = os.environ.get('JAX_COORDINATOR_PORT')
    address = kind.get_coordinator_address(timeout_secs=int(wait), override_coordinator_port=port)
    devices = _devices_from_environment() or _device_of_local_process(kind.get_local_process_id())
    return Cluster(address, count, kind.get_process_id(), devices)
  return None


def _is_usable(name: str) -> bool:
  # Detection of Kubernetes warns in any pod, but only pods of indexed jobs have an index.
  return name != 'K8sCluster' or 'JOB_COMPLETION_INDEX' in os.environ


def _check_indexed_job() -> None:
  """Raises UserError in a pod of an indexed job whose other pods cannot be detected."""
  inside = {'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX'} <= set(os.environ)
  if inside and 'TPU_WORKER_HOSTNAMES' not in os.environ and not _has_kubernetes():
    raise UserError(
      'this is a pod of an indexed job, but its number of pods cannot be detected: set --coordinator, '
      '--num-processes and --process-id (--num-processes 1 for a separate run), or '
      'pip install kubernetes'
    )


def _has_kubernetes() -> bool:
  return importlib.util.find_spec('kubernetes') is not None


def _devices_from_environment() -> tuple[int, ...] | None:
  indices = os.environ.get('JAX_LOCAL_DEVICE_IDS')
  return tuple(map(int, indices.split(','))) if indices else None


def _device_of_local_process(local_index: int | None) -> tuple[int, ...] | None:
  """Assigns one device per process if a machine has several processes and each sees all devices."""
  tasks = os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE') or os.environ.get(
    'SLURM_STEP_TASKS_PER_NODE', '1'
  )
  is_single = tasks.split('(')[0].split(',')[0] == '1'
  visible = os.environ.get('CUDA_VISIBLE_DEVICES', '')
  if local_index is None or is_single or (visible and ',' not in visible):
    return None
  return (local_index,)
