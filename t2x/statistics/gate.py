"""A gate for programs that search for improvements: screening is free, and only a confirmation with fresh seeds passes.

A search keeps the best of many variants, so its differences are too large (regression to the mean), and a test of the
seeds that chose the variant is no evidence. The gate records the choice in a ledger and draws the seeds of the
confirmation, which therefore ran after it. The i-th choice of a ledger is tested at the level 0.05 x 6 / (pi i)^2,
whose sum over all i is 0.05: the probability that anything false ever passes (or is said to hurt) is at most 5 %.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2x.base.errors import UserError
from t2x.base.files import file_lock
from t2x.base.json_files import Damaged, dataclass_from_json, read_json, write_json
from t2x.statistics.comparisons import Comparison
from t2x.statistics.learn_or_not import seeds_without_guard
from t2x.statistics.referee import SEEDS, judge
from t2x.statistics.summaries import ALPHA, Goal
from t2x.statistics.table import Columns, Table

EXIT_CODES = {'helps': 0, 'hurts': 3, 'same': 3, 'inconclusive': 4, 'withheld': 4}
REFUSED = 5
# Drawn seeds are above those that people choose.
_SEEDS = range(10_000, 2**31 - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """A variant that was chosen, and its confirmation.

  Attributes:
    number: number of the choice in the ledger, from 1.
    seeds: fresh seeds of the variant and the baseline.
    date: UTC time of the choice.
    verdict: verdict of the confirmation; '' before it.
    results: hash of the confirmed results; '' before.
    before: hash of the earlier choices of the ledger, so that an edited ledger is noticed.
  """

  number: int
  variant: str
  baseline: str
  metric: str
  goal: Goal
  margin: float | None
  seeds: tuple[int, ...]
  date: str
  verdict: str = ''
  results: str = ''
  before: str = ''

  @property
  def level(self) -> float:
    """Level of the confirmation."""
    return level_of(self.number)


@dataclasses.dataclass(frozen=True)
class Ledger:
  """Content of a ledger file, the oldest choice first."""

  choices: tuple[Choice, ...] = ()


def level_of(number: int) -> float:
  """Returns the level of the i-th confirmation of a ledger."""
  return ALPHA * 6 / (math.pi * number) ** 2


def read_ledger(path: Path) -> Ledger:
  """Reads a ledger; an empty one if the file does not exist.

  Raises:
    Damaged: the file is damaged, or a choice was changed or removed.
  """
  try:
    ledger = dataclass_from_json(Ledger, read_json(path), path)
  except FileNotFoundError:
    return Ledger()
  for index, choice in enumerate(ledger.choices):
    if choice.number != index + 1 or choice.before != _hash(ledger.choices[:index]):
      raise Damaged(f'{path} is damaged: its choices before number {choice.number} were changed')
  return ledger


def choose(
  path: Path,
  variant: str,
  baseline: str,
  metric: str,
  goal: Goal,
  *,
  margin: float | None = None,
  seeds: int | None = None,
) -> Choice:
  """Records a choice in the ledger, with fresh seeds to run.

  Args:
    path: the ledger.
    variant: the chosen variant.
    baseline: the baseline.
    metric: metric of the confirmation.
    goal: whether a lower or a higher metric is better.
    margin: smallest improvement that counts.
    seeds: number of seeds; None: five, or more where the level needs more.

  Raises:
    UserError: the last choice has no confirmation yet, or the seeds are too few for any verdict at the level.
  """
  if variant == baseline:
    raise UserError(f"'{variant}' is the baseline: choose another variant")
  with _locked(path):
    ledger = read_ledger(path)
    number = len(ledger.choices) + 1
    if ledger.choices and not ledger.choices[-1].verdict:
      last = ledger.choices[-1]
      raise UserError(
        f"{path}: choice {last.number} ('{last.variant}') is not confirmed: run its seeds "
        f'{_listed(last.seeds)}, then `t2x gate TABLE --ledger {path}`'
      )
    fewest = seeds_without_guard(1, 1, level_of(number))
    if seeds is not None and seeds < fewest:
      raise UserError(
        f'--seeds {seeds}: confirmation {number} needs at least {fewest} seeds for any verdict'
      )
    used = {seed for choice in ledger.choices for seed in choice.seeds}
    drawn: set[int] = set()
    while len(drawn) < (seeds or max(SEEDS, fewest)):
      drawn |= {random.SystemRandom().choice(_SEEDS)} - used
    choice = Choice(
      number=number,
      variant=variant,
      baseline=baseline,
      metric=metric,
      goal=goal,
      margin=margin,
      seeds=tuple(sorted(drawn)),
      date=datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      before=_hash(ledger.choices),
    )
    write_json(path, Ledger((*ledger.choices, choice)))
  return choice


def open_choice(path: Path) -> Choice:
  """Returns the last choice of a ledger.

  Raises:
    UserError: the ledger has no choice.
  """
  choices = read_ledger(path).choices
  if not choices:
    raise UserError(
      f'{path} has no choice: `t2x gate --choose VARIANT --ledger {path}` records one'
    )
  return choices[-1]


def confirm(path: Path, choice: Choice, table: Table, columns: Columns) -> Comparison:
  """Judges the fresh seeds of a choice, and records the verdict in the ledger.

  Args:
    path: the ledger.
    choice: the result of `open_choice`.
    table: results of the variant and the baseline; other seeds are ignored.
    columns: columns of the table, with the metric of the choice.

  Raises:
    UserError: with exit code `REFUSED`, if a seed is missing, or the choice was already judged on other results.
  """
  if len(table.sizes) > 1:
    raise UserError(
      f'{table.where} has {len(table.sizes)} sizes, but a confirmation has one: pass the runs of one size',
      REFUSED,
    )
  fresh = table.only(_is_fresh(table, choice))
  results = _results(fresh, choice)
  for side in (choice.variant, choice.baseline):
    missing = [seed for seed in choice.seeds if (side, str(seed)) not in results]
    if missing:
      raise UserError(
        f"incomplete pairs: {table.where} has no result of '{side}' with seed {_listed(missing)}; run all fresh seeds",
        REFUSED,
      )
  digest = _hash(sorted([*key, value] for key, value in results.items()))
  ruling = judge(
    fresh,
    columns,
    choice.baseline,
    choice.goal,
    margin=choice.margin,
    failed='worst',
    level=choice.level,
  )
  ((_, comparison),) = ruling.compared
  with _locked(path):
    ledger = read_ledger(path)
    recorded = ledger.choices[choice.number - 1]
    if recorded.verdict and recorded.results != digest:
      raise UserError(
        f'peeked: choice {choice.number} was already judged ({recorded.verdict}) on other results: choose again, with '
        'fresh seeds',
        REFUSED,
      )
    if not recorded.verdict:
      # A later hash contains this choice with its verdict.
      judged = dataclasses.replace(recorded, verdict=comparison.verdict, results=digest)
      write_json(path, Ledger((*ledger.choices[: choice.number - 1], judged)))
  return comparison


def check_grid(text: str) -> None:
  """Checks a tuned value, VALUE:V1,V2,...

  Raises:
    UserError: the text is invalid, or, with exit code `REFUSED`, the value is at the edge of its grid.
  """
  value, colon, others = text.partition(':')
  try:
    chosen, grid = float(value), sorted(map(float, others.split(',')))
  except ValueError:
    colon = ''
  if not colon or chosen not in grid:
    raise UserError(
      f"--tuned '{text}': write the chosen value and all values that were tried, 3e-4:1e-4,3e-4,1e-3"
    )
  if chosen in (grid[0], grid[-1]):
    raise UserError(
      f'--tuned {text}: the chosen value is at the edge of its grid, and a better one may lie beyond it: '
      'extend the grid first',
      REFUSED,
    )


def _is_fresh(table: Table, choice: Choice) -> np.ndarray:
  seeds = {str(seed) for seed in choice.seeds}
  sides = (choice.variant, choice.baseline)
  is_side = np.array([name in sides for name in table.names])
  is_seed = np.array([name in seeds for name in table.seed_names])
  return is_side[table.variants] & is_seed[table.seeds]


def _results(table: Table, choice: Choice) -> dict[tuple[str, str], str]:
  rows = zip(table.variants, table.seeds, table.metrics[choice.metric], strict=True)
  values: dict[tuple[str, str], list[float]] = {}
  for variant, seed, value in rows:
    values.setdefault((table.names[variant], table.seed_names[seed]), []).append(float(value))
  return {key: repr(sorted(map(repr, items))) for key, items in values.items()}


def _hash(content: object) -> str:
  text = json.dumps(content, default=dataclasses.asdict)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _listed(seeds: Sequence[int]) -> str:
  return ', '.join(map(str, seeds))


def _locked(path: Path) -> contextlib.AbstractContextManager[None]:
  return file_lock(path.with_name(f'{path.name}.lock'), lambda: None)
