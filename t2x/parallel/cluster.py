"""Which processes a run consists of, as the command line or the cluster's manager tells it."""

import dataclasses
import importlib.util
import os

from jax._src import clusters

from t2x.errors import UserError


@dataclasses.dataclass(frozen=True)
class Cluster:
  """What jax.distributed.initialize needs to know.

  Attributes:
    coordinator: host:port where process 0 listens.
    count: processes of the run.
    index: of this process.
    local_devices: the devices of this machine that are this process's; None: all that it sees.
  """

  coordinator: str
  count: int
  index: int
  local_devices: tuple[int, ...] | None = None


def find_cluster(
  coordinator: str | None, count: int | None, index: int | None, wait: float
) -> Cluster | None:
  """The processes as told, or as a cluster's manager knows them; None when there is but one.

  Args:
    coordinator: host:port, or None.
    count: processes of the run, or None. 1: this one alone, wherever it runs.
    index: of this process, or None.
    wait: seconds until the coordinator's name must be known.

  Raises:
    UserError: only a part was told and no manager knows the rest.
  """
  if count == 1:
    return None
  told = {'--coordinator': coordinator, '--num-processes': count, '--process-id': index}
  missing = [name for name, value in told.items() if value is None]
  if not missing:
    assert coordinator is not None and count is not None and index is not None
    _check(coordinator, count, index)
    return Cluster(coordinator, count, index, _environment_devices())
  detected = _detect(wait)
  if detected is None:
    if len(missing) < len(told):
      raise UserError(f'{", ".join(missing)}: needed too, as no cluster is detected here')
    return None
  found = Cluster(
    coordinator or detected.coordinator,
    detected.count if count is None else count,
    detected.index if index is None else index,
    detected.local_devices,
  )
  _check(found.coordinator, found.count, found.index)
  return found


def _check(coordinator: str, count: int, index: int) -> None:
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdigit():
    raise UserError(f"--coordinator '{coordinator}' is no host:port")
  if not 0 <= index < count:
    raise UserError(f'--process-id {index} is not below --num-processes {count}')


def _detect(wait: float) -> Cluster | None:
  """The cluster around this process, if it has more than one process; starts nothing."""
  _check_indexed_job()
  for kind in clusters.ClusterEnv._cluster_types:
    if kind.opt_in_only_method or not _may_be_here(kind.__name__) or not kind.is_env_present():
      continue
    count = kind.get_process_count()
    if count < 2:
      return None
    port = os.environ.get('JAX_COORDINATOR_PORT')
    address = kind.get_coordinator_address(timeout_secs=int(wait), override_coordinator_port=port)
    devices = _environment_devices() or _one_device(kind.get_local_process_id())
    return Cluster(address, count, kind.get_process_id(), devices)
  return None


def _may_be_here(name: str) -> bool:
  # Asking Kubernetes warns in any pod; only an indexed job's pods know who they are.
  return name != 'K8sCluster' or 'JOB_COMPLETION_INDEX' in os.environ


def _check_indexed_job() -> None:
  """A pod that cannot know of the others must not run as if it were alone."""
  inside = {'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX'} <= set(os.environ)
  if inside and 'TPU_WORKER_HOSTNAMES' not in os.environ and not _has_kubernetes():
    raise UserError(
      'this is a pod of an indexed job, but how many there are is not known: give --coordinator, '
      '--num-processes and --process-id (--num-processes 1: a run of its own), or '
      'pip install kubernetes'
    )


def _has_kubernetes() -> bool:
  return importlib.util.find_spec('kubernetes') is not None


def _environment_devices() -> tuple[int, ...] | None:
  told = os.environ.get('JAX_LOCAL_DEVICE_IDS')
  return tuple(map(int, told.split(','))) if told else None


def _one_device(local_index: int | None) -> tuple[int, ...] | None:
  """A device for each process of a machine, where there are several and all see all devices."""
  tasks = os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE') or os.environ.get(
    'SLURM_STEP_TASKS_PER_NODE', '1'
  )
  alone = tasks.split('(')[0].split(',')[0] == '1'
  visible = os.environ.get('CUDA_VISIBLE_DEVICES', '')
  if local_index is None or alone or (visible and ',' not in visible):
    return None
  return (local_index,)
