"""Real `t2x` processes on a GPU: runs that are killed and resumed, and a sweep with its report."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

CONFIGS = Path(__file__).resolve().parent / 'configs'
Emit = Callable[..., None]
# Each of five runs shares the GPU with the others.
SHARED = {'XLA_CLIENT_MEM_FRACTION': '0.15'}
EXACT = '--xla_gpu_deterministic_ops=true'
# Seconds before the end of the section in which runs save and end, and are compared.
ENDING = 15
SMALL = (
  *('d_model=32', 'num_layers=1', 'length=32', 'MLP.hidden_dim=64', 'Trainer.batch_size=4'),
  *('MultiHeadAttention.num_heads=2', "Part.examples={'validation': 1}"),
)


def t2x(*arguments: object, bindings: Sequence[str] = ()) -> list[str]:
  """Returns a command of t2x as a process of its own."""
  return [
    sys.executable,
    *('-m', 't2x', *map(str, arguments), *(f'--gin.{binding}' for binding in bindings)),
  ]


@dataclasses.dataclass
class Run:
  """A run of `t2x train` that logs digests of its batches, and may be killed once and started again.

  Attributes:
    folder: the run folder, beside which is its output.
    bindings: bindings of the command line.
    variables: environment variables.
    is_killed: whether the run is killed and resumed; then it saves checkpoints.
    killed_at: last step that was logged before the run was killed; 0 before.
    resumed_from: step of the checkpoint that it resumes from.
  """

  folder: Path
  bindings: tuple[str, ...]
  variables: dict[str, str]
  is_killed: bool
  process: subprocess.Popen | None = None
  killed_at: int = 0
  resumed_from: int = 0

  def start(self) -> None:
    """Starts the process; the same command resumes the run."""
    files = [CONFIGS / 'gpu_20m.gin', CONFIGS / 'gpu_resume.gin']
    never = () if self.is_killed else ('Trainer.checkpoint_every=0',)
    bindings = (*self.bindings, *never)
    with self.folder.with_suffix('.log').open('ab') as log:
      self.process = subprocess.Popen(
        t2x('train', *files, '--out', self.folder, bindings=bindings),
        env=os.environ | self.variables,
        stdout=log,
        stderr=log,
      )

  def kill(self) -> None:
    """Sends SIGKILL, and keeps what was logged."""
    assert self.process is not None
    self.process.kill()
    self.process.wait()
    shutil.copy(self.folder / 'metrics.jsonl', self.folder.with_suffix('.killed'))
    self.killed_at, self.resumed_from = self.last_step(), self.checkpoint()

  def end(self, deadline: float) -> int:
    """Waits for the process until a time, after which it is killed; returns its exit code."""
    assert self.process is not None
    try:
      return self.process.wait(timeout=max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      self.process.kill()
      return self.process.wait()

  def checkpoint(self) -> int:
    """Returns the step of the newest checkpoint; 0 without one."""
    names = [path.name for path in self.folder.glob('checkpoints/*')]
    return max((int(name) for name in names if name.isdigit()), default=0)

  def last_step(self) -> int:
    """Returns the last step that was logged; 0 before the first."""
    return max(self.metrics(), default=0)

  def metrics(self, killed: bool = False) -> dict[int, dict]:
    """Returns the reproducible metrics of training by step, at the end or when the run was killed."""
    path = self.folder.with_suffix('.killed') if killed else self.folder / 'metrics.jsonl'
    return {
      line.pop('step'): {
        name: value
        for name, value in line.items()
        if name != 'mfu' and not name.endswith('per_second')
      }
      for line in lines_of(path)
      if line['split'] == 'train'
    }

  def problem(self) -> str:
    """Returns the last lines of its output."""
    text = self.folder.with_suffix('.log').read_text(errors='replace').strip()
    return f'{self.folder.name}: {text[-400:]}'


def lines_of(path: Path) -> list[dict]:
  """Reads JSON lines; leaves out a last line that is not complete."""
  if not path.exists():
    return []
  with contextlib.closing(path.open()) as file:
    return [json.loads(line) for line in file if line.endswith('\n')]


def resume(emit: Emit, smoke: bool, seconds: float, work: Path) -> None:
  """Trains five runs at once, kills two of them, resumes these, and compares batches and losses.

  Two runs are not killed and one is; with XLA's deterministic operations, one is not killed and one is.
  """
  work.mkdir()
  # In a smoke test the number of steps ends the runs, not the time.
  steps = 400 if smoke else 0
  bindings = (*SMALL, f'Trainer.num_steps={steps}', 'Trainer.checkpoint_every=20') if smoke else ()
  exact = {**SHARED, 'XLA_FLAGS': f'{os.environ.get("XLA_FLAGS", "")} {EXACT}'.strip()}
  runs = {
    name: Run(work / name, bindings, variables, is_killed)
    for name, variables, is_killed in (
      ('first', SHARED, False),
      ('second', SHARED, False),
      ('killed', SHARED, True),
      ('exact', exact, False),
      ('exact_killed', exact, True),
    )
  }
  began = time.monotonic()
  try:
    for run in runs.values():
      run.start()
    watch(runs.values(), began + seconds / 2, began + seconds - ENDING, steps // 5 or 10**9)
    codes = [run.end(began + seconds - 3) for run in runs.values()]
  finally:
    for run in runs.values():
      if run.process is not None and run.process.poll() is None:
        run.process.kill()
  first, second, killed = (runs[name] for name in ('first', 'second', 'killed'))
  losses = [line['loss'] for line in first.metrics().values()]
  if not losses:
    raise RuntimeError(f'no step in time: {first.problem()}')
  emit(
    group='training',
    what='one of five runs that share the GPU',
    steps=first.last_step(),
    seconds=[line['seconds'] for line in lines_of(first.folder / 'timing.jsonl')][-1],
    losses=f'{losses[0]:.4f} to {losses[-1]:.4f}',
    exit_codes=' '.join(map(str, codes)),
    repeats=len(runs),
  )
  emit(group='after SIGKILL', what='default', repeats=1, **compared(killed, first, second))
  emit(
    group='after SIGKILL',
    what='deterministic operations',
    repeats=1,
    **compared(runs['exact_killed'], runs['exact']),
  )


def watch(runs: Iterable[Run], half: float, end: float, enough: int) -> None:
  """Kills and resumes runs after half of the time, or `enough` steps, and asks all to end when the time is up."""
  runs = list(runs)
  while any(run.process.poll() is None for run in runs):
    for run in runs:
      if not run.is_killed or run.killed_at or run.process.poll() is not None:
        continue
      # A few steps after a checkpoint, so that they are trained twice.
      saved, step = run.checkpoint(), run.last_step()
      if saved and step >= saved + 3 and (time.monotonic() >= half or step >= enough):
        run.kill()
        run.start()
    if time.monotonic() >= end:
      for run in runs:
        if run.process.poll() is None:
          run.process.send_signal(signal.SIGTERM)
      return
    time.sleep(0.1)


def compared(killed: Run, *others: Run) -> dict:
  """Compares a run that was killed with one or two that were not, after it was resumed."""
  for run in (killed, *others):
    # 75: it was asked to end, and saved its state.
    if run.process is not None and run.process.poll() not in (0, 75):
      return {'result': f'FAILED: exit code {run.process.returncode}: {run.problem()}'}
  if not killed.killed_at:
    return {'result': f'not killed, for lack of time: {killed.problem()}'}
  before, after = killed.metrics(killed=True), killed.metrics()
  first, *more = [other.metrics() for other in others]
  common = [
    step for step in after if step > killed.resumed_from and all(step in o for o in (first, *more))
  ]
  if not common:
    return {'result': 'not compared: no steps after it was resumed', 'killed_at': killed.killed_at}
  repeated = [step for step in common if step in before]
  row = {
    'killed_at': killed.killed_at,
    'resumed_from': killed.resumed_from,
    'steps_compared': len(common),
    **same_batches(before, after, first, *more),
    'steps_trained_twice': f'{sum(before[s] == after[s] for s in repeated)} of {len(repeated)} bitwise equal',
    'bitwise_equal': sum(after[step] == first[step] for step in common),
  }
  own = [distance(after, other, common) for other in (first, *more)]
  row['loss_difference'] = ' and '.join(f'{value:.2e}' for value in own)
  same = row['batches_differ'] == 0
  if not more:
    row['result'] = 'ok' if same and row['bitwise_equal'] == len(common) else 'WRONG'
    return row
  between = distance(first, more[0], common)
  # Of three equal runs, each is the one that is farthest from the others in one of three cases.
  near = min(own) <= between
  row['difference_of_two_uninterrupted'] = f'{between:.2e}'
  row['result'] = ('ok' if near else 'farther than two uninterrupted runs') if same else 'WRONG'
  return row


def distance(one: dict[int, dict], other: dict[int, dict], steps: Sequence[int]) -> float:
  """Returns the root of the mean squared difference of the losses of steps."""
  return statistics.fmean((one[s]['loss'] - other[s]['loss']) ** 2 for s in steps) ** 0.5


def same_batches(before: dict[int, dict], *tables: dict[int, dict]) -> dict:
  """Returns the number of steps that all runs trained, and at how many of them the batches differ.

  Args:
    before: metrics by step of the run that was killed, until then.
    tables: metrics by step of all runs, at the end.
  """
  common = set.intersection(*map(set, tables))
  different = 0
  for step in common:
    metrics = [table[step] for table in (*tables, before) if step in table]
    different += len({(m['batch_high'], m['batch_low']) for m in metrics}) > 1
  return {'batches_compared': len(common), 'batches_differ': different}


def sweep(emit: Emit, smoke: bool, seconds: float, work: Path) -> None:
  """Runs a sweep of four variants and three seeds, and emits its verdicts and the cost of its trials."""
  file, out = CONFIGS / 'gpu_sweep.gin', work
  bindings = (*SMALL, 'Trainer.num_steps=40') if smoke else ()
  began = time.monotonic()
  with subprocess.Popen(
    t2x('sweep', file, '--out', out, '--together', 3, bindings=bindings),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as process:
    try:
      text, _ = process.communicate(timeout=max(1, seconds - 1.5 * ENDING))
    except subprocess.TimeoutExpired:
      process.terminate()
      text, _ = process.communicate()
  wall = time.monotonic() - began
  plan = out / file.stem
  if not (plan / 'sweep.json').exists():
    raise RuntimeError(f'exit code {process.returncode}: {text.strip()[-400:]}')
  done = subprocess.run(
    t2x('report', plan, '--json'), stdout=subprocess.PIPE, text=True, check=True
  )
  report = json.loads(done.stdout)
  outcomes = [json.loads(path.read_text()) for path in out.glob('trials/*/trial.json')]
  emit(
    group='cost',
    what=report['progress'],
    verdict=report['result'],
    wall_seconds=round(wall, 1),
    trials_per_hour=round(3600 * report['ended'] / wall, 1),
    wall_seconds_per_trial=round(wall / report['ended'], 2) if report['ended'] else None,
    # A trial that is trained with others has its share of the time.
    seconds_per_trial=mean(outcomes, 'seconds'),
    of_which_compile=mean(outcomes, 'compile_seconds'),
    together=max((outcome['together'] for outcome in outcomes), default=None),
    repeats=report['ended'],
  )
  for row in report['rows']:
    costs = row['costs']
    interval = [row['difference'], row['difference_low'], row['difference_high']]
    emit(
      group='variants',
      what=row['variant'],
      verdict=row['verdict'],
      loss=row['mean'] and round(row['mean'], 4),
      difference=None if None in interval else '{:+.4f} ({:+.4f} to {:+.4f})'.format(*interval),
      parameters=costs['parameters'],
      flops_of_trial=costs['flops'],
      step_milliseconds=costs['step_seconds'] and round(1e3 * costs['step_seconds'], 3),
      repeats=row['n'],
    )


def mean(outcomes: Sequence[dict], name: str) -> float | None:
  """Returns the mean of a number of the trials that have it."""
  values = [outcome[name] for outcome in outcomes if outcome.get(name) is not None]
  return round(statistics.fmean(values), 2) if values else None
