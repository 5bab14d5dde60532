"""`t2x sweep`: plans the trials of a sweep file, prints the plan and runs the remaining trials."""

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
from t2x.files import write_atomically
from t2x.sweeps.engines import Ray, Slurm
from t2x.sweeps.json_files import Damaged
from t2x.sweeps.plan import StepSeconds, make_plan
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
from t2x.sweeps.runners import InProcess, Pool, Runner, distinct, gpus
from t2x.sweeps.step_time import step_seconds
from t2x.sweeps.sweep import Sweep, read_sweep
from t2x.sweeps.timing import cores
from t2x.terminal import console

_PREALLOCATE = 'XLA_PYTHON_CLIENT_PREALLOCATE'
_MAX_PROCESSES = 8
_MAX_TOGETHER = 8


@dataclasses.dataclass(frozen=True)
class Local:
  """Settings of the local runner; None: chosen by the kind of device.

  Attributes:
    processes: number of processes, each with its share of the CPU cores or GPUs.
    together: number of trials of one program that each process trains with one vmapped step.
  """

  processes: int | None = None
  together: int | None = None


def run_worker(
  file: Path, out: Path, share: tuple[int, int], together: int, *, confirm: bool = False
) -> None:
  """Runs trials of a planned sweep in this process.

  Args:
    file: the sweep file.
    out: output folder with the plan and the trials.
    share: index of this worker, and number of workers.
    together: number of trials of one program that are trained with one vmapped step.
    confirm: whether to run the trials of the confirmation.
  """
  origin()  # Cached now, as the commit may change before the first trial ends.
  trials = distinct(read_plan(out / _name(file, confirm)).trials)
  InProcess(share, together).run(trials, out / 'trials', lambda *_: None)


def run_sweep(
  file: Path,
  out: Path,
  overrides: Sequence[str],
  runner: Local | Literal['slurm', 'ray'],
  settings: Mapping[str, Any],
  *,
  retry: bool = False,
  dry_run: bool = False,
  confirm: bool = False,
) -> int:
  """Plans and runs a sweep.

  Args:
    file: the sweep file.
    out: output folder; trials are written to out/trials.
    overrides: bindings `NAME=VALUE`.
    runner: the local runner, or the name of an engine.
    settings: settings of the engine.
    retry: whether to run failed trials again.
    dry_run: whether to print the plan only.
    confirm: whether to repeat the variants that help or hurt with fresh seeds, in out/NAME-confirm.

  Returns:
    The exit code: 1 if a trial failed, lacks the metric, or its budget cannot be matched; else 0.
    Diverged trials are results, not failures.
  """
  folder, trials_folder = out / _name(file, confirm), out / 'trials'
  _check_name(file, folder)
  # This process leaves the accelerator's memory to the workers, which use the setting of the user.
  own = () if _PREALLOCATE in os.environ else (_PREALLOCATE,)
  os.environ.setdefault(_PREALLOCATE, 'false')
  origin()
  with tempfile.TemporaryDirectory() as scratch:
    measure = step_seconds(folder / 'seconds.json', Path(scratch), keep=not dry_run)
    plan, configs = _plan(read_sweep(file, overrides), measure, out / file.stem, confirm)
  if retry and not dry_run:
    _remove_failures(plan.trials, trials_folder)
  _report_damage(plan.trials, trials_folder, keep=dry_run)
  print(plan_table(plan, trials_folder))
  if dry_run:
    return 0
  try:
    sweep_file = os.path.relpath(plan.file, folder.resolve())
    write_plan(folder, dataclasses.replace(plan, file=sweep_file))
    for name, text in configs.items():
      _write_config(trials_folder / name, text)
  except OSError as error:
    raise UserError(f'--out {out} cannot be written: {error.strerror}') from error
  _run(_runner(file, out, runner, settings, own, confirm), plan, trials_folder)
  return _summary(plan, trials_folder, folder)


def _name(file: Path, confirm: bool) -> str:
  """Returns the name of the folder of a sweep, or of its confirmation."""
  return f'{file.stem}-confirm' if confirm else file.stem


def _plan(
  sweep: Sweep, measure: StepSeconds, results: Path, confirm: bool
) -> tuple[Plan, dict[str, str]]:
  if not confirm:
    return make_plan(sweep, measure)
  # Reads the report, which requires an extra.
  from t2x.sweeps.confirm import confirmation, keep

  fresh, candidates = confirmation(sweep, results)
  return keep(*make_plan(fresh, measure), candidates)


def _check_name(file: Path, folder: Path) -> None:
  """Refuses a sweep file whose folder is used by another sweep or by the trials."""
  if folder.name == 'trials':
    raise UserError(
      f'{file}: its results would be written to {folder}, the folder of the trials: rename the file'
    )
  before = Path()
  with contextlib.suppress(UserError):
    # Relative to the folder, as the project may have been moved or copied with its results.
    before = (folder / read_plan(folder).file).resolve()
  # A sweep file that no longer exists was moved.
  if before.is_file() and before != file.resolve():
    raise UserError(
      f'{folder} contains the sweep of {before}: rename {file}, or set another folder with --out'
    )


def _write_config(run: Path, text: str) -> None:
  """Writes the config of a trial that has not ended.

  An existing config is replaced: its module paths are wrong if the project was moved.
  """
  run.mkdir(parents=True, exist_ok=True)
  if usable_outcome(run) is None:
    write_atomically(run / 'config.gin', text.encode())


def _report_damage(trials: Sequence[Trial], folder: Path, keep: bool) -> None:
  """Reports damaged outcomes and renames their files, so that the trials run again."""
  for trial in distinct(trials):
    path = folder / trial.folder / 'trial.json'
    try:
      read_outcome(path.parent)
    except Damaged as error:
      print(f't2x: {error}; the trial runs again', file=sys.stderr)
      if not keep:
        with contextlib.suppress(FileNotFoundError):
          os.replace(path, path.with_name('trial.json.damaged'))


def _remove_failures(trials: Sequence[Trial], folder: Path) -> None:
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
  confirm: bool,
) -> Runner:
  """Builds the runner; `own` are environment variables that are not passed to the workers."""
  folder = out / _name(file, confirm)
  if runner == 'slurm':
    return Slurm(folder / 'slurm', settings)
  if runner == 'ray':
    return Ray(settings)
  if settings:
    raise UserError('--setting requires --runner slurm or ray')
  processes, together = _local_counts(runner)
  if processes == 1:
    return InProcess(together=together)

  def command(index: int, count: int) -> list[str]:
    worker = ['--out', str(out), '--worker', f'{index}/{count}', '--together', str(together)]
    worker += ['--confirm'] if confirm else []
    return [sys.executable, '-m', 't2x', 'sweep', str(file), *worker]

  return Pool(command, processes, folder, own)


def _local_counts(requested: Local) -> tuple[int, int]:
  """Returns the number of processes, and of trials that each trains with one vmapped step.

  On a CPU one process per core is faster than vmapped steps; on an accelerator vmapped steps are.
  """
  device = jax.devices()[0]
  on_cpu = device.platform == 'cpu'
  devices = len(gpus()) or jax.local_device_count()
  processes = requested.processes or (min(cores(), _MAX_PROCESSES) if on_cpu else devices)
  together = requested.together or (1 if on_cpu else _MAX_TOGETHER)
  order = 'one after another' if together == 1 else f'up to {together} of a program together (vmap)'
  count = 'one process' if processes == 1 else f'{processes} processes'
  print(f'on {device.device_kind}: {count}, trials {order} (--processes, --together)')
  return processes, together


def _run(runner: Runner, plan: Plan, folder: Path) -> None:
  """Runs the trials with a progress bar, and prints one line per trial to stderr."""
  columns = (
    TextColumn('{task.description}'),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
  )
  trials = distinct(plan.trials)
  before = [usable_outcome(folder / trial.folder) for trial in trials]
  remaining = [trial for trial, outcome in zip(trials, before, strict=True) if outcome is None]
  checked: list[Outcome] = []
  for outcome in filter(None, before):
    _check_metric(plan, outcome, checked)
  with Progress(*columns, console=console(), transient=True) as progress:
    task = progress.add_task('trials', total=len(trials), completed=len(trials) - len(remaining))

    def on_end(trial, outcome):
      _check_metric(plan, outcome, checked)
      progress.advance(task)
      value = outcome.metrics.get(plan.metric)
      text = outcome.reason if value is None else f'{plan.metric} {value:.5g}'
      where = ' '.join(f'{k}={v}' for k, v in trial.point.items())
      name = f'{trial.variant} {where}'.strip()
      line = f'{name}, seed {trial.seed}: {outcome.status}, {text} ({outcome.seconds:.1f} s)'
      progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    runner.run(remaining, folder, on_end)


def _lacks_metric(plan: Plan, outcome: Outcome) -> bool:
  return outcome.status == 'finished' and plan.metric not in outcome.metrics


def _check_metric(plan: Plan, outcome: Outcome, checked: list[Outcome]) -> None:
  """Raises UserError if the first finished trial lacks the metric; `checked` are finished ones that have it."""
  if outcome.status != 'finished' or checked:
    return
  if _lacks_metric(plan, outcome):
    hint = config_lib.did_you_mean(plan.metric, outcome.metrics)
    names = ', '.join(sorted(outcome.metrics))
    raise UserError(
      f"no metric '{plan.metric}' in a finished trial{hint}: set Sweep.metric to one of {names}"
    )
  checked.append(outcome)


def _summary(plan: Plan, folder: Path, report: Path) -> int:
  outcomes = [usable_outcome(folder / trial.folder) for trial in distinct(plan.trials)]
  counts = {
    status: sum(1 for outcome in outcomes if outcome is not None and outcome.status == status)
    for status in ('finished', 'diverged', 'failed')
  }
  counts[f"without '{plan.metric}'"] = missing = sum(
    1 for outcome in outcomes if outcome is not None and _lacks_metric(plan, outcome)
  )
  text = ', '.join(f'{count} {status}' for status, count in counts.items() if count)
  if counts['failed']:
    text += ' (--retry runs failed trials again)'
  if names := dict.fromkeys(trial.variant for trial in plan.trials if trial.problem):
    text = f'{text}; not run, because their budgets do not match: {", ".join(names)}'
  print(f'{text or "no trials to run"}; next: t2x report {report}')
  return 1 if counts['failed'] or missing or names else 0
