"""`t2x sweep`: plans the trials of a sweep file, prints them, runs those that have not ended."""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from t2x import config as config_lib
from t2x.errors import UserError
from t2x.files import write_whole
from t2x.sweeps.engines import Ray, Slurm
from t2x.sweeps.json_files import Damaged
from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import plan_table
from t2x.sweeps.provenance import origin
from t2x.sweeps.records import (
  Outcome,
  Plan,
  Trial,
  read_outcome,
  read_plan,
  usable_outcome,
  write_plan,
)
from t2x.sweeps.runners import Here, Pool, Runner, distinct, gpus
from t2x.sweeps.step_time import step_seconds
from t2x.sweeps.sweep import read_sweep
from t2x.sweeps.timing import cores
from t2x.terminal import console

_PREALLOCATE = 'XLA_PYTHON_CLIENT_PREALLOCATE'
_MOST_PROCESSES = 8
_MOST_TOGETHER = 8


@dataclasses.dataclass(frozen=True)
class Local:
  """How trials run on this machine; None: by the device.

  Attributes:
    processes: each has its cores or its GPU.
    together: trials of one program that each process trains at once.
  """

  processes: int | None = None
  together: int | None = None


def run_worker(file: Path, out: Path, share: tuple[int, int], together: int) -> None:
  """Runs trials of a planned sweep in this process.

  Args:
    file: the sweep file.
    out: the folder of the sweeps.
    share: the index of this worker, and how many there are.
    together: trials of one program that are trained at once.
  """
  origin()  # Now: the commit may be another when the first trial ends.
  trials = distinct(read_plan(out / file.stem).trials)
  Here(share, together).run(trials, out / 'trials', lambda *_: None)


def run_sweep(
  file: Path,
  out: Path,
  overrides: Sequence[str],
  runner: Local | Literal['slurm', 'ray'],
  settings: Mapping[str, Any],
  *,
  retry: bool = False,
  dry_run: bool = False,
) -> int:
  """Plans and runs a sweep.

  Args:
    file: the sweep file.
    out: the folder of the sweeps; trials go to out/trials.
    overrides: `NAME=VALUE` each.
    runner: where the trials run.
    settings: of the runner's engine.
    retry: runs failed trials again.
    dry_run: prints the plan only.

  Returns:
    The exit code: 1 where a trial failed (diverged ones are results), has no such metric, or cannot
    be matched in its budget.
  """
  folder, trials_folder = out / file.stem, out / 'trials'
  _check_name(file, folder)
  # What plans and waits leaves the accelerator's memory to the workers, which do as the user says.
  own = () if _PREALLOCATE in os.environ else (_PREALLOCATE,)
  os.environ.setdefault(_PREALLOCATE, 'false')
  origin()
  with tempfile.TemporaryDirectory() as scratch:
    measure = step_seconds(folder / 'seconds.json', Path(scratch), keep=not dry_run)
    plan, configs = make_plan(read_sweep(file, overrides), measure)
  if retry and not dry_run:
    _forget_failures(plan.trials, trials_folder)
  _report_damage(plan.trials, trials_folder, keep=dry_run)
  print(plan_table(plan, trials_folder))
  if dry_run:
    return 0
  try:
    sweep_file = os.path.relpath(plan.file, folder.resolve())
    write_plan(folder, dataclasses.replace(plan, file=sweep_file))
    for name, text in configs.items():
      _keep(trials_folder / name, text)
  except OSError as error:
    raise UserError(f'--out {out} cannot be written: {error.strerror}') from error
  _run(_runner(file, out, runner, settings, own), plan, trials_folder)
  return _summary(plan, trials_folder, folder)


def _check_name(file: Path, folder: Path) -> None:
  """Refuses a sweep file whose folder is that of another one, or of the trials."""
  if folder.name == 'trials':
    raise UserError(
      f'{file}: its results would go to {folder}, where trials are: name it otherwise'
    )
  before = Path()
  with contextlib.suppress(UserError):
    # Relative to the folder, where the project was moved or copied with its results.
    before = (folder / read_plan(folder).file).resolve()
  # One that is there no more was moved.
  if before.is_file() and before != file.resolve():
    raise UserError(
      f'{folder} holds the sweep of {before}: rename {file}, or give it another folder with --out'
    )


def _keep(run: Path, text: str) -> None:
  """Writes the config of a trial that has not ended.

  Also where there is one: the project may have moved since, and with it the modules that it names.
  """
  run.mkdir(parents=True, exist_ok=True)
  if usable_outcome(run) is None:
    write_whole(run / 'config.gin', text.encode())


def _report_damage(trials: Sequence[Trial], folder: Path, keep: bool) -> None:
  """Reports trials whose outcome cannot be read, and sets it aside: they run again."""
  for trial in distinct(trials):
    path = folder / trial.folder / 'trial.json'
    try:
      read_outcome(path.parent)
    except Damaged as error:
      print(f't2x: {error}; the trial runs again', file=sys.stderr)
      if not keep:
        with contextlib.suppress(FileNotFoundError):
          os.replace(path, path.with_name('trial.json.damaged'))


def _forget_failures(trials: Sequence[Trial], folder: Path) -> None:
  for trial in distinct(trials):
    outcome = usable_outcome(folder / trial.folder)
    if outcome is not None and outcome.status == 'failed':
      (folder / trial.folder / 'trial.json').unlink(missing_ok=True)


def _runner(
  file: Path,
  out: Path,
  runner: Local | Literal['slurm', 'ray'],
  settings: Mapping[str, Any],
  own: Sequence[str],
) -> Runner:
  """Builds the runner; `own` are environment variables that are not for the workers."""
  folder = out / file.stem
  if runner == 'slurm':
    return Slurm(folder / 'slurm', settings)
  if runner == 'ray':
    return Ray(settings)
  if settings:
    raise UserError('--setting is for --runner slurm and ray')
  processes, together = _local(runner)
  if processes == 1:
    return Here(together=together)

  def command(index: int, count: int) -> list[str]:
    worker = ['--out', str(out), '--worker', f'{index}/{count}', '--together', str(together)]
    return [sys.executable, '-m', 't2x', 'sweep', str(file), *worker]

  return Pool(command, processes, folder, own)


def _local(wanted: Local) -> tuple[int, int]:
  """Returns how many processes there are, and how many trials each trains together.

  A CPU's cores do more with a process each than with one vmapped step; an accelerator is filled by the
  latter.
  """
  device = jax.devices()[0]
  on_cpu = device.platform == 'cpu'
  devices = len(gpus()) or jax.local_device_count()
  processes = wanted.processes or (min(cores(), _MOST_PROCESSES) if on_cpu else devices)
  together = wanted.together or (1 if on_cpu else _MOST_TOGETHER)
  way = 'one after another' if together == 1 else f'up to {together} of a program together (vmap)'
  count = 'one process' if processes == 1 else f'{processes} processes'
  print(f'on {device.device_kind}: {count}, trials {way} (--processes, --together)')
  return processes, together


def _run(runner: Runner, plan: Plan, folder: Path) -> None:
  """Runs with a bar on the terminal; a line a trial goes to stderr."""
  columns = (
    TextColumn('{task.description}'),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
  )
  trials = distinct(plan.trials)
  before = [usable_outcome(folder / trial.folder) for trial in trials]
  left = [trial for trial, outcome in zip(trials, before, strict=True) if outcome is None]
  seen: list[Outcome] = []
  for outcome in filter(None, before):
    _check_metric(plan, outcome, seen)
  with Progress(*columns, console=console(), transient=True) as progress:
    task = progress.add_task('trials', total=len(trials), completed=len(trials) - len(left))

    def ended(trial, outcome):
      _check_metric(plan, outcome, seen)
      progress.advance(task)
      value = outcome.metrics.get(plan.metric)
      told = outcome.reason if value is None else f'{plan.metric} {value:.5g}'
      where = ' '.join(f'{k}={v}' for k, v in trial.point.items())
      name = f'{trial.variant} {where}'.strip()
      line = f'{name}, seed {trial.seed}: {outcome.status}, {told} ({outcome.seconds:.1f} s)'
      progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    runner.run(left, folder, ended)


def _lacks(plan: Plan, outcome: Outcome) -> bool:
  return outcome.status == 'finished' and plan.metric not in outcome.metrics


def _check_metric(plan: Plan, outcome: Outcome, seen: list[Outcome]) -> None:
  """Ends a sweep whose metric the first finished trial has not; `seen` are those that have it."""
  if outcome.status != 'finished' or seen:
    return
  if _lacks(plan, outcome):
    hint = config_lib.did_you_mean(plan.metric, outcome.metrics)
    has = ', '.join(sorted(outcome.metrics))
    raise UserError(
      f"no metric '{plan.metric}' in a trial that finished{hint}: set Sweep.metric to one of {has}"
    )
  seen.append(outcome)


def _summary(plan: Plan, folder: Path, report: Path) -> int:
  outcomes = [usable_outcome(folder / trial.folder) for trial in distinct(plan.trials)]
  counts = {
    status: sum(1 for one in outcomes if one is not None and one.status == status)
    for status in ('finished', 'diverged', 'failed')
  }
  counts[f"without '{plan.metric}'"] = missing = sum(
    1 for one in outcomes if one is not None and _lacks(plan, one)
  )
  told = ', '.join(f'{count} {status}' for status, count in counts.items() if count)
  if counts['failed']:
    told += ' (--retry runs those that failed again)'
  if names := dict.fromkeys(trial.variant for trial in plan.trials if trial.problem):
    told = f'{told}; not run, as no budget matches: {", ".join(names)}'
  print(f'{told or "nothing to run"}; now: t2x report {report}')
  return 1 if counts['failed'] or missing or names else 0
