"""An agent that tries variants and keeps the best: how often anything false passes, with and without `t2x gate`.

python -m experiments.referee.simulate_gate   # writes results/gate.json, 2 s of CPU

In each of ten rounds an agent trains 100 variants, none of which differs from the baseline, with three or five seeds,
and chooses the best mean. Without the gate it reports the choice if its plain paired t test has p < 0.05. With the gate
it trains fresh seeds of the choice and the baseline at the level of this confirmation. Power: one variant of the first
round is better by 1, 2 or 3 standard deviations of a run, and is chosen if its mean is the best.
"""

import json
import sys
from pathlib import Path

import numpy as np

from t2x.statistics.gate import level_of
from t2x.statistics.learn_or_not import seeds_without_guard
from t2x.statistics.power import paired_power
from t2x.statistics.referee import EFFECTS, SEEDS
from t2x.statistics.two_way import paired

FOLDER = Path(__file__).parent
VARIANTS, ROUNDS = 100, 10


def p_of(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the p-values of paired t tests and the signs of differences [..., seeds]."""
  test = paired(np.stack([np.zeros_like(differences), differences], -2))
  return test.p[..., 0], test.difference[..., 0]


def false_passes(seeds: int, count: int, rng: np.random.Generator) -> dict[str, float]:
  """Returns the share of searches in which a false improvement passes, after the first and after all rounds."""
  passed = {'without': np.zeros((count, ROUNDS), bool), 'with': np.zeros((count, ROUNDS), bool)}
  for number in range(1, ROUNDS + 1):
    runs = rng.normal(size=(count, VARIANTS + 1, seeds))
    differences = runs[:, 1:] - runs[:, :1]
    best = differences.mean(-1).argmin(-1)
    chosen = differences[np.arange(count), best]
    p, _ = p_of(chosen)
    passed['without'][:, number - 1] = p < 0.05
    fresh_seeds = max(SEEDS, seeds_without_guard(1, 1, level_of(number)))
    fresh = rng.normal(size=(count, 2, fresh_seeds))
    p, sign = p_of(fresh[:, 1] - fresh[:, 0])
    passed['with'][:, number - 1] = (p <= level_of(number)) & (sign < 0)
  return {
    f'{name}_{what}': float(values.mean())
    for name, of in passed.items()
    for what, values in (('first', of[:, 0]), ('any', of.any(-1)))
  }


def power(seeds: int, effect: float, count: int, rng: np.random.Generator) -> dict[str, float]:
  """Returns how often a true improvement is chosen in the first round, and then passes the gate."""
  runs = rng.normal(size=(count, VARIANTS + 1, seeds))
  runs[:, 1] -= effect
  differences = runs[:, 1:] - runs[:, :1]
  chosen = differences.mean(-1).argmin(-1) == 0
  fresh = rng.normal(size=(count, 2, SEEDS))
  p, sign = p_of(fresh[:, 1] - effect - fresh[:, 0])
  passes = (p <= level_of(1)) & (sign < 0)
  return {
    'chosen': float(chosen.mean()),
    'passes': float(passes.mean()),
    'both': float((chosen & passes).mean()),
  }


def main(count: int = 4000) -> None:
  """Prints and writes the shares."""
  rng = np.random.default_rng(0)
  rows = []
  for seeds in (3, 5):
    rows.append({'screening_seeds': seeds, 'searches': count} | false_passes(seeds, count, rng))
    print(rows[-1], flush=True)
    for effect in EFFECTS:
      row = {'screening_seeds': seeds, 'effect': effect, 'searches': count} | power(
        seeds, effect, count, rng
      )
      rows.append(row | {'formula': paired_power(effect, SEEDS, level_of(1))})
      print(rows[-1], flush=True)
  (FOLDER / 'results').mkdir(exist_ok=True)
  (FOLDER / 'results' / 'gate.json').write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
