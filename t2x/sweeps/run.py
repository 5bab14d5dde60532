"""`t2x sweep`: plans the trials of a sweep file, prints the plan and runs the remaining trials."""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from t2x.base import interpreter
from t2x.base.errors import UserError
from t2x.base.files import write_atomically
from t2x.base.json_files import Damaged
from t2x.base.packages import is_installed
from t2x.base.text_table import fold, terminal_width
from t2x.sweeps.engines import Ray, Slurm
from t2x.sweeps.plan_table import groups_table, plan_table, to_run, withheld
from t2x.sweeps.progress import Course, run_plan, summary
from t2x.sweeps.provenance import origin
from t2x.sweeps.records import (
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
from t2x.sweeps.stages import Stage, StageName, confirm_stages, folder_of, stages
from t2x.sweeps.step_time import step_seconds
from t2x.sweeps.sweep import Sweep, read_sweep
from t2x.sweeps.timing import cores
from t2x.sweeps.tune import Tuning, write_tuning

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
  stage: StageName = '',
) -> None:
  """Runs trials of a planned sweep in this process.

  Args:
    file: the sweep file.
    out: output folder with the plan and the trials.
    share: index of this worker, and number of workers.
    together: number of trials of one program that are trained with one vmapped step.
    group: number of the compiled program whose trials to run; None for all trials.
    stage: the stage whose trials to run.
  """
  origin()  # Cached now, as the commit may change before the first trial ends.
  plan = read_plan(folder_of(out, file.stem, stage))
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
  confirm_seeds: int | None = None,
  accept_changed: bool = False,
  quiet: bool = False,
) -> int:
  """Plans and runs a sweep, one stage after another, and reports the verdicts at the end.

  Args:
    file: the sweep file.
    out: output folder; trials are written to out/trials.
    overrides: bindings `NAME=VALUE`.
    runner: the local runner, or the name of an engine.
    settings: settings of the engine.
    retry: whether to run failed trials again.
    only: 'show' prints the plan of the first unfinished stage; 'plan' also writes it, and prints the groups
      for `run_group`; neither runs trials.
    confirm: whether to repeat the variants that help or hurt with fresh seeds, in out/NAME-confirm.
    confirm_seeds: number of fresh seeds; None: the number of seeds of the sweep.
    accept_changed: whether trials count that ended with other code, data or defaults.
    quiet: whether only how the trials ended and the verdicts are printed.

  Returns:
    The exit code: 1 if a trial failed, lacks the metric, or its budget cannot be matched; else 0.
    Diverged trials are results, not failures.
  """
  _check_name(file, folder_of(out, file.stem, 'confirm' if confirm else ''))
  own = _leave_memory()
  origin()
  sweep, code = read_sweep(file, overrides), 0
  sweep = dataclasses.replace(sweep, trials=out / 'trials', accept_changed=accept_changed)
  tuning: Tuning | None = None
  retried: set[str] = set()
  course, planned = Course(quiet), False
  for stage in _stages(sweep, out, confirm, confirm_seeds, keep=only != 'show'):
    folder, trials_folder = folder_of(out, file.stem, stage.name), out / 'trials'
    tuning = stage.tuning or tuning
    _check_name(file, folder)
    if retry and only != 'show':
      _remove_failures([t for t in stage.plan.trials if t.folder not in retried], trials_folder)
      retried |= {trial.folder for trial in stage.plan.trials}
    _report_damage(stage.plan.trials, trials_folder, keep=only == 'show')
    if only != 'show':
      _write(stage, folder, trials_folder)
    if not stage.is_last and _has_ended(stage.plan, trials_folder):
      trials = distinct(stage.plan.trials)
      course.start(trials, trials, stage.later)
      code = max(code, summary(stage.plan, trials_folder))
      continue
    if not quiet:
      print(_plan_text(stage, trials_folder, again=planned))
    _warn_of_looks(stage, folder)
    if only is not None:
      if only == 'plan':
        print(_how_to_run(stage, file) + groups_table(stage.plan, trials_folder))
      return 0
    worker = _runner(file, out, runner, settings, own, stage.name, quiet=quiet or planned)
    planned = True
    run_plan(worker, stage.plan, trials_folder, course, stage.later)
    code = max(code, summary(stage.plan, trials_folder))
  if tuning is not None:
    print(withheld(tuning), end='')
  _print_verdicts(folder_of(out, file.stem, 'confirm' if confirm else ''))
  return code


def _plan_text(stage: Stage, trials: Path, again: bool) -> str:
  """Returns the plan of a stage; of a stage after the first one (`again`) only what is new."""
  notes = [line for note in stage.notes[again:] for line in note.splitlines()]
  lines = [part for line in notes for part in fold(line, terminal_width(), '  ')]
  if again:
    return '\n'.join(['', *lines, f'{stage.plan.name}: {to_run(stage.plan, trials)}'])
  return '\n'.join([*lines, *[''][: len(lines)], plan_table(stage.plan, trials, stage.later)])


def _warn_of_looks(stage: Stage, folder: Path) -> None:
  """Prints whether earlier reports make the verdicts of a stage exploratory."""
  from t2x.sweeps.report.looks import warning

  # Other stages have no verdicts.
  if stage.name in ('', 'confirm') and (text := warning(folder, stage.plan)):
    print(f't2x: {text}', file=sys.stderr)


def _print_verdicts(folder: Path) -> None:
  """Writes the report of a sweep whose trials have ended, and prints its verdicts."""
  from t2x.sweeps.report import read_results, verdict_text, write_report

  results = read_results(folder)
  if results.judged is None:
    return
  write_report(folder, results)
  print(f'\n{verdict_text(results, terminal_width())}\n')
  figures = ' --figures' if is_installed('matplotlib') else ''
  print(f'report  {folder / "report.html"}\nnext    t2x report {folder}{figures}')


def _stages(
  sweep: Sweep, out: Path, confirm: bool, confirm_seeds: int | None, *, keep: bool
) -> Iterator[Stage]:
  """Yields the stages to run; measured step times are cached if `keep`."""
  cache = folder_of(out, sweep.name, 'confirm' if confirm else '') / 'seconds.json'
  with tempfile.TemporaryDirectory() as scratch:
    measure = step_seconds(cache, Path(scratch), keep=keep)
    if confirm:
      yield from confirm_stages(sweep, out, measure, confirm_seeds)
    else:
      yield from stages(sweep, out, measure)


def _how_to_run(stage: Stage, file: Path) -> str:
  """Returns a line with the options of the groups of a tuned sweep; '' for other sweeps."""
  if stage.plan.tuning == 'none':
    return ''
  return f'groups of {stage.plan.name}: t2x sweep {file}{_option(stage.name)} --group I\n'


def _option(stage: StageName) -> str:
  """Returns the command-line option of a stage."""
  options = {'': '', 'confirm': ' --confirm', 'confirm-tune': ' --confirm --stage tune'}
  return options.get(stage, f' --stage {stage}')


def _has_ended(plan: Plan, folder: Path) -> bool:
  return all(usable_outcome(folder / trial.folder) for trial in distinct(plan.trials))


def _write(stage: Stage, folder: Path, trials_folder: Path) -> None:
  """Writes the plan of a stage and the configs of its trials."""
  try:
    sweep_file = os.path.relpath(stage.plan.file, folder.resolve())
    write_plan(folder, dataclasses.replace(stage.plan, file=sweep_file))
    if stage.tuning is not None:
      write_tuning(folder, stage.tuning)
    for name, text in stage.configs.items():
      _write_config(trials_folder / name, text)
  except OSError as error:
    raise UserError(f'--out {folder.parent} cannot be written: {error.strerror}') from error


def run_group(
  file: Path,
  out: Path,
  group: int,
  local: Local,
  *,
  retry: bool = False,
  stage: StageName = '',
) -> int:
  """Runs the trials of one compiled program of a planned sweep, as one task of a job array.

  Args:
    file: the sweep file.
    out: output folder with the plan.
    group: number of the compiled program, in the order of the plan.
    local: settings of the local runner; one worker by default.
    retry: whether to run failed trials again.
    stage: the stage whose trials to run.

  Returns:
    The exit code, as of `run_sweep`.
  """
  folder, trials_folder, own = folder_of(out, file.stem, stage), out / 'trials', _leave_memory()
  origin()
  if not (folder / 'sweep.json').exists():
    command = f't2x sweep {file} --groups' + (' --confirm' if stage.startswith('confirm') else '')
    raise UserError(f'{folder} has no sweep.json: run `{command}` first')
  plan = _of_group(read_plan(folder), group)
  if retry:
    _remove_failures(plan.trials, trials_folder)
  _report_damage(plan.trials, trials_folder, keep=False)
  processes, together = _local_counts(dataclasses.replace(local, processes=local.processes or 1))
  runner: Runner = InProcess(together=together)
  if local.processes != 1:
    runner = _pool(file, out, processes, together, own, stage, ('--group', str(group)))
  run_plan(runner, plan, trials_folder)
  return summary(plan, trials_folder, folder)


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
  stage: StageName,
  *,
  quiet: bool,
) -> Runner:
  """Builds the runner; `own` are environment variables that are not passed to the workers."""
  if runner == 'slurm':
    return Slurm(folder_of(out, file.stem, stage) / 'slurm', settings)
  if runner == 'ray':
    return Ray(settings)
  if settings:
    raise UserError('--setting requires --runner slurm or ray')
  processes, together = _local_counts(runner, quiet)
  if runner.processes == 1:
    return InProcess(together=together)
  return _pool(file, out, processes, together, own, stage)


def _pool(
  file: Path,
  out: Path,
  processes: int,
  together: int,
  own: Sequence[str],
  stage: StageName,
  more: Sequence[str] = (),
) -> Pool:
  """Builds a pool; `own` are variables that its workers do not inherit, `more` are further arguments of them."""

  def command(index: int, count: int) -> list[str]:
    worker = ['--out', str(out), '--worker', f'{index}/{count}', '--together', str(together), *more]
    return interpreter.command('-m', 't2x', 'sweep', str(file), *worker, *_option(stage).split())

  return Pool(command, processes, folder_of(out, file.stem, stage), own)


def _local_counts(requested: Local, quiet: bool = False) -> tuple[int, int]:
  """Returns the number of processes, and of trials per vmapped step of each; prints them unless `quiet`."""
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
  count = 'one process' if processes == 1 else f'{processes} processes, each'
  trials = 'one trial at a time'
  if together > 1:
    trials = f'up to {together} trials of a program together (vmap)'
  if not quiet:
    print(f'on {device.device_kind}: {count} runs {trials} (--processes, --together)')
  return processes, together
