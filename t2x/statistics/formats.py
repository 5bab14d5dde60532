"""Numbers of tables of verdicts, as text."""

import math
import statistics
from collections.abc import Iterable

from t2x.statistics.comparisons import MAX_SEEDS
from t2x.statistics.summaries import Goal, Summary


def decimals(summaries: Iterable[Summary]) -> int:
  """Returns the number of decimals that shows two digits of the median standard deviation."""
  summaries = [*summaries]
  stds = [summary.std for summary in summaries if summary.std]
  means = [abs(summary.mean) / 100 for summary in summaries if summary.mean]
  if not (scale := stds or means):
    return 3
  return max(0, min(7, 1 - math.floor(math.log10(statistics.median(scale)))))


def better(goal: Goal) -> str:
  """Returns 'lower is better' or 'higher is better'."""
  return f'{"lower" if goal == "min" else "higher"} is better'


def confidence(level: float) -> str:
  """Formats the confidence of the intervals of tests at a level: '95 %'."""
  return f'{100 * (1 - level):.3g} %'


def number(value: float | None, form: str) -> str:
  """Formats a number; '' for None."""
  return '' if value is None else format(value, form)


def probability(p: float | None) -> str:
  """Formats a p-value; '' for None."""
  return '' if p is None else '< 0.001' if p < 0.001 else f'{p:.3f}'


def more_seeds(seeds: int | None) -> str:
  """Formats a number of seeds to add; '' for 0 and None."""
  if not seeds:
    return ''
  return f'more than {MAX_SEEDS}' if seeds > MAX_SEEDS else str(seeds)
