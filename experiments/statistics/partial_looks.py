"""Measures how often a sweep that is reported while it runs has a wrong verdict in any of its reports.

python experiments/statistics/partial_looks.py

All variants are equal, with normal noise. A report is written whenever all variants have ended with one more seed.
Three rules: every report at the full level, as if it were the only one; a verdict only when all seeds have ended; and
`Sweep.max_seeds`, which divides the level among the reports.
"""

import argparse
import time

import numpy as np
from noise import verdicts
from second_look import plan_of

from t2x.statistics.summaries import ALPHA
from t2x.sweeps.report.looks import level_of, look_of

_CHUNK = 250


def levels(seeds: int, comparisons: int) -> list[float]:
  """Returns the levels of reports with 1, 2, ... seeds of a sweep with `Sweep.max_seeds`."""
  names = [f'variant {number}' for number in range(comparisons)]
  looks, found = [], []
  for count in range(1, seeds + 1):
    plan = plan_of(names, 'loss', count, max_seeds=seeds)
    found.append(level_of(plan, looks).alpha)
    looks.append(look_of(plan))
  return found


def wrong(comparisons: int, seeds: int, sweeps: int) -> dict[str, float]:
  """Returns the part of sweeps with a wrong verdict in any report, by rule."""
  generator = np.random.default_rng([comparisons, seeds])
  spent = levels(seeds, comparisons)
  found: dict[str, list[np.ndarray]] = {}
  for start in range(0, sweeps, _CHUNK):
    values = generator.normal(size=(min(_CHUNK, sweeps - start), comparisons + 1, seeds))
    rules = {
      name: np.zeros(len(values), bool) for name in ('every report', 'last report', 'max_seeds')
    }
    for count in range(2, seeds + 1):
      part = values[..., :count]
      full = verdicts(part, ALPHA)['guard'].any(-1)
      rules['every report'] |= full
      if count == seeds:
        rules['last report'] |= full
      rules['max_seeds'] |= verdicts(part, spent[count - 1])['guard'].any(-1)
    for name, decided in rules.items():
      found.setdefault(name, []).append(decided)
  return {name: float(np.concatenate(parts).mean()) for name, parts in found.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sweeps', type=int, default=1000)
  args = parser.parse_args()
  began = time.monotonic()
  print('| comparisons | seeds | every report | all seeds only | max_seeds |')
  print('|---:|---:|---:|---:|---:|')
  for comparisons in (1, 4, 8):
    for seeds in (8, 20):
      rates = wrong(comparisons, seeds, args.sweeps)
      cells = ' | '.join(f'{100 * rate:.1f} %' for rate in rates.values())
      print(f'| {comparisons} | {seeds} | {cells} |', flush=True)
  print(f'{args.sweeps} sweeps per row, {time.monotonic() - began:.0f} s')


if __name__ == '__main__':
  main()
