"""Measures error rates, power and coverage of the statistics of sweeps by simulation.

python experiments/statistics/calibrate.py                      # 5,000 sweeps per setting
python experiments/statistics/calibrate.py --sweeps 200 --comparisons 15 --seeds 5
python experiments/statistics/calibrate.py --comparisons 15 --seeds 5 --baseline-seeds 20 --seed-effect 0 2

Each simulated sweep has a baseline and several variants with the same seeds: a seed has an effect on all
variants, and each variant has normal noise of its own variance. Tests of the plan (without the guard of few
seeds, which `learn_or_not.py` measures) are compared with paired t tests with Holm's correction, on the same data.
"""

import argparse
import itertools
import math
import time

import numpy as np
import scipy

from t2x.statistics.two_way import Contrasts, contrasts, holm, paired, single_level, step_down

LEVEL = 0.05
_CHUNK = 250


def variances(pattern: str, comparisons: int) -> np.ndarray:
  """Returns the noise variances of the baseline and the variants; the ratio of a pattern is up to 1:100."""
  noise = np.ones(comparisons + 1)
  if pattern == 'half of the variants 100':
    noise[1::2] = 100
  elif pattern == 'half 100, baseline 100':
    noise[0::2] = 100
  elif pattern == 'one variant 100':
    noise[1] = 100
  elif pattern == 'baseline 10':
    noise[0] = 10
  elif pattern == 'baseline 100':
    noise[0] = 100
  elif pattern == 'all variants 100':
    noise[1:] = 100
  elif pattern.startswith('spread over 1 to 100'):
    noise[1:] = 100 ** np.linspace(0, 1, comparisons)
    noise[0] = 10 if pattern.endswith('baseline 10') else 1
  return noise


PATTERNS = (
  'equal',
  'half of the variants 100',
  'half 100, baseline 100',
  'one variant 100',
  'baseline 10',
  'baseline 100',
  'all variants 100',
  'spread over 1 to 100, baseline 1',
  'spread over 1 to 100, baseline 10',
)


def simulate(
  generator: np.random.Generator,
  noise: np.ndarray,
  sweeps: int,
  seeds: int,
  baseline_seeds: int = 0,
  seed_effect: float = 2.0,
) -> np.ndarray:
  """Returns metrics [sweeps, variants, seeds] without differences between the variants.

  Args:
    generator: source of randomness.
    noise: noise variances, that of the baseline first.
    sweeps: number of sweeps.
    seeds: number of seeds of the variants; they have no values (NaN) at further seeds of the baseline.
    baseline_seeds: number of seeds of the baseline, if more than `seeds`.
    seed_effect: standard deviation of the effects of the seeds.
  """
  shape = sweeps, len(noise), max(seeds, baseline_seeds)
  own = generator.normal(size=shape) * np.sqrt(noise)[:, None]
  values = own + seed_effect * generator.normal(size=(sweeps, 1, shape[-1]))
  values[:, 1:, seeds:] = np.nan
  return values


def of_plan(values: np.ndarray) -> Contrasts:
  """Returns the test of the plan: paired t tests or the two-way model."""
  return contrasts(values, values.shape[-2] - 1)[0]


def significant(tested: Contrasts, old: bool) -> np.ndarray:
  """Returns which comparisons are significant, by Holm's correction (`old`) or by stepping down."""
  if old:
    return holm(tested.p) <= LEVEL
  return step_down(tested.p, tested.shared, exact_to=LEVEL) <= LEVEL


def one_setting(
  pattern: str,
  comparisons: int,
  seeds: int,
  sweeps: int,
  baseline_seeds: int = 0,
  seed_effect: float = 2.0,
) -> dict[str, float]:
  """Returns the rates of a setting.

  error: sweeps without differences in which any variant is declared different.
  power: detected part of the differences, if a third of the variants differ by 5 standard errors.
  coverage: sweeps in which all simultaneous intervals cover the true difference.
  printed: the same for the intervals beside the verdicts, with a bound of 0 by stepping down, if a third differ.
  single: part of the intervals without correction that cover it.
  same: sweeps in which any variant is declared the same, if all differ by exactly the margin of 6
    standard errors.
  """
  generator = np.random.default_rng([comparisons, seeds, PATTERNS.index(pattern)])
  noise = variances(pattern, comparisons)
  scale = np.sqrt((noise[1:] + noise[0]) / seeds)
  effect = np.zeros(comparisons)
  effect[::3] = 5 * scale[::3]
  rates: dict[str, list[np.ndarray]] = {}

  def add(name: str, values: np.ndarray) -> None:
    rates.setdefault(name, []).append(values.astype(float).ravel())

  for start in range(0, sweeps, _CHUNK):
    count = min(_CHUNK, sweeps - start)
    values = simulate(generator, noise, count, seeds, baseline_seeds, seed_effect)
    other = values.copy()
    other[:, 1:] += effect[:, None]
    for method, name in ((paired, 'old'), (of_plan, 'new')):
      tested = method(values)
      old = name == 'old'
      add(f'error {name}', significant(tested, old).any(-1))
      differ = method(other)
      found = significant(differ, old)
      add(f'power {name}', found[:, ::3])
    wide = tested.half_width(single_level(tested.shared, LEVEL)[:, None])
    add('coverage', (np.abs(tested.difference) <= wide).all(-1))
    add('single', np.abs(tested.difference) <= tested.half_width(LEVEL))
    ends = differ.half_width(single_level(differ.shared, LEVEL)[:, None])
    low, high = differ.difference - ends, differ.difference + ends
    low = np.where(found & (differ.difference > 0), np.maximum(low, 0), low)
    high = np.where(found & (differ.difference < 0), np.minimum(high, 0), high)
    add('printed', ((low <= effect) & (effect <= high)).all(-1))
    narrow = tested.half_width(single_level(tested.shared, 2 * LEVEL)[:, None])
    margin = 6 * scale
    add('same', (np.abs(tested.difference + margin) + narrow <= margin).any(-1))
  return {name: float(np.concatenate(parts).mean()) for name, parts in rates.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sweeps', type=int, default=5000)
  parser.add_argument('--comparisons', type=int, nargs='+', default=[4, 7, 15, 43])
  parser.add_argument('--seeds', type=int, nargs='+', default=[3, 5, 10])
  parser.add_argument('--baseline-seeds', type=int, default=0, help='default: as the variants')
  parser.add_argument(
    '--seed-effect', type=float, nargs='+', default=[2.0], help='standard deviations'
  )
  args = parser.parse_args()
  header = '| variances | comparisons | seeds | seed effect | error old | error new | power old | power new '
  print(f'{header}| coverage, all | coverage, single | false `same` | coverage, printed |')
  print(f'|---|{"---:|" * 11}')
  began, worst = time.monotonic(), 0.0
  names = (
    'error old',
    'error new',
    'power old',
    'power new',
    'coverage',
    'single',
    'same',
    'printed',
  )
  for comparisons in args.comparisons:
    for seeds in args.seeds:
      for effect, pattern in itertools.product(args.seed_effect, PATTERNS):
        setting = pattern, comparisons, seeds, args.sweeps, args.baseline_seeds, effect
        rates = one_setting(*setting)
        cells = ' | '.join(f'{100 * rates[name]:.1f} %' for name in names)
        print(f'| {pattern} | {comparisons} | {seeds} | {effect:g} | {cells} |', flush=True)
        worst = max(worst, rates['error new'])
  deviation = math.sqrt(worst * (1 - worst) / args.sweeps)
  versions = f'numpy {np.__version__}, scipy {scipy.__version__}'
  print(
    f'\nlargest error of the new method: {100 * worst:.2f} %, plus two standard errors '
    f'{100 * (worst + 2 * deviation):.2f} %; {args.sweeps} sweeps per setting, {versions}, '
    f'{time.monotonic() - began:.0f} s'
  )


if __name__ == '__main__':
  main()
