"""Plan of a sweep as a text table, printed by `t2x sweep FILE --dry-run`."""

import collections
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from t2x.base.text_table import fold, terminal_width, text_table
from t2x.sweeps.records import Outcome, Plan, Trial, shown_changes, usable_outcome
from t2x.sweeps.runners import distinct, groups_of
from t2x.sweeps.tune import Tuning
from t2x.train.logs.flops import CONVENTION

# Assumed speed of training relative to a matrix product, before any trial has finished.
_FRACTION_OF_MATMUL = 0.3


def plan_table(plan: Plan, folder: Path, later: int = 0) -> str:
  """Formats the plan: one line per variant and grid point, their differences, and the estimated time.

  Args:
    plan: the plan.
    folder: OUT/trials; it may be missing.
    later: number of trials of the stages that follow.
  """
  header = ('variant', 'parameters', 'FLOPs/token', 'full attention', 'steps', 'match', 'ended')
  rows, texts = [header], [('variant', 'differs in')]
  groups: dict[tuple[Any, ...], list[Trial]] = {}
  for trial in plan.trials:
    numbers = trial.parameters, trial.flops_per_token, trial.num_steps, trial.gap, trial.problem
    groups.setdefault((_title(trial.variant, trial.point), *numbers), []).append(trial)
  for (title, *_), trials in groups.items():
    first = trials[0]
    runs = distinct(trials)
    done = sum(usable_outcome(folder / trial.folder) is not None for trial in runs)
    rows.append(
      (
        title,
        f'{first.parameters:,}',
        f'{first.flops_per_token:.4g}',
        f'{first.full_flops_per_token or first.flops_per_token:.4g}',
        f'{first.num_steps:,}',
        'unmatched' if first.problem else f'{first.gap:+.2%}',
        '-' if first.problem else f'{done}/{len(runs)}',
      )
    )
    texts.append((title, '; '.join(_differences(trials)) or '(the base)'))
  width = terminal_width()
  lines = [
    *([f'match: deviation from the {plan.matched} of the baseline'] if plan.matched else []),
    f'FLOPs: {CONVENTION}',
  ]
  problems = {t.problem: t for t in plan.trials if t.problem}
  lines += [f'{t.variant} is not run: {problem}' for problem, t in problems.items()]
  lines += equal_variants(plan)
  lines += changed_trials(plan)
  return '\n'.join(
    [
      text_table(texts, '<<', width),
      '',
      text_table(rows, '<>>>>>>', width),
      *_folded(lines, width),
      '',
      *_folded(_total(plan, folder, later), width),
    ]
  )


def _folded(lines: Iterable[str], width: int) -> Iterator[str]:
  for line in lines:
    yield from fold(line, width, '  ')


def _differences(trials: Sequence[Trial]) -> list[str]:
  """Returns the differences of trials from the base; of a tuned parameter with all values."""
  values: dict[str, dict[str, None]] = {}
  for trial in trials:
    for line in trial.differences:
      name, _, value = line.partition(' = ')
      values.setdefault(name, {})[value] = None
  tuned = {name for trial in trials for name in trial.tuned}
  lines = []
  for name, found in values.items():
    ordered = sorted(found, key=float) if name in tuned else [*found]
    lines.append(f'{name} = {", ".join(ordered)}' if any(found) else name)
  return lines


def tuning_table(tuning: Tuning) -> str:
  """Formats the tuned values, with the numbers of seeds that chose them, and the mean metric of each tried value."""
  rows = [('variant', 'tuned parameter', 'own', 'tuned', f'value=mean {tuning.metric}')]
  for choice in tuning.choices:
    means = (
      f'{item.value:g}=' + ('-' if item.mean is None else f'{item.mean:.5g}')
      for item in choice.tried
    )
    name = _title(choice.variant, choice.point)
    rows.append((name, choice.parameter, f'{choice.own:g}', choice.text, ', '.join(means)))
  lines = [
    f'{_title(choice.variant, choice.point)}: {text}'
    for choice in tuning.choices
    for text in (f'at the edge: the {choice.edge}' if choice.edge else choice.problem, choice.note)
    if text
  ]
  width = terminal_width()
  return '\n'.join([text_table(rows, '<<>><', width), *_folded(lines, width)]) + '\n'


def withheld(tuning: Tuning) -> str:
  """Returns one line for each variant and grid point that is not tuned, and what to do."""
  lines = [
    f'{_title(choice.variant, choice.point)} is not tuned: {choice.problem} ({choice.chosen:g})'
    for choice in tuning.choices
    if choice.problem
  ]
  if lines:
    lines.append(
      'verdicts on these, and on all variants if it is the baseline, are withheld: add values beyond, or increase '
      'Tune.max_trials'
    )
  return ''.join(f'{line}\n' for line in _folded(lines, terminal_width()))


def _title(variant: str, point: Mapping[str, Any]) -> str:
  axes = ', '.join(f'{name}={value}' for name, value in point.items())
  return f'{variant} ({axes})' if axes else variant


def groups_table(plan: Plan, folder: Path) -> str:
  """Formats the groups of trials that share a compiled program, and the numbers of those with trials to run.

  Args:
    plan: the plan.
    folder: OUT/trials.
  """
  rows = [('group', 'program', 'ended', 'variants')]
  remaining = []
  for number, trials in enumerate(groups_of(distinct(plan.trials))):
    ended = sum(usable_outcome(folder / trial.folder) is not None for trial in trials)
    variants = ', '.join(dict.fromkeys(trial.variant for trial in trials))
    rows.append((str(number), trials[0].program, f'{ended}/{len(trials)}', variants))
    if ended < len(trials):
      remaining.append(str(number))
  table = text_table(rows, '><><', terminal_width())
  return f'{table}\ngroups to run: {",".join(remaining) or "none"}'


def equal_variants(plan: Plan) -> Iterator[str]:
  """Yields one line for each group of variants that resolve to the same config."""
  names: dict[tuple[str, str], dict[str, None]] = {}
  for trial in plan.trials:
    if not trial.problem:
      names.setdefault((json.dumps(trial.point), trial.identity), {})[trial.variant] = None
  for equal in dict.fromkeys(tuple(group) for group in names.values() if len(group) > 1):
    yield f'{" and ".join(equal)} have the same config and share their trials'


def changed_trials(plan: Plan) -> Iterator[str]:
  """Yields one line for each change of code, data or defaults since earlier trials of the sweep have ended."""
  counts = collections.Counter(
    (trial.accepted, trial.changed) for trial in distinct(plan.trials) if trial.changed
  )
  for (accepted, changed), count in counts.items():
    what = f'{count} trials' if count > 1 else '1 trial'
    how = 'used as they are' if accepted else 'not used (--accept-changed uses them)'
    yield f'{what} ended before a change, {how}: {shown_changes(changed)}'


def to_run(plan: Plan, folder: Path) -> str:
  """Returns the number of trials to run, and what they cost.

  Args:
    plan: the plan.
    folder: OUT/trials.
  """
  trials = distinct(plan.trials)
  remaining = [trial for trial in trials if usable_outcome(folder / trial.folder) is None]
  programs = len({trial.program for trial in remaining})
  flops = sum(map(flops_of, remaining), 0.0)
  return f'{len(remaining)} of {len(trials)} trials to run, {programs} programs to compile, {flops:.3g} FLOPs'


def _total(plan: Plan, folder: Path, later: int) -> Iterator[str]:
  """Yields the number of trials to run, and their estimated time with that of the stages that follow."""
  trials = distinct(plan.trials)
  outcomes = {trial.folder: usable_outcome(folder / trial.folder) for trial in trials}
  remaining = [trial for trial in trials if outcomes[trial.folder] is None]
  flops = sum(map(flops_of, remaining), 0.0)
  yield to_run(plan, folder)
  if later:
    flops += later * statistics.fmean(map(flops_of, trials))
    yield f'{later} trials in the stages that follow'
  ended = [(trial, outcome) for trial in trials if (outcome := outcomes[trial.folder]) is not None]
  yield _time(bool(remaining or later), ended, flops)


def _time(remaining: bool, ended: Sequence[tuple[Trial, Outcome]], flops: float) -> str:
  """Estimates the time of the remaining trials in one process from the finished trials."""
  rates = [
    flops_of(trial) / o.seconds for trial, o in ended if o.status == 'finished' and o.seconds
  ]
  if not remaining:
    return 'all trials have ended'
  if rates:
    rate, least, basis = statistics.median(rates), '', f'from {len(rates)} finished trials'
  else:
    rate, least = _FRACTION_OF_MATMUL * _matmul_rate(), 'at least '
    basis = f'at {_FRACTION_OF_MATMUL:.0%} of the speed of a matrix product, without compilation'
  return f'estimated time {least}{duration(flops / rate)} in one process ({basis})'


def duration(seconds: float) -> str:
  """Formats a time with about two digits, as seconds, minutes or hours."""
  if seconds < 90:
    return f'{max(round(seconds), 1)} s'
  return f'{seconds / 60:.2g} minutes' if seconds < 5700 else f'{seconds / 3600:,.1f} hours'


def _matmul_rate() -> float:
  """Measures the FLOPs per second of a large float32 matrix product."""
  x = jnp.ones((1024, 1024))
  product = jax.jit(jnp.matmul)
  product(x, x).block_until_ready()
  start = time.monotonic()
  for _ in range(5):
    product(x, x).block_until_ready()
  return 5 * 2 * 1024**3 / (time.monotonic() - start)


def flops_of(trial: Trial) -> float:
  """Returns the FLOPs of all steps of a trial."""
  return trial.flops_per_token * trial.tokens_per_step * trial.num_steps
