"""Joins, synchronises and ends the processes of a run.

Uses JAX's coordination service, and `Watch` for what the service does not provide.
"""

import contextlib
import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax._src import distributed
from jax.sharding import Sharding

from t2x.base.errors import UserError, first_line
from t2x.base.terminal import print_final_line
from t2x.parallel.cluster import Cluster
from t2x.parallel.native_output import filter_native_output
from t2x.parallel.watch import Watch

__all__ = ['Processes', 'connect', 'process_part']

log = logging.getLogger('t2x')

# Preparing data may take hours; the watch ends the wait if a process fails meanwhile.
BARRIER_MS = 24 * 3600 * 1000
# Some processes may still be saving a checkpoint.
FINISH_MS = 600 * 1000


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
  # See t2x/parallel/watch.py.
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
    client = distributed.global_state.client
    hosts = _exchange_hosts(client, cluster, wait)
  except (RuntimeError, ValueError) as error:
    raise UserError(
      f'cannot connect through the coordinator {cluster.coordinator}: {first_line(error)}', 1
    ) from error
  return Processes(Watch(client, cluster.index, hosts, lost_after))


def _exchange_hosts(client: Any, cluster: Cluster, wait: float) -> list[str]:
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
