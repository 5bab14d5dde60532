"""Compares interrupted and damaged runs with uninterrupted runs.

    python experiments/reliability/chaos.py [--experiments NAME ...] [--kills 25] [--terms 8]

Each of five tiny experiments is run without interruption, and then under faults: killed (SIGKILL) and
restarted by the same command many times, stopped by SIGTERM, with a checkpoint file truncated or one of
its bits flipped, and on a full disk. Every run must end with a bitwise identical state and the same
metrics. Prints a table; exits with code 1 on any difference.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lives import ROOT, TrainingProcess, wait_for_random_moment

sys.path.insert(0, str(ROOT))
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

from t2x.base.errors import EXIT_INTERRUPTED

EXPERIMENTS = ['causal_lm', 'mixture', 'masked_lm', 'translation', 'image_classification']
TARGETS = ['start-up', 'data', 'restoring', 'steps', 'evaluation', 'saving', 'any']
# Seconds after the start of a process before which Python may not handle SIGTERM yet.
HANDLER_READY = 1.0

# Limits files to 16 KB, too little for any checkpoint, until step 24.
NO_ROOM = """
import pathlib, resource, sys, threading, time
from t2x.cli import main
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, hard))
metrics = pathlib.Path(sys.argv[sys.argv.index('--out') + 1], 'metrics.jsonl')

def make_room():
  while not metrics.exists() or '"step": 24' not in metrics.read_text():
    time.sleep(0.01)
  resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

threading.Thread(target=make_room, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


class Failure(Exception):
  """A run did not behave as expected."""


def write_data(folder: Path) -> None:
  """Writes text files and sentence pairs of random words, which take a second or two to prepare."""
  if folder.exists():
    return
  folder.mkdir(parents=True)
  words = random.Random(0)
  vocabulary = ['the', 'a', 'cat', 'dog', 'sees', 'likes', 'red', 'blue', 'house', 'tree']

  def sentence() -> str:
    return ' '.join(words.choices(vocabulary, k=words.randint(2, 5)))

  for split, count in (('train', 400), ('validation', 4)):
    for i in range(count):
      text = '\n'.join(sentence() for _ in range(40))
      (folder / f'{split}-{i:03}.txt').write_text(text)
    pairs = [(s, s.upper()) for s in (sentence() for _ in range(20 * count))]
    text = ''.join(f'{source[:28]}\t{target[:28]}\n' for source, target in pairs)
    (folder / f'{split}.tsv').write_text(text)


def final_state(folder: Path) -> dict[str, bytes]:
  """Returns the results to compare: the last checkpoint's arrays, the metrics without speeds, the samples."""
  import jax
  import numpy as np
  import orbax.checkpoint as ocp

  from t2x.layers.arrays import named_leaves
  from t2x.train.checkpoints.store import Checkpoints

  step = Checkpoints(folder / 'checkpoints').intact_step('last')
  reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
  args = ocp.args.Composite(state=ocp.args.StandardRestore())
  state = reader.restore((folder / 'checkpoints' / str(step)).absolute(), args=args).state
  contents: dict[str, bytes] = {'last step': str(step).encode()}
  for name, leaf in named_leaves(state):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    contents[name] = f'{array.dtype}{array.shape}'.encode() + array.tobytes()
  lines = []
  for line in map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines()):
    lines.append({k: v for k, v in line.items() if k != 'mfu' and not k.endswith('_per_second')})
  contents['metrics.jsonl'] = json.dumps(lines).encode()
  if (folder / 'samples.jsonl').exists():
    contents['samples.jsonl'] = (folder / 'samples.jsonl').read_bytes()
  return contents


class Chaos:
  """The trials of one experiment.

  Args:
    name: name of the experiment.
    out: output folder.
    seed: seed of the moments and the damage.
  """

  def __init__(self, name: str, out: Path, seed: int):
    self.name, self.out, self.rng = name, out, random.Random(f'{seed} {name}')
    self.folder = out / name
    self.folder.mkdir(parents=True, exist_ok=True)
    self.start_up = self.total = 0.0
    self.expected: dict[str, bytes] = {}

  def uninterrupted(self) -> str:
    """Runs the reference twice; the second run, with a warm compilation cache, is timed."""
    seconds = []
    for number in (1, 2):
      folder = self._new_folder('uninterrupted')
      process = TrainingProcess(self.name, folder, self.out)
      process.wait_for('steps', 1)
      seconds = [time.time() - process.started]
      self._require(process.wait() == 0, process, 'the uninterrupted run failed')
      seconds.append(time.time() - process.started)
      if number == 1:
        self.expected = final_state(folder)
    self.start_up, self.total = seconds
    self._compare(folder)
    return f'{self.start_up:.1f} s to the first step, {self.total:.1f} s in total'

  def interruptions(self, number: signal.Signals, count: int) -> str:
    """Sends `count` signals at random moments; restarts by the same command until the run is finished."""
    phases: collections.Counter[str] = collections.Counter()
    runs = finished = 0
    targets: list[str] = []
    while sum(phases.values()) < count:
      folder = self._new_folder(f'{number.name}-{runs}')
      runs += 1
      code = None
      while code != 0:
        targets = targets or self.rng.sample(TARGETS, len(TARGETS))
        enough = sum(phases.values()) >= count
        phase, code = self._run_process(folder, number, None if enough else targets.pop())
        phases.update([phase] if phase and code != 0 else [])
      finished += 1
      self._compare(folder)
    counts = ', '.join(f'{phase} {n}' for phase, n in phases.most_common())
    return f'{sum(phases.values())} in {finished} run{"s" if finished > 1 else ""}: {counts}'

  def _run_process(self, folder: Path, number: signal.Signals, target: str | None):
    """Runs one process and interrupts it in phase `target`. Returns (interrupted phase, exit code)."""
    if target == 'data':
      shutil.rmtree(self.out / 'cache', ignore_errors=True)
    process = TrainingProcess(self.name, folder, self.out)
    if target is not None:
      if number == signal.SIGTERM:
        time.sleep(HANDLER_READY)
      wait_for_random_moment(process, self.rng, target, self.start_up, self.total)
    phase = process.end_by(number) if target is not None else None
    code = process.wait()
    expected = {-signal.SIGKILL} if number == signal.SIGKILL else {EXIT_INTERRUPTED}
    # A signal may also reach a run that has just finished.
    done = 'Traceback' not in process.stderr and code in (0, -number) and self._is_done(folder)
    good = code in expected or done if phase else code == 0
    self._require(good, process, f'{number.name} during {phase}: exit code {code}')
    self._require(
      'Traceback' not in process.stderr, process, f'{number.name} during {phase}: Traceback'
    )
    return phase, code

  def _is_done(self, folder: Path) -> bool:
    return (folder / 'checkpoints' / self.expected['last step'].decode()).is_dir()

  def damage(self, count: int) -> str:
    """Truncates a file of the last checkpoint, or flips one of its bits, and resumes the run."""
    files = []
    for number in range(2 * count):
      how = ('truncated', 'bit flipped')[number % 2]
      folder = self._new_folder('damaged')
      shutil.copytree(self.out / self.name / 'uninterrupted', folder)
      last, before = sorted(int(p.name) for p in (folder / 'checkpoints').iterdir())[::-1][:2]
      checkpoint = folder / 'checkpoints' / str(last)
      path = self._damage_file(checkpoint, how)
      process = TrainingProcess(self.name, folder, self.out)
      self._require(process.wait() == 0, process, f'{path.name} {how}: the run failed')
      reported = (
        f'step {last} is corrupt' in process.stderr and f'of step {before}' in process.stderr
      )
      self._require(reported, process, f'{path.name} {how}: not reported')
      self._compare(folder)
      files.append(f'{path.relative_to(checkpoint)} {how}')
    return f'{len(files)} reported, the previous checkpoint used: {", ".join(files)}'

  def _damage_file(self, checkpoint: Path, how: str) -> Path:
    # Files without a checksum are not read again.
    checked = sorted(json.loads((checkpoint / 'checksums.json').read_text()))
    path = checkpoint / self.rng.choice([*checked, 'checksums.json'])
    content = bytearray(path.read_bytes())
    if how == 'truncated':
      content = content[: self.rng.randrange(len(content))]
    else:
      content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
    path.write_bytes(content)
    return path

  def full_disk(self) -> str:
    """Fills the disk of the run folder at a random checkpoint, then frees it and resumes."""
    disk = self.out / 'disk'
    disk.mkdir(exist_ok=True)
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
      return 'skipped: no permission to mount a small disk'
    try:
      return self._run_on_full_disk(disk / self.name)
    finally:
      subprocess.run(['umount', '-l', str(disk)], check=False)

  def _run_on_full_disk(self, folder: Path) -> str:
    ballast = folder.with_name('ballast')
    process = TrainingProcess(self.name, folder, self.out)
    process.wait_for('saving', self.rng.randint(2, 5))
    _fill_disk(ballast)
    code = process.wait()
    self._require(code == 1, process, f'on a full disk: exit code {code}')
    last = process.stderr.splitlines()[-1] if process.stderr else ''
    reported = last.startswith('t2x: ') and 'No space' in last
    self._require(reported, process, 'the last line does not report the full disk')
    self._require('Traceback' not in process.stderr, process, 'a full disk: Traceback')
    ballast.unlink()
    process = TrainingProcess(self.name, folder, self.out)
    self._require(process.wait() == 0, process, 'the run failed after the disk was freed')
    self._require('corrupt' not in process.stderr, process, 'a full disk left a corrupt checkpoint')
    self._compare(folder)
    good = last.split('; ')[-1].split('. ')[0]
    return f'exit code 1, "No space left on device", "{good}"; resumed to the same end'

  def endured(self) -> str:
    """Runs with `Trainer.max_failed_saves` while no checkpoint can be saved before step 24."""
    folder = self._new_folder('endured')
    extra = ['--gin.Trainer.max_failed_saves=20']
    process = TrainingProcess(self.name, folder, self.out, ('-c', NO_ROOM), extra)
    self._require(process.wait() == 0, process, 'the run did not continue after failed saves')
    count = process.stderr.count('training continues after failed save')
    self._require(count > 0, process, 'failed saves are not reported')
    self._compare(folder)
    return f'{count} failed saves reported, the run continued to the same end'

  def _new_folder(self, kind: str) -> Path:
    folder = self.folder / kind
    shutil.rmtree(folder, ignore_errors=True)
    return folder

  def _compare(self, folder: Path) -> None:
    contents = final_state(folder)
    names = sorted(contents.keys() | self.expected.keys())
    differ = [name for name in names if contents.get(name) != self.expected.get(name)]
    if differ:
      raise Failure(f'{folder} differs from the uninterrupted run in {", ".join(differ[:5])}')

  def _require(self, good: bool, process: TrainingProcess, message: str) -> None:
    if not good:
      raise Failure(f'{message}; stderr: {process.stderr[-1500:]}')


def _fill_disk(path: Path) -> None:
  with path.open('wb', buffering=0) as file:
    for size in (1 << 16, 1 << 10, 1):
      try:
        while True:
          file.write(b'\0' * size)
      except OSError:
        pass


def trials(args: argparse.Namespace, out: Path, name: str):
  """Yields (name, result, whether it failed, seconds) of each trial of an experiment."""
  chaos = Chaos(name, out, args.seed)
  for trial_name, trial in (
    ('uninterrupted', chaos.uninterrupted),
    ('SIGKILL', lambda: chaos.interruptions(signal.SIGKILL, args.kills)),
    ('SIGTERM', lambda: chaos.interruptions(signal.SIGTERM, args.terms)),
    ('damaged files', lambda: chaos.damage(args.damages)),
    ('full disk', chaos.full_disk),
    ('full disk, endured', chaos.endured),
  ):
    start = time.monotonic()
    if args.trials and trial_name not in ('uninterrupted', *args.trials):
      continue
    try:
      result, failed = trial(), False
    except (Failure, TimeoutError) as error:
      result, failed = str(error), True
    yield trial_name, result, failed, time.monotonic() - start
    if failed and trial_name == 'uninterrupted':
      return


def main() -> int:
  """Prints one line per trial. Returns 1 if any trial failed, otherwise 0."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--experiments', nargs='+', choices=EXPERIMENTS, default=EXPERIMENTS)
  parser.add_argument('--kills', type=int, default=25, help='SIGKILLs per experiment')
  parser.add_argument('--terms', type=int, default=8, help='SIGTERMs per experiment')
  parser.add_argument(
    '--damages', type=int, default=2, help='truncated files and files with a flipped bit, each'
  )
  parser.add_argument('--trials', nargs='+', help='only these trials, named as in the table')
  parser.add_argument('--out', type=Path, help='output folder (default: a temporary folder)')
  parser.add_argument('--seed', type=int, default=0, help='random seed of moments and damage')
  args = parser.parse_args()
  out = (args.out or Path(tempfile.mkdtemp(prefix='t2x-chaos-'))).absolute()
  write_data(out / 'data')
  failures = 0
  print('| experiment | trial | result | minutes |\n|---|---|---|---|', flush=True)
  for name in args.experiments:
    for trial_name, result, failed, seconds in trials(args, out, name):
      failures += failed
      verdict = 'FAILED: ' if failed else ''
      print(f'| {name} | {trial_name} | {verdict}{result} | {seconds / 60:.1f} |', flush=True)
  print(f'{failures} trials failed; outputs are in {out}' if failures else 'all results are equal')
  if not failures and args.out is None:
    shutil.rmtree(out)
  return 1 if failures else 0


if __name__ == '__main__':
  sys.exit(main())
