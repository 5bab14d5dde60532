"""Runs that are killed, stopped, damaged and short of disk, against runs that are left alone.

    python experiments/reliability/chaos.py [--experiments NAME ...] [--kills 25] [--terms 8]

For each of four tiny experiments: an uninterrupted run; then the same run killed (SIGKILL) and
started again by the same command, time after time; stopped by SIGTERM; with a checkpoint truncated
or with one bit flipped; on a disk that fills. Every one must end with the same state, bit by bit,
and the same metrics. Prints a table; exits 1 when anything differs.
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

from lives import ROOT, Life, choose_moment

sys.path.insert(0, str(ROOT))
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

from t2x.errors import EXIT_INTERRUPTED

EXPERIMENTS = ['causal_lm', 'masked_lm', 'translation', 'image_classification']
TARGETS = ['start-up', 'data', 'restoring', 'steps', 'evaluation', 'saving', 'any']
# SIGTERM within the first second may come before Python can answer it.
LISTENS = 1.0

# No file may grow beyond 16 KB, which no checkpoint fits in, until step 24.
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
  """A run did not do what it should; the message says what."""


def write_data(folder: Path) -> None:
  """Text files and sentence pairs of a few made-up words: a second or two to prepare."""
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


def end_of(folder: Path) -> dict[str, bytes]:
  """The last checkpoint's arrays, and the metrics but for speeds: what must not differ."""
  import jax
  import numpy as np
  import orbax.checkpoint as ocp

  from t2x.arrays import named_leaves
  from t2x.train.checkpoints import Checkpoints

  step = Checkpoints(folder / 'checkpoints').intact_step('last')
  reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
  args = ocp.args.Composite(state=ocp.args.StandardRestore())
  state = reader.restore((folder / 'checkpoints' / str(step)).absolute(), args=args).state
  found: dict[str, bytes] = {'last step': str(step).encode()}
  for name, leaf in named_leaves(state):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    found[name] = f'{array.dtype}{array.shape}'.encode() + array.tobytes()
  lines = []
  for line in map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines()):
    lines.append({k: v for k, v in line.items() if not k.endswith('_per_second')})
  found['metrics.jsonl'] = json.dumps(lines).encode()
  if (folder / 'samples.jsonl').exists():
    found['samples.jsonl'] = (folder / 'samples.jsonl').read_bytes()
  return found


class Chaos:
  """The trials of one experiment.

  Args:
    name: the experiment.
    out: where everything is written.
    seed: decides the moments.
  """

  def __init__(self, name: str, out: Path, seed: int):
    self.name, self.out, self.rng = name, out, random.Random(f'{seed} {name}')
    self.folder = out / name
    self.folder.mkdir(parents=True, exist_ok=True)
    self.start_up = self.whole = 0.0
    self.expected: dict[str, bytes] = {}

  def uninterrupted(self) -> str:
    """The run that all others are compared with, its times measured once everything is compiled."""
    seconds = []
    for number in (1, 2):
      folder = self._new('whole')
      life = Life(self.name, folder, self.out)
      life.wait_for('steps', 1)
      seconds = [time.time() - life.began]
      self._must(life.wait() == 0, life, 'the uninterrupted run failed')
      seconds.append(time.time() - life.began)
      if number == 1:
        self.expected = end_of(folder)
    self.start_up, self.whole = seconds
    self._same(folder)
    return f'{self.start_up:.1f} s to the first step, {self.whole:.1f} s in all'

  def interruptions(self, number: signal.Signals, count: int) -> str:
    """`count` times a signal at a random moment, and the same command again until it is done."""
    phases: collections.Counter[str] = collections.Counter()
    runs = finished = 0
    targets: list[str] = []
    while sum(phases.values()) < count:
      folder = self._new(f'{number.name}-{runs}')
      runs += 1
      code = None
      while code != 0:
        targets = targets or self.rng.sample(TARGETS, len(TARGETS))
        enough = sum(phases.values()) >= count
        phase, code = self._one(folder, number, None if enough else targets.pop())
        phases.update([phase] if phase and code != 0 else [])
      finished += 1
      self._same(folder)
    told = ', '.join(f'{phase} {n}' for phase, n in phases.most_common())
    return f'{sum(phases.values())} in {finished} run{"s" if finished > 1 else ""}: {told}'

  def _one(self, folder: Path, number: signal.Signals, target: str | None):
    """One process of a run: (what the signal met, its exit code)."""
    if target == 'data':
      shutil.rmtree(self.out / 'cache', ignore_errors=True)
    life = Life(self.name, folder, self.out)
    if target is not None:
      if number == signal.SIGTERM:
        time.sleep(LISTENS)
      choose_moment(life, self.rng, target, self.start_up, self.whole)
    phase = life.end_by(number) if target is not None else None
    code = life.wait()
    wanted = {-signal.SIGKILL} if number == signal.SIGKILL else {EXIT_INTERRUPTED}
    # A signal may meet the very end of a run that is done.
    done = 'Traceback' not in life.stderr and code in (0, -number) and self._done(folder)
    good = code in wanted or done if phase else code == 0
    self._must(good, life, f'{number.name} during {phase}: exit code {code}')
    self._must('Traceback' not in life.stderr, life, f'{number.name} during {phase}: Traceback')
    return phase, code

  def _done(self, folder: Path) -> bool:
    return (folder / 'checkpoints' / self.expected['last step'].decode()).is_dir()

  def damage(self, count: int) -> str:
    """A file of the last checkpoint is cut short, or one of its bits turned over."""
    files = []
    for number in range(2 * count):
      how = ('truncated', 'bit flipped')[number % 2]
      folder = self._new('damaged')
      shutil.copytree(self.out / self.name / 'whole', folder)
      last, before = sorted(int(p.name) for p in (folder / 'checkpoints').iterdir())[::-1][:2]
      checkpoint = folder / 'checkpoints' / str(last)
      path = self._damage_one(checkpoint, how)
      life = Life(self.name, folder, self.out)
      self._must(life.wait() == 0, life, f'{path.name} {how}: the run failed')
      told = (
        f'step {last} is corrupt' in life.stderr
        and f'using the checkpoint of step {before}' in life.stderr
      )
      self._must(told, life, f'{path.name} {how}: not told')
      self._same(folder)
      files.append(f'{path.relative_to(checkpoint)} {how}')
    return f'{len(files)} told, the one before used: {", ".join(files)}'

  def _damage_one(self, checkpoint: Path, how: str) -> Path:
    # Files without a checksum hold nothing that is read again.
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
    """The disk of the run folder fills at a random moment; then there is room again."""
    disk = self.out / 'disk'
    disk.mkdir(exist_ok=True)
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
      return 'not tried: no right to mount a small disk'
    try:
      return self._fill(disk / self.name)
    finally:
      subprocess.run(['umount', '-l', str(disk)], check=False)

  def _fill(self, folder: Path) -> str:
    ballast = folder.with_name('ballast')
    life = Life(self.name, folder, self.out)
    life.wait_for('saving', self.rng.randint(2, 5))
    _fill_up(ballast)
    code = life.wait()
    self._must(code == 1, life, f'on a full disk: exit code {code}')
    last = life.stderr.splitlines()[-1] if life.stderr else ''
    told = last.startswith('t2x: ') and 'No space' in last
    self._must(told, life, 'a full disk is not told in the last line')
    self._must('Traceback' not in life.stderr, life, 'a full disk: Traceback')
    ballast.unlink()
    life = Life(self.name, folder, self.out)
    self._must(life.wait() == 0, life, 'with room again the run failed')
    self._must('corrupt' not in life.stderr, life, 'a full disk left a corrupt checkpoint')
    self._same(folder)
    good = last.split('; ')[-1].split('. ')[0]
    return f'exit code 1, "No space left on device", "{good}"; with room again the same end'

  def endured(self) -> str:
    """Checkpoints that cannot be saved for a while, in a run that was told to go on."""
    folder = self._new('endured')
    extra = ['--gin.Trainer.failed_saves=20']
    life = Life(self.name, folder, self.out, ('-c', NO_ROOM), extra)
    self._must(life.wait() == 0, life, 'a run that may go on without room did not')
    told = life.stderr.count('training continues after failed save')
    self._must(told > 0, life, 'failed saves are not told')
    self._same(folder)
    return f'{told} failed saves told, the run went on to the same end'

  def _new(self, kind: str) -> Path:
    folder = self.folder / kind
    shutil.rmtree(folder, ignore_errors=True)
    return folder

  def _same(self, folder: Path) -> None:
    found = end_of(folder)
    names = sorted(found.keys() | self.expected.keys())
    differ = [name for name in names if found.get(name) != self.expected.get(name)]
    if differ:
      raise Failure(f'{folder} differs from the uninterrupted run in {", ".join(differ[:5])}')

  def _must(self, good: bool, life: Life, what: str) -> None:
    if not good:
      raise Failure(f'{what}; stderr: {life.stderr[-1500:]}')


def _fill_up(path: Path) -> None:
  """Writes until the disk has no byte left."""
  with path.open('wb', buffering=0) as file:
    for size in (1 << 16, 1 << 10, 1):
      try:
        while True:
          file.write(b'\0' * size)
      except OSError:
        pass


def trials(args: argparse.Namespace, out: Path, name: str):
  """(what is tried, what came of it, whether it failed), one after the other."""
  chaos = Chaos(name, out, args.seed)
  for what, trial in (
    ('uninterrupted', chaos.uninterrupted),
    ('SIGKILL', lambda: chaos.interruptions(signal.SIGKILL, args.kills)),
    ('SIGTERM', lambda: chaos.interruptions(signal.SIGTERM, args.terms)),
    ('damaged files', lambda: chaos.damage(args.damages)),
    ('full disk', chaos.full_disk),
    ('full disk, endured', chaos.endured),
  ):
    began = time.monotonic()
    if args.trials and what not in ('uninterrupted', *args.trials):
      continue
    try:
      result, failed = trial(), False
    except (Failure, TimeoutError) as error:
      result, failed = str(error), True
    yield what, result, failed, time.monotonic() - began
    if failed and what == 'uninterrupted':
      return


def main() -> int:
  """Prints a line a trial. Returns 1 when one failed."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--experiments', nargs='+', choices=EXPERIMENTS, default=EXPERIMENTS)
  parser.add_argument('--kills', type=int, default=25, help='SIGKILLs an experiment')
  parser.add_argument('--terms', type=int, default=8, help='SIGTERMs an experiment')
  parser.add_argument('--damages', type=int, default=2, help='files cut, and files with a bit off')
  parser.add_argument('--trials', nargs='+', help='these alone (as the table names them)')
  parser.add_argument('--out', type=Path, help='keeps everything here (default: a temporary one)')
  parser.add_argument('--seed', type=int, default=0, help='decides the moments')
  args = parser.parse_args()
  out = (args.out or Path(tempfile.mkdtemp(prefix='t2x-chaos-'))).absolute()
  write_data(out / 'data')
  failures = 0
  print('| experiment | trial | result | minutes |\n|---|---|---|---|', flush=True)
  for name in args.experiments:
    for what, result, failed, seconds in trials(args, out, name):
      failures += failed
      verdict = 'FAILED: ' if failed else ''
      print(f'| {name} | {what} | {verdict}{result} | {seconds / 60:.1f} |', flush=True)
  print(f'{failures} trials failed; everything is in {out}' if failures else 'all ended the same')
  if not failures and args.out is None:
    shutil.rmtree(out)
  return 1 if failures else 0


if __name__ == '__main__':
  sys.exit(main())
