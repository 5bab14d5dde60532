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
from t2x.sweeps.plan_table import groups_table, plan_table
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
from t2x.sweeps.runners import (
  InProcess,
  Pool,
  Runner,
  default_together,
  distinct,
  gpus,
  groups_of,
)
from t2x.sweeps.step_time import step_seconds
from t2x.sweeps.sweep import Sweep, read_sweep
from t2x.sweeps.timing import cores
from t2x.terminal import console

_PREALLOCATE = 'XLA_PYTHON_CLIENT_PREALLOCATE'
_MAX_PROCESSES = 8


@dataclasses.dataclass(frozen=True)
class Local:
  """Settings of the local runner; None: chosen by the kind of device.

  Attributes:
    processes: number of worker processes, each with its share of the CPU cores or GPUs. 1 runs the trials in this
      process; if the system kills it, the sweep ends and the next one counts the attempt.
    together: number of trials of one program that each process trains with one vmapped step.
  """

  processes: int | None = None
  together: int | None = None


def run_worker(
  file: Path,
  out: Path,
  share: tuple[int, int],
  together: int,
  group: int | None = None,
  *,
  confirm: bool = False,
) -> None:
  """Runs trials of a planned sweep in this process.

  Args:
    file: the sweep file.
    out: output folder with the plan and the trials.
    share: index of this worker, and number of workers.
    together: number of trials of one program that are trained with one vmapped step.
    group: number of the compiled program whose trials to run; None for all trials.
    confirm: whether to run the trials of the confirmation.
  """
  origin()  # Cached now, as the commit may change before the first trial ends.
  plan = read_plan(out / _name(file, confirm))
  trials = distinct((plan if group is None else _of_group(plan, group)).trials)
  InProcess(share, together).run(trials, out / 'trials', lambda *_: None)


def run_sweep(
  file: Path,
  out: Path,
  overrides: Sequence[str],
  runner: Local | Literal['slurm', 'ray'],
  settings: Mapping[str, Any],
  *,
  retry: bool = False,
  only: Literal['show', 'plan'] | None = None,
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
    only: 'show' prints the plan; 'plan' also writes it, and prints the groups for `run_group`; neither runs trials.
    confirm: whether to repeat the variants that help or hurt with fresh seeds, in out/NAME-confirm.

  Returns:
    The exit code: 1 if a trial failed, lacks the metric, or its budget cannot be matched; else 0.
    Diverged trials are results, not failures.
  """
  folder, trials_folder = out / _name(file, confirm), out / 'trials'
  _check_name(file, folder)
  own = _leave_memory()
  origin()
  dry_run = only == 'show'
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
  if only == 'plan':
    print(groups_table(plan, trials_folder))
    return 0
  _run(_runner(file, out, runner, settings, own, confirm), plan, trials_folder)
  return _summary(plan, trials_folder, folder)


def run_group(
  file: Path, out: Path, group: int, local: Local, *, retry: bool = False, confirm: bool = False
) -> int:
  """Runs the trials of one compiled program of a planned sweep, as one task of a job array.

  Args:
    file: the sweep file.
    out: output folder with the plan.
    group: number of the compiled program, in the order of the plan.
    local: settings of the local runner; one worker by default.
    retry: whether to run failed trials again.
    confirm: whether to run trials of the confirmation.

  Returns:
    The exit code, as of `run_sweep`.
  """
  folder, trials_folder, own = out / _name(file, confirm), out / 'trials', _leave_memory()
  origin()
  if not (folder / 'sweep.json').exists():
    command = f't2x sweep {file} --groups' + (' --confirm' if confirm else '')
    raise UserError(f'{folder} has no sweep.json: run `{command}` first')
  plan = _of_group(read_plan(folder), group)
  if retry:
    _remove_failures(plan.trials, trials_folder)
  _report_damage(plan.trials, trials_folder, keep=False)
  processes, together = _local_counts(dataclasses.replace(local, processes=local.processes or 1))
  runner: Runner = InProcess(together=together)
  if local.processes != 1:
    runner = _pool(file, out, processes, together, own, confirm, ('--group', str(group)))
  _run(runner, plan, trials_folder)
  return _summary(plan, trials_folder, folder)


def _of_group(plan: Plan, group: int) -> Plan:
  """Returns the plan with the trials of one compiled program only."""
  groups = groups_of(distinct(plan.trials))
  if group >= len(groups):
    raise UserError(f'--group {group}: the sweep has {len(groups)} groups, numbered from 0')
  return dataclasses.replace(plan, trials=tuple(groups[group]))


def _leave_memory() -> tuple[str, ...]:
  """Leaves the accelerator's memory to the workers; returns the variables that they must not inherit."""
  own = () if _PREALLOCATE in os.environ else (_PREALLOCATE,)
  os.environ.setdefault(_PREALLOCATE, 'false')
  return own


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
  if runner == 'slurm':
    return Slurm(out / _name(file, confirm) / 'slurm', settings)
  if runner == 'ray':
    return Ray(settings)
  if settings:
    raise UserError('--setting requires --runner slurm or ray')
  processes, together = _local_counts(runner)
  if runner.processes == 1:
    return InProcess(together=together)
  return _pool(file, out, processes, together, own, confirm)


def _pool(
  file: Path,
  out: Path,
  processes: int,
  together: int,
  own: Sequence[str],
  confirm: bool,
  more: Sequence[str] = (),
) -> Pool:
  """Builds a pool; `own` are variables that its workers do not inherit, `more` are further arguments of them."""

  def command(index: int, count: int) -> list[str]:
    worker = ['--out', str(out), '--worker', f'{index}/{count}', '--together', str(together), *more]
    worker += ['--confirm'] if confirm else []
    return [sys.executable, '-m', 't2x', 'sweep', str(file), *worker]

  return Pool(command, processes, out / _name(file, confirm), own)


def _local_counts(requested: Local) -> tuple[int, int]:
  """Returns the number of processes, and of trials that each trains with one vmapped step."""
  device = jax.devices()[0]
  on_cpu = device.platform == 'cpu'
  names = gpus()
  if names and requested.processes and requested.processes > len(names):
    raise UserError(
      f'--processes {requested.processes}: this process may use {len(names)} GPUs '
      f'({",".join(names)}), and each worker needs one; --together trains several trials on each GPU'
    )
  devices = len(names) or jax.local_device_count()
  processes = requested.processes or (min(cores(), _MAX_PROCESSES) if on_cpu else devices)
  together = requested.together or default_together()
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
