"""A thread of each process of a run that knows of the others, through the coordinator's key-value
store and without the devices: who has failed, who has vanished, and whether to stop."""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from t2x.errors import first_line
from t2x.terminal import last_words

__all__ = ['Watch']

# Seconds between two looks at the others.
INTERVAL = 0.5


class Watch:
  """See the module.

  Every process writes a beat; process 0 looks for beats that have ceased and tells the others, and
  they look for those of process 0. A stop that any process asks for is due at the same step on
  all: each tells where it is and waits, before its next step, for what the others tell; the step
  after the last of these is the one.

  Args:
    client: jax's client of the coordinator.
    index: of this process.
    count: of all processes.
    lost_after: seconds without a beat after which a process counts as vanished.
  """

  def __init__(self, client: Any, index: int, count: int, lost_after: float):
    self.client, self.index, self.count, self.lost_after = client, index, count, lost_after
    self._step, self._stop_at = 0, math.inf
    self._asked = threading.Event()
    self._ended = threading.Event()
    self._at = threading.Condition()
    self._deciding = False
    self._beats: dict[str, tuple[str, float]] = {}
    self._thread = threading.Thread(target=self._watch, name='t2x-watch', daemon=True)
    self._thread.start()

  def ask_to_stop(self) -> None:
    """All processes are to stop soon, at the same step. May be called by a signal's handler."""
    self._asked.set()

  def reached_stop(self, step: int) -> bool:
    """Whether `step`, which was just handed to the device, is the one to stop at. Costs a lock."""
    with self._at:
      self._at.wait_for(lambda: not self._deciding)
      self._step = step
      return step >= self._stop_at

  def failed(self, text: str, code: int) -> None:
    """Tells the others that this process ends, and why; returns when they know. Ends the watch."""
    self._ended.set()
    with contextlib.suppress(Exception):
      said = json.dumps({'process': self.index, 'text': text, 'code': code})
      self.client.key_value_set(f't2x/run/failed/{self.index}', said, True)
      self.client.key_value_set(f't2x/gone/{self.index}', '1', True)
    # The coordinator is a part of process 0: with it the others would lose this message.
    end = time.monotonic() + (10 * INTERVAL if self.index == 0 else 0)
    while time.monotonic() < end and len(self._known('t2x/gone/')) < self.count:
      time.sleep(0.1)

  def failure(self) -> dict[str, Any] | None:
    """What another process said when it failed: process, text, code."""
    said = self._known('t2x/run/')
    for key, value in sorted(said.items()):
      if '/failed/' in key and (failure := json.loads(value))['process'] != self.index:
        return failure
    return None

  def end(self) -> None:
    """No longer watches."""
    self._ended.set()
    self._thread.join()

  def _known(self, folder: str) -> dict[str, str]:
    try:
      return dict(self.client.key_value_dir_get(folder))
    except Exception:
      return {}

  def _watch(self) -> None:
    number = 0
    while not self._ended.wait(0.02 if self._deciding else INTERVAL):
      number += 1
      try:
        self._look(number)
      except Exception as error:
        # The coordinator does not answer; jax's client notices by itself when it is gone.
        if self._silent('coordinator', '', time.monotonic()):
          self._leave(f'the coordinator does not answer ({first_line(error)})', 1)

  def _look(self, number: int) -> None:
    folder = 't2x/run' if self.index == 0 else 't2x/beat'
    self.client.key_value_set(f'{folder}/{self.index}', str(number), True)
    if self._asked.is_set():
      self.client.key_value_set('t2x/run/stop', '1', True)
    known = dict(self.client.key_value_dir_get('t2x/run/'))
    now = time.monotonic()
    self._silent('coordinator', str(number), now)
    if any('/failed/' in key for key in known) and (failure := self.failure()) is not None:
      self._leave(failure['text'], failure['code'], told=True)
    if 't2x/run/stop' in known and self._stop_at == math.inf:
      self._agree()
    others = self._known('t2x/beat/') if self.index == 0 else {'0': known.get('t2x/run/0', '')}
    for key, beat in others.items():
      if self._silent(key, beat, now):
        process = key.rsplit('/', 1)[-1]
        self._leave(
          f'process {process}{self._host(process)} has not been heard of for '
          f'{self.lost_after:g} seconds: ending; run the same command again to go on',
          1,
        )

  def _silent(self, key: str, beat: str, now: float) -> bool:
    if key not in self._beats or self._beats[key][0] != beat:
      self._beats[key] = beat, now
    return now - self._beats[key][1] > self.lost_after

  def _host(self, process: str) -> str:
    about: Mapping[str, Any] = json.loads(
      self._known('t2x/hello/').get(f't2x/hello/{process}', '{}')
    )
    return f' on {about["host"]}' if 'host' in about else ''

  def _agree(self) -> None:
    """A part of the agreement on the step to stop at; `_deciding` holds this process's next one."""
    if not self._deciding:
      with self._at:
        self._deciding = True
      self.client.key_value_set(f't2x/at/{self.index}', str(self._step))
    steps = dict(self.client.key_value_dir_get('t2x/at/'))
    if len(steps) == self.count:
      with self._at:
        self._stop_at = max(map(int, steps.values())) + 1
        self._deciding = False
        self._at.notify_all()

  def _leave(self, text: str, code: int, told: bool = False) -> None:
    """Ends this process, whatever its main thread waits for."""
    if self._ended.is_set():
      return
    last_words(f't2x: {text}')
    if told:
      with contextlib.suppress(Exception):
        self.client.key_value_set(f't2x/gone/{self.index}', '1', True)
    else:
      self.failed(text, code)
    sys.stdout.flush()
    os._exit(code)
