"""Runs the trials of a plan with a progress bar, and summarises how they ended."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from t2x.base.errors import UserError
from t2x.base.suggestions import did_you_mean
from t2x.base.terminal import console
from t2x.sweeps.plan_table import duration, flops_of
from t2x.sweeps.records import Outcome, Plan, Trial, usable_outcome
from t2x.sweeps.runners import Runner, distinct
from t2x.train.logs.writers import clock


class Course:
  """Counts the trials of all stages of a sweep, and estimates the time until the last one.

  Args:
    quiet: whether ended trials are not printed.
  """

  def __init__(self, quiet: bool = False):
    self.quiet = quiet
    self.began = time.monotonic()
    self._ended: set[str] = set()
    self._flops = 0.0

  def start(self, trials: Sequence[Trial], ended: Sequence[Trial], later: int) -> None:
    """Starts a stage.

    Args:
      trials: its trials without duplicates.
      ended: those that have ended.
      later: number of trials of the stages that follow.
    """
    self._stage = {trial.folder: flops_of(trial) for trial in trials}
    self._ended |= {trial.folder for trial in ended}
    self._later = later

  def end(self, trial: Trial) -> None:
    """Counts a trial that has ended."""
    self._ended.add(trial.folder)
    self._flops += flops_of(trial)

  @property
  def counts(self) -> tuple[int, int]:
    """Numbers of trials that have ended, and of all trials."""
    return len(self._ended), len(self._ended | self._stage.keys()) + self._later

  @property
  def left(self) -> str:
    """The time until the last trial of all stages, at the speed so far; '' before the first trial has ended."""
    if not self._flops or not self._stage:
      return ''
    flops = sum(flops for name, flops in self._stage.items() if name not in self._ended)
    flops += self._later * statistics.fmean(self._stage.values())
    return (
      f'{duration((time.monotonic() - self.began) * flops / self._flops)} left' if flops else ''
    )


class _Time(ProgressColumn):
  """Shows the time since the sweep began, and the time left."""

  def __init__(self, course: Course):
    super().__init__()
    self.course = course

  def render(self, task):
    return Text(
      '  '.join(filter(None, [clock(time.monotonic() - self.course.began), self.course.left]))
    )


def run_plan(
  runner: Runner, plan: Plan, folder: Path, course: Course | None = None, later: int = 0
) -> None:
  """Runs the unfinished trials with a progress bar, and prints one line for each to stderr.

  Args:
    runner: the runner.
    plan: the plan of the stage.
    folder: OUT/trials.
    course: counts the trials of all stages; None: those of this one.
    later: number of trials of the stages that follow.

  Raises:
    UserError: the first finished trial lacks the metric, or a trial is invalid.
  """
  course = course or Course()
  columns = (
    TextColumn('{task.description}'),
    BarColumn(20),
    MofNCompleteColumn(),
    _Time(course),
  )
  trials = distinct(plan.trials)
  before = [usable_outcome(folder / trial.folder) for trial in trials]
  remaining = [trial for trial, outcome in zip(trials, before, strict=True) if outcome is None]
  checked: list[Outcome] = []
  for trial, outcome in zip(trials, before, strict=True):
    if outcome is not None:
      _check(plan, trial, outcome, checked)
  course.start(trials, [trial for trial in trials if trial not in remaining], later)
  with Progress(*columns, console=console(), transient=True, disable=course.quiet) as progress:
    done, count = course.counts
    task = progress.add_task(_STAGES[plan.tuning], total=count, completed=done)

    def on_end(trial, outcome):
      course.end(trial)
      done, count = course.counts
      progress.update(task, completed=done, total=count)
      if not course.quiet:
        line = f'{done:>{len(str(count))}}/{count}  {_line(plan, trial, outcome)}'
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
      _check(plan, trial, outcome, checked)

    runner.run(remaining, folder, on_end)


# Names of the stages in the progress bar, by `Plan.tuning`.
_STAGES = {'none': 'trials', 'trials': 'tuning', 'tuned': 'comparison', 'untuned': 'untuned'}


def _line(plan: Plan, trial: Trial, outcome: Outcome) -> str:
  """Describes an ended trial: 'gelu, peak=0.003, seed 0: loss 1.234 (2.0 s)'."""
  value = outcome.metrics.get(plan.metric)
  text = outcome.reason if value is None else f'{plan.metric} {value:.5g}'
  if outcome.status != 'finished':
    text = f'{outcome.status}, {text}'
  values = dict(trial.point) | dict(trial.tuned)
  short = {name: name.rpartition('.')[2] for name in values}
  if len({*short.values()}) < len(short):
    short = {name: name for name in values}
  where = ''.join(f', {short[name]}={value}' for name, value in values.items())
  return f'{trial.variant}{where}, seed {trial.seed}: {text} ({outcome.seconds:.1f} s)'


def _lacks_metric(plan: Plan, outcome: Outcome) -> bool:
  return outcome.status == 'finished' and plan.metric not in outcome.metrics


def _check(plan: Plan, trial: Trial, outcome: Outcome, checked: list[Outcome]) -> None:
  """Raises UserError if a trial is invalid, or the first finished trial lacks the metric; `checked` are finished ones
  that have it."""
  if outcome.invalid:
    raise UserError(
      f'{trial.variant}, seed {trial.seed}: {outcome.reason}\nthe sweep stops at this trial, as others may have the '
      'same error: correct it, and run the same command with --retry'
    )
  if outcome.status != 'finished' or checked:
    return
  if _lacks_metric(plan, outcome):
    hint = did_you_mean(plan.metric, outcome.metrics)
    names = ', '.join(sorted(outcome.metrics))
    raise UserError(
      f"no metric '{plan.metric}' in a finished trial{hint}: set Sweep.metric to one of {names}"
    )
  checked.append(outcome)


def summary(plan: Plan, folder: Path, report: Path | None = None) -> int:
  """Prints how the trials ended; returns the exit code of `t2x sweep`.

  Args:
    plan: the plan.
    folder: OUT/trials.
    report: the folder of the stage, to name the command that reports it. None: it is not named.
  """
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
  name = '' if plan.tuning == 'none' else f'{plan.name}: '
  if report is not None and plan.tuning == 'untuned':
    report = report.with_name(report.name.removesuffix('-untuned'))
  following = '' if report is None or plan.tuning == 'trials' else f'; next: t2x report {report}'
  print(f'{name}{text or "no trials to run"}{following}')
  return 1 if counts['failed'] or missing or names else 0
