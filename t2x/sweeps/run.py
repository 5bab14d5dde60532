"""`t2x sweep`: plans the trials of a sweep file, prints them, runs those that have not ended."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from t2x import config as config_lib
from t2x.errors import UserError
from t2x.files import write_whole
from t2x.sweeps.engines import Ray, Slurm
from t2x.sweeps.origin import origin
from t2x.sweeps.plan import Load, make_plan
from t2x.sweeps.probe import step_seconds
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
from t2x.sweeps.stored import Damaged
from t2x.sweeps.sweep import read_sweep
from t2x.sweeps.table import plan_table
from t2x.sweeps.timing import cores
from t2x.terminal import console

__all__ = ['sweep']

_PREALLOCATE = 'XLA_PYTHON_CLIENT_PREALLOCATE'
_MOST_PROCESSES = 8
_MOST_TOGETHER = 8


def sweep(args: argparse.Namespace, load: Load) -> int:
  """Plans and runs a sweep.

  Returns:
    The exit code: 1 where a trial failed (diverged ones are results), has no such metric, or cannot
    be matched in its budget.
  """
  folder = Path(args.out) / Path(args.file).stem
  trials_folder = Path(args.out) / 'trials'
  if args.worker:
    origin()  # Now: the commit may be another when the first trial ends.
    index, count = map(int, args.worker.split('/'))
    trials = distinct(read_plan(folder).trials)
    Here(load, (index, count), args.together or 1).run(trials, trials_folder, lambda *_: None)
    return 0
  _check_name(Path(args.file), folder)
  # What plans and waits leaves the accelerator's memory to the workers, which do as the user says.
  own = () if _PREALLOCATE in os.environ else (_PREALLOCATE,)
  os.environ.setdefault(_PREALLOCATE, 'false')
  origin()
  plan, configs = _planned(args, load, folder)
  if args.retry and not args.dry_run:
    _forget_failures(plan.trials, trials_folder)
  _report_damage(plan.trials, trials_folder, keep=args.dry_run)
  print(plan_table(plan, trials_folder))
  if args.dry_run:
    return 0
  try:
    file = os.path.relpath(plan.file, folder.resolve())
    write_plan(folder, dataclasses.replace(plan, file=file))
    for name, text in configs.items():
      _keep(trials_folder / name, text)
  except OSError as error:
    raise UserError(f'--out {args.out} cannot be written: {error.strerror}') from error
  _run(_runner(args, load, folder, own), plan, trials_folder)
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


def _planned(args: argparse.Namespace, load: Load, folder: Path) -> tuple[Plan, dict[str, str]]:
  read = read_sweep(args.file, args.overrides)
  with tempfile.TemporaryDirectory() as scratch:
    measure = step_seconds(folder / 'seconds.json', Path(scratch), keep=not args.dry_run)
    return make_plan(read, load, measure)


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


def _runner(args: argparse.Namespace, load: Load, folder: Path, own: Sequence[str]) -> Runner:
  """As the arguments say; `own`: environment variables that are not for the workers."""
  settings = _settings(args.setting)
  if args.runner == 'slurm':
    return Slurm(load, folder / 'slurm', settings)
  if args.runner == 'ray':
    return Ray(load, settings)
  if settings:
    raise UserError('--setting is for --runner slurm and ray')
  processes, together = _local(args)
  if processes == 1:
    return Here(load, together=together)

  def command(index: int, count: int) -> list[str]:
    worker = ['--out', args.out, '--worker', f'{index}/{count}', '--together', str(together)]
    return [sys.executable, '-m', 't2x', 'sweep', args.file, *worker]

  return Pool(command, processes, folder, own)


def _local(args: argparse.Namespace) -> tuple[int, int]:
  """How many processes, and how many trials each trains together: as given, or by the device.

  A CPU's cores do more with a process each than with one vmapped step; an accelerator is filled by the
  latter.
  """
  device = jax.devices()[0]
  on_cpu = device.platform == 'cpu'
  devices = len(gpus()) or jax.local_device_count()
  processes = args.workers or (min(cores(), _MOST_PROCESSES) if on_cpu else devices)
  together = args.together or (1 if on_cpu else _MOST_TOGETHER)
  way = 'one after another' if together == 1 else f'up to {together} of a program together (vmap)'
  count = 'one process' if processes == 1 else f'{processes} processes'
  print(f'on {device.device_kind}: {count}, trials {way} (--processes, --together)')
  return processes, together


def _settings(given: Sequence[str]) -> dict[str, Any]:
  """`NAME=VALUE` each; values are JSON where they can be read so."""
  settings: dict[str, Any] = {}
  for one in given:
    name, equals, text = one.partition('=')
    if not equals:
      raise UserError(f"--setting '{one}' wants NAME=VALUE")
    try:
      settings[name] = json.loads(text)
    except ValueError:
      settings[name] = text
  return settings


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
