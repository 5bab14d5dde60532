"""Verdicts on runs with one script: how often a comparison of equal groups ends with 'helps' or 'hurts'.

python -m experiments.referee.equal_groups   # writes results/equal_groups.json, 20 s

Each group of modded_nanogpt.csv (runs with one script and one number of steps) is split at random into a variant and
a baseline with n runs each, paired by their number: 'helps' and 'hurts' are false positives. The 95 % intervals are
from a bootstrap over the groups.
"""

import collections
import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2x.statistics.power import paired_power
from t2x.statistics.two_way import paired

FOLDER = Path(__file__).parent
RUNS = (3, 5, 8, 10)
SPLITS, RESAMPLES = 400, 4000
# 100 of 3,250 steps are worth 0.0045 nats (track_3_optimization).
NATS_PER_PERCENT = 0.0045 / (100 * 100 / 3250)
PERCENTS = (1, 2, 3, 5, 10)


def read_groups() -> dict[tuple[str, str], list[float]]:
  """Returns the final losses of each group and number of steps, without copies of groups and unfinished runs."""
  groups: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
  with (FOLDER / 'modded_nanogpt.csv').open() as file:
    for row in csv.DictReader(line for line in file if not line.startswith('#')):
      if row['step'] == row['num_steps']:
        groups[row['group'], row['num_steps']].append(float(row['loss']))
  unique = {tuple(sorted(losses)): name for name, losses in reversed(groups.items())}
  return {name: losses for name, losses in groups.items() if unique[tuple(sorted(losses))] == name}


def splits(losses: Sequence[float], runs: int, rng: np.random.Generator) -> np.ndarray:
  """Returns random halves of a group [splits, 2, runs]."""
  order = rng.random((SPLITS, len(losses))).argsort(axis=1)[:, : 2 * runs]
  return np.array(losses)[order].reshape(SPLITS, 2, runs)


def verdict_rate(values: np.ndarray, level: float = 0.05) -> float:
  """Returns the share of comparisons [splits, 2, runs] with a verdict: a single comparison is a paired t test."""
  with np.errstate(divide='ignore', invalid='ignore'):
    return float((np.nan_to_num(paired(values).p[:, 0], nan=1.0) <= level).mean())


def best_rate(values: np.ndarray) -> float:
  """Returns the share of comparisons whose variant looks better by its mean and a one-sided p < 0.25."""
  test = paired(values)
  with np.errstate(divide='ignore', invalid='ignore'):
    return float(
      ((test.difference[:, 0] < 0) & (np.nan_to_num(test.p[:, 0], nan=1.0) < 0.5)).mean()
    )


def interval(rates: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
  """Returns a 95 % bootstrap interval over the groups."""
  draws = rng.integers(len(rates), size=(RESAMPLES, len(rates)))
  low, high = np.quantile(rates[draws].mean(axis=1), [0.025, 0.975])
  return float(low), float(high)


def main() -> None:
  groups = read_groups()
  result = {
    'groups': len(groups),
    'of_four': sum(len(x) >= 4 for x in groups.values()),
    'rates': [],
    'power': [],
  }
  for runs in RUNS:
    rng = np.random.default_rng(runs)
    large = [losses for losses in groups.values() if len(losses) >= 2 * runs]
    halves = [splits(losses, runs, rng) for losses in large]
    for rule, function in (('referee', verdict_rate), ('p < 0.25', best_rate)):
      rates = np.array([function(values) for values in halves])
      low, high = interval(rates, rng)
      row = {
        'rule': rule,
        'runs': runs,
        'groups': len(large),
        'rate': float(rates.mean()),
        'low': low,
        'high': high,
      }
      result['rates'].append(row)
      print(row)
  deviations = [float(np.std(x, ddof=1)) for x in groups.values() if len(x) >= 4]
  result['median_deviation'] = float(np.median(deviations))
  for percent in PERCENTS:
    effect = percent * NATS_PER_PERCENT / result['median_deviation']
    result['power'].append(
      {'percent': percent} | {str(runs): paired_power(effect, runs) for runs in RUNS}
    )
    print(result['power'][-1])
  (FOLDER / 'results').mkdir(exist_ok=True)
  (FOLDER / 'results' / 'equal_groups.json').write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
  main()
