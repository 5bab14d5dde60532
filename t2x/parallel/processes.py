"""Detects, joins, synchronises and ends the processes of a run.

`find_cluster` reads options and the cluster manager, `connect` joins JAX's coordination service, and `Processes` has
what a run calls. The service provides heartbeats, a key-value store and barriers, but not:

- The cause of a failure. When a process is lost or fails, the service aborts the remaining processes with
  a C++ stack trace. `connect` disables this abort by enabling recoverability, and `Watch` ends them.
- A stop after signals other than SIGTERM. Its preemption sync point also replaces the SIGTERM handler of
  the command, and holds the GIL for up to three minutes when a process is frozen.
"""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import jax
from jax._src import clusters, distributed
from jax.errors import JaxRuntimeError
from jax.sharding import Sharding

from t2x.base.errors import UserError, first_line
from t2x.base.terminal import print_final_line
from t2x.parallel.native_output import filter_native_output

__all__ = ['Processes', 'connect', 'find_cluster', 'process_part']

log = logging.getLogger('t2x')

# Preparing data may take hours; the watch ends the wait if a process fails meanwhile.
BARRIER_MS = 24 * 3600 * 1000
# Some processes may still be saving a checkpoint.
FINISH_MS = 600 * 1000
# Seconds between two checks for lost processes.
INTERVAL = 1.0
# Seconds that process 0 waits for the other processes to read the last message.
GRACE = 3.0
FOREVER_MS = 10**10
# Key whose value is [message, exit code] of a failure, or null after all processes finished.
END = 't2x/end/cause'


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
    _check_options(coordinator, count, index)
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
  _check_options(cluster.coordinator, cluster.count, cluster.index)
  return cluster


def _check_options(coordinator: str, count: int, index: int) -> None:
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


class _Client(Protocol):
  """JAX's client of the coordination service, as far as this module uses it."""

  def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...

  def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...

  def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...

  def get_live_nodes(self, nodes: list[int]) -> dict[int, int]: ...


class Watch:
  """Threads that end this process when another process fails or is lost.

  Args:
    client: JAX's client of the coordination service.
    index: index of this process.
    hosts: host name of each process.
    lost_after: heartbeat timeout in seconds, for the message.
  """

  def __init__(self, client: _Client, index: int, hosts: Sequence[str], lost_after: float):
    self.client, self.index, self.hosts, self.lost_after = client, index, hosts, lost_after
    self._step, self._stop_at = 0, math.inf
    self._stepping, self._ending = threading.Lock(), threading.RLock()
    self._finished = threading.Event()
    self._threads = [
      threading.Thread(target=_suppress_errors, args=(wait,), name='t2x-watch', daemon=True)
      for wait in (self._wait_for_stop, self._wait_for_end, self._wait_for_loss)
    ]
    for thread in self._threads:
      thread.start()

  def ask_to_stop(self) -> None:
    """Asks all processes to stop after the same step. May be called by a signal handler."""
    _suppress_errors(lambda: self.client.key_value_set('t2x/stop', '', True))

  def reached_stop(self, step: int) -> bool:
    """Returns whether to stop after `step`, which was just dispatched to the device."""
    with self._stepping:
      self._step = step
      return step >= self._stop_at

  def end(self, text: str, code: int) -> None:
    """Ends all processes with a message and an exit code. Does not return."""
    with self._ending:
      print_final_line(f't2x: {text}')
      # RuntimeError: called by a signal handler that interrupted another flush.
      with contextlib.suppress(RuntimeError, OSError, ValueError):
        sys.stdout.flush()
      _suppress_errors(lambda: self.client.key_value_set(END, json.dumps([text, code])))
      # The other processes read the message from the coordinator, which runs in process 0.
      time.sleep(GRACE if self.index == 0 else 0)
      os._exit(code)

  def finish(self) -> None:
    """Leaves the coordination service. All processes must call this together."""
    self._finished.set()
    self.client.key_value_set(END, 'null', True)
    # Process 0 leaves last: it is the coordinator.
    while self.index == 0 and len(self._live()) > 1:
      pass
    jax.distributed.shutdown()
    for thread in self._threads:
      thread.join(GRACE)

  def _live(self) -> dict[int, int]:
    """Returns the processes that send heartbeats and their incarnations. All of them must call this."""
    return self.client.get_live_nodes(list(range(len(self.hosts))))

  def _wait_for_stop(self) -> None:
    """Sets the last step: the step after the latest one that any process has dispatched."""
    self.client.blocking_key_value_get('t2x/stop', FOREVER_MS)
    # The lock delays this process's next step until all processes agree.
    with self._stepping:
      self.client.key_value_set(f't2x/step/{self.index}', str(self._step))
      steps = [
        int(self.client.blocking_key_value_get(f't2x/step/{index}', FOREVER_MS))
        for index in range(len(self.hosts))
      ]
      self._stop_at = max(steps) + 1

  def _wait_for_end(self) -> None:
    if failure := json.loads(self.client.blocking_key_value_get(END, FOREVER_MS)):
      self.end(*failure)

  def _wait_for_loss(self) -> None:
    first = self._live()
    lost: list[int] = []
    while not lost:
      if self._finished.wait(INTERVAL):
        return
      live = self._live()
      lost = [index for index in range(len(self.hosts)) if live.get(index, -1) != first.get(index)]
    # Processes also leave after all have finished.
    if not self._finished.is_set() and not self.client.key_value_dir_get('t2x/end'):
      self.end(
        f'no heartbeat from process {lost[0]} on {self.hosts[lost[0]]} for '
        f'{self.lost_after:g} seconds; run the same command to resume',
        1,
      )


def _suppress_errors(function: Callable[[], Any]) -> None:
  # A call fails when this process leaves the service, or when the coordinator is lost. In the latter
  # case, jax ends the process.
  with contextlib.suppress(JaxRuntimeError):
    function()


class Processes:
  """Synchronisation between the processes of a run.

  Args:
    watch: watch of a multi-process run, from `connect`; None for a single process.

  Attributes:
    index: index of this process; only process 0 writes to the run folder and the terminal.
    count: number of processes.
  """

  def __init__(self, watch: Watch | None = None):
    self.watch = watch
    self.index, self.count = jax.process_index(), jax.process_count()
    self._barriers = 0

  @property
  def first(self) -> bool:
    """True if this is process 0."""
    return self.index == 0

  def barrier(self) -> None:
    """Waits until every process has called this. Does not use devices."""
    if self.count > 1:
      self._barriers += 1
      self._client.wait_at_barrier(f't2x-{self._barriers}', BARRIER_MS)

  @contextlib.contextmanager
  def process_zero_first(self) -> Iterator[None]:
    """Runs the block in process 0 first, then in all other processes, which can read its files."""
    if not self.first:
      self.barrier()
    yield
    if self.first:
      self.barrier()

  def ask_to_stop(self) -> None:
    """Asks all processes to stop after the same step. May be called by a signal handler."""
    if self.watch is not None:
      self.watch.ask_to_stop()

  def reached_stop(self, step: int) -> bool:
    """Returns whether to stop after `step`, always False without a watch. Must be called at each step."""
    return self.watch is not None and self.watch.reached_stop(step)

  def finish(self) -> None:
    """Waits for all processes to finish, then leaves the coordination service."""
    if self.watch is not None:
      sys.stdout.flush()
      self._client.wait_at_barrier('t2x-finish', FINISH_MS)
      self.watch.finish()

  def fail(self, text: str, code: int) -> None:
    """Ends all processes with a message and an exit code. Returns only without a watch."""
    if self.watch is None:
      return
    if _is_lost_connection(text):
      # If a failed process reported the cause, the watch ends this process with this message.
      time.sleep(2)
      text = f'lost the connection to another process of this run ({text})'
    text = text if self.first else f'process {self.index} on {socket.gethostname()}: {text}'
    self.watch.end(text, code)

  @property
  def _client(self) -> Any:
    return distributed.global_state.client


def _is_lost_connection(text: str) -> bool:
  words = 'Gloo', 'NCCL', 'Connection closed', 'Connection reset', 'UNAVAILABLE', 'Socket closed'
  return any(word in text for word in words)


def connect(cluster: Cluster | None, wait: float, lost_after: float) -> Processes:
  """Joins the processes of a run. Must be called before JAX's backends are initialized.

  If not all processes join in time, this process exits with code 1 and a message.

  Args:
    cluster: the processes; None for a single process.
    wait: seconds to wait for all processes to join.
    lost_after: seconds without a heartbeat after which a process counts as lost.

  Raises:
    UserError: the processes do not agree on their number, or an index is used twice.
  """
  if cluster is None:
    return Processes()
  filter_native_output()
  if cluster.index:
    log.setLevel(logging.WARNING)
  # See `Watch`, which replaces both.
  jax.config.update('jax_enable_preemption_service', False)
  jax.config.update('jax_enable_recoverability', True)
  timer = threading.Timer(wait, _exit_on_timeout, (cluster, wait))
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      cluster.coordinator,
      cluster.count,
      cluster.index,
      local_device_ids=cluster.local_devices,
      cluster_detection_method='deactivate',
      initialization_timeout=int(wait) + 60,
      heartbeat_timeout_seconds=math.ceil(lost_after),
    )
    timer.cancel()
    client = cast(_Client, distributed.global_state.client)
    hosts = _exchange_hosts(client, cluster, wait)
  except (RuntimeError, ValueError) as error:
    raise UserError(
      f'cannot connect through the coordinator {cluster.coordinator}: {first_line(error)}', 1
    ) from error
  return Processes(Watch(client, cluster.index, hosts, lost_after))


def _exchange_hosts(client: _Client, cluster: Cluster, wait: float) -> list[str]:
  """Checks that all processes have the same number of processes. Returns their host names."""
  own = {'host': socket.gethostname(), 'count': cluster.count, 'devices': jax.local_device_count()}
  client.key_value_set(f't2x/process/{cluster.index}', json.dumps(own))
  processes = [
    json.loads(client.blocking_key_value_get(f't2x/process/{i}', int(wait * 1000) + 1000))
    for i in range(cluster.count)
  ]
  counts = sorted({process['count'] for process in processes} | {jax.process_count()})
  if len(counts) > 1:
    raise UserError(f'--num-processes differs between the processes: {counts}')
  rows = ', '.join(f'{i} on {p["host"]} ({p["devices"]})' for i, p in enumerate(processes))
  log.info('all %d processes joined (number of devices in parentheses): %s', cluster.count, rows)
  return [process['host'] for process in processes]


def _exit_on_timeout(cluster: Cluster, wait: float) -> None:
  """Ends this process with a message, because JAX's timeout aborts with a stack trace."""
  host, port = cluster.coordinator.rsplit(':', 1)
  try:
    socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
    reason = f'not all {cluster.count} processes joined'
  except OSError as error:
    reason = f'process {cluster.index} found no coordinator at {cluster.coordinator} ({error})'
  print_final_line(
    f't2x: {reason} within {wait:g} seconds (--wait): start all processes, or increase --wait'
  )
  os._exit(1)


def process_part(sharding: Sharding, batch_size: int) -> tuple[int, int]:
  """Returns the part of a global batch that this process reads, as (part, number of equal parts).

  Processes that hold the same rows (such as those along a mesh's `tensor` axis) get the same part.

  Args:
    sharding: sharding of arrays [batch, ...].
    batch_size: number of rows of the global batch.

  Raises:
    UserError: the rows on this process's devices are not one of several equal consecutive parts.
  """
  index = jax.process_index()
  devices: Mapping[Any, Any] = sharding.devices_indices_map((batch_size,))
  slices = {
    index_slices[0].indices(batch_size)[:2]
    for device, index_slices in devices.items()
    if device.process_index == index
  }
  return _part(slices, batch_size)


def _part(slices: set[tuple[int, int]], batch_size: int) -> tuple[int, int]:
  """Returns (part, number of parts) of the rows that the (start, stop) ranges cover."""
  rows = sorted({row for start, stop in slices for row in range(start, stop)})
  if not rows:
    raise UserError(
      f'process {jax.process_index()} holds no rows of a batch: each process needs a device in '
      'the mesh; check Mesh.num_devices'
    )
  start, size = rows[0], len(rows)
  if rows != list(range(start, start + size)) or start % size or batch_size % size:
    raise UserError(
      f'the devices of process {jax.process_index()} hold rows {rows} of a batch of {batch_size}, '
      'which are not one of several equal consecutive parts: choose mesh axes that divide evenly '
      'over the processes, or the same number of devices for each process'
    )
  return start // size, batch_size // size
