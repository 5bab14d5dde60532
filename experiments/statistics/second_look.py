"""Measures how often a second report, chosen after the first one, declares a wrong difference.

python experiments/statistics/second_look.py        # 2,000 sweeps per row, ten minutes

All variants of a simulated sweep are equal, with normal noise of variance 1 and an effect of each seed. It is reported;
then the settings are changed in the way that the first report suggests, and it is reported again with the same trials.
"""

import argparse

import numpy as np

from t2x.statistics.comparisons import Sample, compare
from t2x.statistics.summaries import ALPHA
from t2x.sweeps.records import Plan, Trial
from t2x.sweeps.report.looks import Look, level_of, look_of

BASELINE = 'baseline'


def plan_of(variants: list[str], metric: str, seeds: int, max_seeds: int | None = None) -> Plan:
  """Returns the plan of a sweep of equal variants."""
  trials = tuple(
    Trial(variant=name, point={}, seed=seed, identity=name, folder=f'{name}-{seed}')
    for name in (BASELINE, *variants)
    for seed in range(seeds)
  )
  return Plan(
    name='simulated',
    baseline=BASELINE,
    metric=metric,
    goal='min',
    matched='',
    config='',
    versions={},
    commit='',
    trials=trials,
    max_seeds=max_seeds,
  )


def wrong(values: np.ndarray, level: float) -> tuple[bool, np.ndarray]:
  """Returns whether any variant helps or hurts, and the distances of the means from that of the baseline.

  Args:
    values: metric [variants, seeds], that of the baseline first.
    level: probability of any wrong verdict.
  """
  baseline, *variants = (Sample(dict(enumerate(of_variant))) for of_variant in values)
  comparisons = compare([(variant, baseline) for variant in variants], 'min', level=level)
  any_wrong = any(item.verdict in ('helps', 'hurts') for item in comparisons)
  return any_wrong, np.abs(values[1:].mean(1) - values[0].mean())


def simulate(comparisons: int, seeds: int, kept: int, sweeps: int) -> dict[str, float]:
  """Returns the rates of wrong verdicts.

  first: of the first report, with all variants.
  only, uncorrected: of `Sweep.only` = the `kept` variants that differ most, at the level of a first report.
  only: the same at the level of `t2x report`.
  metric: of all variants by another, independent metric, at the level of `t2x report`.
  """
  names = [f'variant {number}' for number in range(comparisons)]
  looks: list[Look] = [look_of(plan_of(names, 'loss', seeds))]
  corrected = level_of(plan_of(names[:kept], 'loss', seeds), looks).alpha
  of_metric = level_of(plan_of(names, 'accuracy', seeds), looks).alpha
  generator = np.random.default_rng([comparisons, seeds, kept])
  counts = dict.fromkeys(('first', 'only, uncorrected', 'only', 'metric'), 0)
  for _ in range(sweeps):
    values = generator.normal(size=(2, comparisons + 1, seeds)) + 2 * generator.normal(size=seeds)
    first, distances = wrong(values[0], ALPHA)
    best = np.concatenate([[0], 1 + np.argsort(-distances)[:kept]])
    counts['first'] += first
    counts['only, uncorrected'] += wrong(values[0][best], ALPHA)[0]
    counts['only'] += wrong(values[0][best], corrected)[0]
    counts['metric'] += wrong(values[1], of_metric)[0]
  return {name: count / sweeps for name, count in counts.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sweeps', type=int, default=2000)
  args = parser.parse_args()
  print('| comparisons | seeds | kept | first report | only, uncorrected | only | another metric |')
  print('|---:|---:|---:|---:|---:|---:|---:|')
  for comparisons, seeds, kept in ((15, 5, 1), (15, 5, 4), (4, 5, 1), (6, 3, 1), (43, 5, 1)):
    rates = simulate(comparisons, seeds, kept, args.sweeps)
    cells = ' | '.join(f'{100 * rate:.1f} %' for rate in rates.values())
    print(f'| {comparisons} | {seeds} | {kept} | {cells} |', flush=True)


if __name__ == '__main__':
  main()
