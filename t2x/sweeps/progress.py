"""Runs the trials of a plan with a progress bar, and summarises how they ended."""

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from t2x.base.errors import UserError
from t2x.base.suggestions import did_you_mean
from t2x.base.terminal import console
from t2x.sweeps.records import Outcome, Plan, Trial, usable_outcome
from t2x.sweeps.runners import Runner, distinct


def run_plan(runner: Runner, plan: Plan, folder: Path) -> None:
  """Runs the unfinished trials with a progress bar, and prints one line for each to stderr.

  Raises:
    UserError: the first finished trial lacks the metric, or a trial is invalid.
  """
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
  for trial, outcome in zip(trials, before, strict=True):
    if outcome is not None:
      _check(plan, trial, outcome, checked)
  with Progress(*columns, console=console(), transient=True) as progress:
    task = progress.add_task('trials', total=len(trials), completed=len(trials) - len(remaining))

    def on_end(trial, outcome):
      progress.advance(task)
      value = outcome.metrics.get(plan.metric)
      text = outcome.reason if value is None else f'{plan.metric} {value:.5g}'
      where = ' '.join(f'{k}={v}' for k, v in (dict(trial.point) | trial.tuned).items())
      name = f'{trial.variant} {where}'.strip()
      line = f'{name}, seed {trial.seed}: {outcome.status}, {text} ({outcome.seconds:.1f} s)'
      progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
      _check(plan, trial, outcome, checked)

    runner.run(remaining, folder, on_end)


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


def summary(plan: Plan, folder: Path, report: Path) -> int:
  """Prints how the trials ended; returns the exit code of `t2x sweep`.

  Args:
    plan: the plan.
    folder: OUT/trials.
    report: the folder of the stage. Tuning trials have no report; the last stage is part of that of the result.
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
  if plan.tuning == 'untuned':
    report = report.with_name(report.name.removesuffix('-untuned'))
  following = '' if plan.tuning == 'trials' else f'; next: t2x report {report}'
  print(f'{name}{text or "no trials to run"}{following}')
  return 1 if counts['failed'] or missing or names else 0
