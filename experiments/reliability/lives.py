"""One process of a run: started, watched from outside, and ended at a moment of its life."""

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
# Longer than any healthy process of these runs takes, on a busy machine too.
TIMEOUT = 300.0


def environment(out: Path) -> dict[str, str]:
  """This checkout's t2x; caches in `out`, so that a restart need not compile again."""
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


class Life:
  """A process that trains, from its start to its end.

  Args:
    name: the experiment: a gin file beside this one.
    folder: the run folder.
    out: where data and caches are; the process's working folder.
    python: what comes before `train` on the command line.
    extra: what comes last there.
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
    # Beside the caches: the run folder's disk may be full.
    self.log = out / f'{name}-{folder.name}.stderr'
    self.began = time.time()
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
    """What it has said so far."""
    return self.log.read_text(errors='replace')

  def alive(self) -> bool:
    """Whether it has not ended."""
    return self.process.poll() is None

  def phase(self) -> str:
    """What it is doing, as its folders show."""
    if not self._written('config.gin'):
      return 'start-up'
    if any(self.cache.glob('*/*.tmp-*')):
      return 'data'
    if not self._written('summary.txt'):
      return 'restoring'
    line = self._last_line()
    if line.get('split') == 'train' and line['step'] % EVAL_EVERY == 0:
      return 'evaluation'
    if any((self.folder / 'checkpoints').glob('*.orbax-checkpoint-tmp*')):
      return 'saving'
    return 'steps'

  def _written(self, name: str) -> bool:
    try:
      return (self.folder / name).stat().st_mtime > self.began - 0.02
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
    """Returns at the moment when it enters `phase` for the n-th time, or has ended."""
    inside = False
    end = time.monotonic() + TIMEOUT
    while self.alive() and time.monotonic() < end:
      now = self.phase() == phase
      if now and not inside:
        times -= 1
        if times == 0:
          return
      inside = now
      time.sleep(0.002)

  def end_by(self, number: signal.Signals) -> str | None:
    """Sends a signal. Returns what it was doing, or None when it had ended before."""
    if not self.alive():
      return None
    # Held, so that the look and the end are one moment.
    self.process.send_signal(signal.SIGSTOP)
    phase = self.phase()
    self.process.send_signal(number)
    self.process.send_signal(signal.SIGCONT)
    return phase

  def wait(self) -> int:
    """Its exit code.

    Raises:
      TimeoutError: it hangs, or one of its own processes outlives it.
    """
    try:
      code = self.process.wait(TIMEOUT)
    except subprocess.TimeoutExpired as error:
      os.killpg(self.process.pid, signal.SIGKILL)
      raise TimeoutError(f'hangs: {self.stderr[-500:]}') from error
    end = time.monotonic() + 20
    while left := _session(self.process.pid):
      if time.monotonic() > end:
        raise TimeoutError(f'processes {left} outlive the one that started them')
      time.sleep(0.02)
    return code


def _session(leader: int) -> list[int]:
  """Processes that a process started, and theirs."""
  found = []
  for path in Path('/proc').glob('[0-9]*/stat'):
    try:
      fields = path.read_text().rsplit(')', 1)[1].split()
    except OSError:
      continue
    if int(fields[3]) == leader and fields[0] != 'Z':
      found.append(int(path.parent.name))
  return found


def choose_moment(life: Life, rng: random.Random, target: str, start_up: float, whole: float):
  """Returns when `life` is somewhere in `target`, or has ended.

  Args:
    life: what is watched.
    rng: decides the moment.
    target: a phase; 'any' is a random time.
    start_up: seconds until the loop begins.
    whole: seconds of an uninterrupted run.
  """
  if target == 'start-up':
    return _sleep(life, rng.uniform(0.0, start_up))
  if target == 'any':
    return _sleep(life, rng.uniform(0.5 * start_up, start_up + 0.5 * (whole - start_up)))
  life.wait_for(target, rng.randint(1, {'steps': 4, 'saving': 4}.get(target, 1)))
  longest = {'data': 0.2, 'restoring': 1.0, 'steps': 0.1, 'evaluation': 0.2, 'saving': 0.1}
  return _sleep(life, rng.uniform(0.0, longest[target]))


def _sleep(life: Life, seconds: float) -> None:
  end = time.monotonic() + seconds
  while life.alive() and (left := end - time.monotonic()) > 0:
    time.sleep(min(left, 0.05))
