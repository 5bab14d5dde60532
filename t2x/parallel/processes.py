"""Several processes that are one run: counted at the start, kept in step, and ended together."""

import contextlib
import json
import logging
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

from t2x.errors import UserError, first_line
from t2x.parallel.cluster import Cluster
from t2x.parallel.native_output import filter_native_output
from t2x.parallel.watch import Watch
from t2x.terminal import last_words

__all__ = ['Processes', 'connect', 'process_part']

log = logging.getLogger('t2x')

# Data may take hours to prepare; the watch ends the wait when a process fails meanwhile.
BARRIER_MS = 24 * 3600 * 1000
# Until all have come to their end: some may still be saving.
FINISH_MS = 600 * 1000


class Processes:
  """The processes of this run, seen from one of them. Without `watch` often the only one.

  Attributes:
    index: of this process; the first one alone writes to the run folder and the terminal.
    count: of all processes.
  """

  def __init__(self, watch: Watch | None = None):
    self.watch = watch
    self.index, self.count = jax.process_index(), jax.process_count()
    self._barriers = 0

  @property
  def first(self) -> bool:
    """Whether this is process 0."""
    return self.index == 0

  def barrier(self) -> None:
    """Returns when every process has come here. (No device takes part.)"""
    if self.count > 1:
      self._barriers += 1
      self._client.wait_at_barrier(f't2x-{self._barriers}', BARRIER_MS)

  @contextlib.contextmanager
  def first_alone(self) -> Iterator[None]:
    """Process 0 does what is inside, then the others do: they find what it left."""
    if not self.first:
      self.barrier()
    yield
    if self.first:
      self.barrier()

  def ask_to_stop(self) -> None:
    """All processes are to stop after one and the same step. May be called by a signal's handler."""
    if self.watch is not None:
      self.watch.ask_to_stop()

  def reached_stop(self, step: int) -> bool:
    """Whether `step` is the one to stop at; to be asked at each step. Always False alone."""
    return self.watch is not None and self.watch.reached_stop(step)

  def finish(self) -> None:
    """The good end: waits for the others, then leaves them."""
    if self.watch is None:
      return
    sys.stdout.flush()
    self._client.wait_at_barrier('t2x-finish', FINISH_MS)
    self.watch.end()
    jax.distributed.shutdown()

  def fail(self, text: str, code: int) -> None:
    """The bad end: says why here, tells the others, and ends this process without waiting."""
    if self.watch is None:
      return
    # When a connection broke, the one that ended it may have said why.
    for _ in range(20 if _is_lost_connection(text) else 0):
      if (failure := self.watch.failure()) is not None:
        text, code = failure['text'], failure['code']
        break
      time.sleep(0.1)
    else:
      if _is_lost_connection(text):
        text = f'the connection to another process of this run is lost ({text})'
      text = text if self.first else f'process {self.index} on {socket.gethostname()}: {text}'
    last_words(f't2x: {text}')
    self.watch.failed(text, code)
    sys.stdout.flush()
    os._exit(code)

  @property
  def _client(self) -> Any:
    return distributed.global_state.client


def _is_lost_connection(text: str) -> bool:
  words = 'Gloo', 'NCCL', 'Connection closed', 'Connection reset', 'UNAVAILABLE', 'Socket closed'
  return any(word in text for word in words)


def connect(cluster: Cluster | None, wait: float, lost_after: float) -> Processes:
  """Joins the other processes; must come before anything that starts jax's devices.

  Args:
    cluster: where they are; None: this process is alone.
    wait: seconds until all processes must have reported.
    lost_after: seconds without a sign of life after which a process counts as vanished.

  Raises:
    UserError: the processes do not agree on how many they are. (Where some are missing after
      `wait`, the process ends with exit code 1 and a line that says so.)
  """
  if cluster is None:
    return Processes()
  filter_native_output()
  if cluster.index:
    log.setLevel(logging.WARNING)
  # Signals are answered by the loop, which agrees with the other processes on a step.
  jax.config.update('jax_enable_preemption_service', False)
  arrived = threading.Event()
  threading.Thread(target=_give_up, args=(cluster, wait, arrived), daemon=True).start()
  try:
    jax.distributed.initialize(
      cluster.coordinator,
      cluster.count,
      cluster.index,
      local_device_ids=cluster.local_devices,
      cluster_detection_method='deactivate',
      initialization_timeout=int(wait) + 60,
      heartbeat_timeout_seconds=int(2 * lost_after) + 10,
    )
  except (RuntimeError, ValueError) as error:
    told = f'no connection through {cluster.coordinator}: {first_line(error)}'
    raise UserError(told, 1) from error
  arrived.set()
  client = distributed.global_state.client
  watch = Watch(client, cluster.index, cluster.count, lost_after)
  _roll_call(client, cluster, wait)
  return Processes(watch)


def _roll_call(client: Any, cluster: Cluster, wait: float) -> None:
  """Every process reports; their number must be what each was told."""
  mine = {'host': socket.gethostname(), 'count': cluster.count, 'devices': jax.local_device_count()}
  client.key_value_set(f't2x/hello/{cluster.index}', json.dumps(mine))
  everyone = [
    json.loads(client.blocking_key_value_get(f't2x/hello/{i}', int(wait * 1000) + 1000))
    for i in range(cluster.count)
  ]
  counts = sorted({one['count'] for one in everyone} | {jax.process_count()})
  if len(counts) > 1:
    raise UserError(f'--num-processes differs between the processes: {counts}')
  told = ', '.join(f'{i} on {one["host"]} ({one["devices"]})' for i, one in enumerate(everyone))
  log.info('processes (devices of each): all %d reported: %s', cluster.count, told)


def _give_up(cluster: Cluster, wait: float, arrived: threading.Event) -> None:
  """Ends this process after `wait` seconds: jax's own end is an abort with a stack trace."""
  if arrived.wait(wait):
    return
  host, port = cluster.coordinator.rsplit(':', 1)
  try:
    socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
    reason = f'not all of the {cluster.count} processes asked for reported'
  except OSError as error:
    reason = f'process {cluster.index} found no coordinator at {cluster.coordinator} ({error})'
  print(f't2x: {reason} within {wait:g} seconds (--wait): nothing was run', file=sys.stderr)
  sys.stderr.flush()
  os._exit(1)


def process_part(sharding: Sharding, batch_size: int) -> tuple[int, int]:
  """Which rows of a global batch this process reads: (part, number of equal parts).

  Processes that hold the same rows (as of a mesh whose `tensor` axis spans them) get the same part.

  Args:
    sharding: of arrays [batch, ...].
    batch_size: rows of the global batch.

  Raises:
    UserError: this process's devices hold rows that are no such part.
  """
  index = jax.process_index()
  devices: Mapping[Any, Any] = sharding.devices_indices_map((batch_size,))
  slices = {
    one[0].indices(batch_size)[:2]
    for device, one in devices.items()
    if device.process_index == index
  }
  return _part(slices, batch_size)


def _part(slices: set[tuple[int, int]], batch_size: int) -> tuple[int, int]:
  """(part, number of parts) of the rows that some (start, stop) cover."""
  rows = sorted({row for start, stop in slices for row in range(start, stop)})
  if not rows:
    raise UserError(
      f'process {jax.process_index()} holds no rows of a batch: each process needs a device in '
      'the mesh (see Mesh.num_devices)'
    )
  start, size = rows[0], len(rows)
  if rows != list(range(start, start + size)) or start % size or batch_size % size:
    raise UserError(
      f'the devices of process {jax.process_index()} hold rows {rows} of a batch of {batch_size}, '
      'which is not one of equal consecutive parts: choose mesh axes that divide evenly over the '
      'processes, or as many devices on each'
    )
  return start // size, batch_size // size
