"""Starts a training process, observes its phase from outside, and ends it at a chosen moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EVAL_EVERY = 12
# Seconds; longer than any healthy process of these runs takes, even on a busy machine.
TIMEOUT = 300.0


def environment(out: Path) -> dict[str, str]:
  """Returns environment variables for this checkout's t2x, with caches in `out` to avoid recompilation."""
  return os.environ | {
    'PYTHONPATH': str(ROOT),
    'JAX_PLATFORMS': os.environ.get('JAX_PLATFORMS', 'cpu'),
    'T2X_CACHE': str(out / 'cache'),
    'JAX_COMPILATION_CACHE_DIR': str(out / 'compiled'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'PYTHONUNBUFFERED': '1',
    'PYTHONDONTWRITEBYTECODE': '',
    'PYTHONPYCACHEPREFIX': str(out / 'pycache'),
  }


class TrainingProcess:
  """A training process in a separate session.

  Args:
    name: experiment: the name of a gin file in this folder.
    folder: run folder.
    out: folder of data and caches; the process's working folder.
    python: arguments of Python before `train`.
    extra: further arguments at the end of the command line.
  """

  def __init__(
    self,
    name: str,
    folder: Path,
    out: Path,
    python: Sequence[str] = ('-m', 't2x'),
    extra: Sequence[str] = (),
  ):
    self.folder, self.cache = folder, out / 'cache'
    # Not in the run folder, whose disk may be full.
    self.log = out / f'{name}-{folder.name}.stderr'
    self.started = time.time()
    with self.log.open('w') as log:
      self.process = subprocess.Popen(
        [
          *(sys.executable, *python, 'train', str(HERE / f'{name}.gin')),
          *('--out', str(folder), *extra),
        ],
        cwd=out,
        env=environment(out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
      )

  @property
  def stderr(self) -> str:
    """Output of the process on stderr so far."""
    return self.log.read_text(errors='replace')

  def alive(self) -> bool:
    """Returns whether the process is running."""
    return self.process.poll() is None

  def phase(self) -> str:
    """Returns the current phase, as determined from the files in the run folder and the cache."""
    if not self._has_written('config.gin'):
      return 'start-up'
    if any(self.cache.glob('*/*.tmp-*')):
      return 'data'
    if not self._has_written('summary.txt'):
      return 'restoring'
    line = self._last_line()
    if line.get('split') == 'train' and line['step'] % EVAL_EVERY == 0:
      return 'evaluation'
    if any((self.folder / 'checkpoints').glob('*.orbax-checkpoint-tmp*')):
      return 'saving'
    return 'steps'

  def _has_written(self, name: str) -> bool:
    try:
      return (self.folder / name).stat().st_mtime > self.started - 0.02
    except OSError:
      return False

  def _last_line(self) -> dict:
    try:
      with (self.folder / 'metrics.jsonl').open('rb') as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        lines = file.read().split(b'\n')
      return json.loads(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError):
      return {}

  def wait_for(self, phase: str, times: int) -> None:
    """Waits until the process enters `phase` for the n-th time (n = `times`), or ends."""
    inside = False
    end = time.monotonic() + TIMEOUT
    while self.alive() and time.monotonic() < end:
      is_inside = self.phase() == phase
      if is_inside and not inside:
        times -= 1
        if times == 0:
          return
      inside = is_inside
      time.sleep(0.002)

  def end_by(self, number: signal.Signals) -> str | None:
    """Sends a signal. Returns the phase that it interrupted, or None if the process had ended before."""
    if not self.alive():
      return None
    # The process is stopped while its phase is determined, so that the signal interrupts this phase.
    self.process.send_signal(signal.SIGSTOP)
    phase = self.phase()
    self.process.send_signal(number)
    self.process.send_signal(signal.SIGCONT)
    return phase

  def wait(self) -> int:
    """Waits for the process to end and returns its exit code.

    Raises:
      TimeoutError: the process hangs, or one of its child processes outlives it.
    """
    try:
      code = self.process.wait(TIMEOUT)
    except subprocess.TimeoutExpired as error:
      os.killpg(self.process.pid, signal.SIGKILL)
      raise TimeoutError(f'the process hangs: {self.stderr[-500:]}') from error
    end = time.monotonic() + 20
    while children := _session(self.process.pid):
      if time.monotonic() > end:
        raise TimeoutError(f'child processes {children} outlive the training process')
      time.sleep(0.02)
    return code


def _session(leader: int) -> list[int]:
  """Returns the ids of the running processes in the session of process `leader`."""
  members = []
  for path in Path('/proc').glob('[0-9]*/stat'):
    try:
      fields = path.read_text().rsplit(')', 1)[1].split()
    except OSError:
      continue
    if int(fields[3]) == leader and fields[0] != 'Z':
      members.append(int(path.parent.name))
  return members


def wait_for_random_moment(
  process: TrainingProcess, rng: random.Random, target: str, start_up: float, total: float
):
  """Waits for a random moment within a phase of the process, or for its end.

  Args:
    process: the training process.
    rng: random generator that chooses the moment.
    target: a phase; 'any' is a random time.
    start_up: seconds until the training loop starts.
    total: seconds of an uninterrupted run.
  """
  if target == 'start-up':
    return _sleep(process, rng.uniform(0.0, start_up))
  if target == 'any':
    return _sleep(process, rng.uniform(0.5 * start_up, start_up + 0.5 * (total - start_up)))
  process.wait_for(target, rng.randint(1, {'steps': 4, 'saving': 4}.get(target, 1)))
  longest = {'data': 0.2, 'restoring': 1.0, 'steps': 0.1, 'evaluation': 0.2, 'saving': 0.1}
  return _sleep(process, rng.uniform(0.0, longest[target]))


def _sleep(process: TrainingProcess, seconds: float) -> None:
  end = time.monotonic() + seconds
  while process.alive() and (remaining := end - time.monotonic()) > 0:
    time.sleep(min(remaining, 0.05))
