"""The plan as people read it: `t2x sweep FILE --dry-run`."""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from t2x.sweeps.records import Outcome, Plan, Trial, usable_outcome
from t2x.sweeps.runners import distinct
from t2x.text_table import text_table

# What training reaches of a matrix product's speed, where nothing better is known.
_PART_OF_PEAK = 0.3


def plan_table(plan: Plan, folder: Path) -> str:
  """A line a variant and point: what differs, parameters, FLOPs, steps, how many trials are left.

  Args:
    plan: the sweep.
    folder: OUT/trials, which need not exist.
  """
  rows = [
    (
      'variant',
      'parameters',
      'FLOPs/token',
      'steps',
      plan.matched or 'match',
      'ended',
      'differs in',
    )
  ]
  groups: dict[tuple[str, str], list[Trial]] = {}
  for trial in plan.trials:
    groups.setdefault((trial.variant, json.dumps(trial.point)), []).append(trial)
  for trials in groups.values():
    one = trials[0]
    done = sum(usable_outcome(folder / trial.folder) is not None for trial in trials)
    point = ', '.join(f'{name}={value}' for name, value in one.point.items())
    rows.append(
      (
        f'{one.variant} ({point})' if point else one.variant,
        f'{one.parameters:,}',
        f'{one.flops_per_token:.4g}',
        f'{one.num_steps:,}',
        'cannot' if one.problem else f'{one.gap:+.2%}',
        '-' if one.problem else f'{done}/{len(trials)}',
        '; '.join(one.differences) or '(the base)',
      )
    )
  lines = [text_table(rows, '<>>>>><')]
  problems = {t.problem: t for t in plan.trials if t.problem}
  lines += [f'{t.variant} is not run: {problem}' for problem, t in problems.items()]
  lines += equal_variants(plan)
  return '\n'.join([*lines, '', _total(plan, folder)])


def equal_variants(plan: Plan) -> Iterator[str]:
  """A line for each config that several variants resolve to."""
  names: dict[tuple[str, str], dict[str, None]] = {}
  for trial in plan.trials:
    if not trial.problem:
      names.setdefault((json.dumps(trial.point), trial.identity), {})[trial.variant] = None
  for equal in dict.fromkeys(tuple(found) for found in names.values() if len(found) > 1):
    yield f'{" and ".join(equal)} are one config, with one set of trials: nothing differs'


def _total(plan: Plan, folder: Path) -> str:
  trials = distinct(plan.trials)
  outcomes = {one.folder: usable_outcome(folder / one.folder) for one in trials}
  left = [one for one in trials if outcomes[one.folder] is None]
  programs = len({one.program for one in left})
  flops = sum(map(_flops, left), 0.0)
  told = (
    f'{len(left)} of {len(trials)} trials to run, {programs} programs to compile, {flops:.3g} FLOPs'
  )
  ended = [(one, outcome) for one in trials if (outcome := outcomes[one.folder]) is not None]
  return f'{told}; {_time(left, ended, flops)}'


def _time(left: Sequence[Trial], ended: Sequence[tuple[Trial, Outcome]], flops: float) -> str:
  """Of one process, from the trials that have ended."""
  rates = [_flops(trial) / o.seconds for trial, o in ended if o.status == 'finished' and o.seconds]
  if not left:
    return 'nothing is left'
  if rates:
    rate, least, how = statistics.median(rates), '', f'as the {len(rates)} that have finished'
  else:
    rate, least = _PART_OF_PEAK * _matmul_rate(), 'at least '
    how = f'at {_PART_OF_PEAK:.0%} of what a matrix product reaches here, compilation left out'
  return f'estimated time {least}{flops / rate / 60:.2g} minutes in one process ({how})'


def _matmul_rate() -> float:
  """FLOPs a second of a large float32 matrix product."""
  x = jnp.ones((1024, 1024))
  product = jax.jit(jnp.matmul)
  product(x, x).block_until_ready()
  began = time.monotonic()
  for _ in range(5):
    product(x, x).block_until_ready()
  return 5 * 2 * 1024**3 / (time.monotonic() - began)


def _flops(trial: Trial) -> float:
  return trial.flops_per_token * trial.tokens_per_step * trial.num_steps
