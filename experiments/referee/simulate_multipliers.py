"""Coverage of the 95 % intervals of compute multipliers, with normal and heavy-tailed noise.

python -m experiments.referee.simulate_multipliers   # writes results/multipliers.json, about 10 s of CPU

A baseline and two variants, L = 1.7 + 60 (m C)^-0.1 with m = 1, 1.1 and 1.5, at five compute budgets of factor 3 with
five seeds; noise of 0.003 nats, normal or t with 3 degrees of freedom (scaled to the same standard deviation).
`own law`: the second variant has an exponent of 0.11, so that laws are not shared where the lack-of-fit test notices.
"""

import json
import sys
from pathlib import Path

import numpy as np

from t2x.statistics.multipliers import WIDEST, fit_laws, lack_of_fit, log_multiplier

FOLDER = Path(__file__).parent
SIZES, SEEDS, NOISE = 5, 5, 0.003
COMPUTE = 1e18 * 3.0 ** np.arange(SIZES)
MULTIPLIERS = (1.0, 1.1, 1.5)
FACTOR = 60.0
EXPONENTS = {'shared law': (0.1, 0.1, 0.1), 'own law': (0.1, 0.1, 0.11)}


def true_losses(case: str, compute: np.ndarray) -> np.ndarray:
  """Returns the losses of all variants [variants, sizes]."""
  # All variants have the loss of a shared law at the smallest size.
  rows = []
  for multiplier, exponent in zip(MULTIPLIERS, EXPONENTS[case], strict=True):
    factor = FACTOR * (multiplier * COMPUTE[0]) ** -0.1 * COMPUTE[0] ** exponent
    rows.append(1.7 + factor * compute**-exponent)
  return np.array(rows)


def true_multiplier(case: str, variant: int) -> float:
  """Returns Sc at the largest size."""
  size = COMPUTE[-1]
  target = true_losses(case, np.array([size]))[0, 0] - 1.7
  exponent = EXPONENTS[case][variant]
  factor = FACTOR * (MULTIPLIERS[variant] * COMPUTE[0]) ** -0.1 * COMPUTE[0] ** exponent
  return float(size / (factor / target) ** (1 / exponent))


def noise(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
  if kind == 'normal':
    return NOISE * rng.normal(size=shape)
  return NOISE * rng.standard_t(3, size=shape) / np.sqrt(3)


def intervals(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns log Sc at the largest size with its interval, as t2x.statistics does, and whether laws are shared.

  Args:
    losses: losses [simulations, variants, sizes, seeds].

  Returns:
    [3, variants - 1, simulations] and [simulations].
  """
  count = losses.shape[1]
  grid = np.meshgrid(np.arange(count), COMPUTE, np.arange(SEEDS), indexing='ij')
  variants, compute = grid[0].ravel(), grid[1].ravel()
  flat = losses.reshape(len(losses), -1)
  both = []
  for shared in (True, False):
    laws = fit_laws(compute, flat, variants, shared)
    fits = lack_of_fit(laws, compute, flat, variants) >= 0.05
    x = np.log(COMPUTE[-1]) - laws.center
    ends = [
      laws.interval(
        lambda vector, v=variant, laws=laws, x=x: log_multiplier(vector, laws.places, v, 0, x)
      )
      for variant in range(1, count)
    ]
    both.append((np.where(fits, np.stack(ends, 1), np.nan), fits))
  (of_shared, is_shared), (of_own, _) = both
  return np.where(is_shared, of_shared, of_own), is_shared


def main(count: int = 2000) -> None:
  """Prints and writes the coverage."""
  rows = []
  for case in EXPONENTS:
    for kind in ('normal', 't3'):
      rng = np.random.default_rng(0)
      losses = true_losses(case, COMPUTE)[:, :, None] + noise(kind, (count, 3, SIZES, SEEDS), rng)
      ends, shared = intervals(losses)
      for index in range(2):
        _, low, high = ends[:, index]
        true = np.log(true_multiplier(case, index + 1))
        known = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid='ignore'):
          reported = known & (high - low <= np.log(WIDEST))
          covered = (low <= true) & (true <= high)
        row = {
          'law': case,
          'noise': kind,
          'multiplier': float(np.exp(true)),
          'coverage': float(covered[known].mean()),
        }
        row |= {
          'coverage_reported': float(covered[reported].mean()),
          'undetermined': float(1 - reported.mean()),
        }
        rows.append(row | {'shared': float(shared.mean()), 'simulations': count})
        print(rows[-1], flush=True)
  (FOLDER / 'results').mkdir(exist_ok=True)
  (FOLDER / 'results' / 'multipliers.json').write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
