"""Ends all processes of a run together: after the same step, or with the message of the failed process.

JAX's coordination service provides heartbeats, a key-value store and barriers, but not:

- The cause of a failure. When a process is lost or fails, the service aborts the remaining processes with
  a C++ stack trace. `connect` disables this abort by enabling recoverability, and `Watch` ends them.
- A stop after signals other than SIGTERM. Its preemption sync point also replaces the SIGTERM handler of
  the command, and holds the GIL for up to three minutes when a process is frozen.
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from t2x.base.terminal import print_final_line

# Seconds between two checks for lost processes.
INTERVAL = 1.0
# Seconds that process 0 waits for the other processes to read the last message.
GRACE = 3.0
FOREVER_MS = 10**10
# Key whose value is [message, exit code] of a failure, or null after all processes finished.
END = 't2x/end/cause'


class Watch:
  """Threads that end this process when another process fails or is lost.

  Args:
    client: JAX's client of the coordination service.
    index: index of this process.
    hosts: host name of each process.
    lost_after: heartbeat timeout in seconds, for the message.
  """

  def __init__(self, client: Any, index: int, hosts: Sequence[str], lost_after: float):
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
