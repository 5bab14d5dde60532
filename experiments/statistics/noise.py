"""Error rates and power of verdicts if noise is not normal: runs that learn or do not, heavy tails, skewness.

python experiments/statistics/noise.py                 # noise with which the guard of few seeds was found
python experiments/statistics/noise.py --held-out      # noise and random streams that were not used for that
python experiments/statistics/noise.py --sweeps 500 --comparisons 4 --seeds 3
python experiments/statistics/noise.py --scales 2 5    # skewed noise that is less different in size
python experiments/statistics/noise.py --baseline-seeds 20   # runs that learn or do not, more seeds of the baseline
python experiments/statistics/noise.py --find     # how many seeds find a variant that always learns

In sweeps without differences all runs have the same distribution (or that of "scales", whose mean is zero). Verdicts
with the guard of `t2x/statistics/learn_or_not.py` are compared with those of the tests alone, on the same data.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy

from t2x.statistics.comparisons import Sample, compare
from t2x.statistics.learn_or_not import exchange_p, smallest_differences
from t2x.statistics.two_way import contrasts, holm, step_down

LEVEL = 0.05
LEARNED, FAILED = 0.98, 0.1
_CHUNK = 250
# Comparisons and seeds.
SIZES = (
  (1, 3),
  (4, 3),
  (6, 3),
  (16, 3),
  (4, 4),
  (16, 4),
  (43, 4),
  (4, 5),
  (16, 5),
  (43, 5),
  (16, 10),
)
SOME_SIZES = ((4, 3), (16, 3), (4, 5), (16, 5))
# Returns noise of a shape [sweeps, variants, seeds].
Noise = Callable[[np.random.Generator, tuple[int, int, int]], np.ndarray]


def learns(rate: float, learned: float = 0.005, failed: float = 0.005) -> Noise:
  """Returns accuracies of runs that learn at a rate, with the standard deviations of both kinds."""

  def draw(generator: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    means = generator.random(shape) < rate
    own = generator.normal(size=shape)
    return np.where(means, LEARNED + learned * own, FAILED + failed * own)

  return draw


def _by_seed(generator: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
  """The probability of learning is different for each seed, and equal for all variants."""
  rates = generator.uniform(size=(shape[0], 1, shape[2]))
  means = np.where(generator.random(shape) < rates, LEARNED, FAILED)
  return means + 0.01 * generator.normal(size=shape)


NOISE: Mapping[str, Noise] = {
  'normal': lambda g, shape: g.normal(size=shape),
  'learns at 0.5': learns(0.5),
  'learns at 0.2': learns(0.2),
  'learns at 0.8': learns(0.8),
  't, 3 degrees of freedom': lambda g, shape: g.standard_t(3, size=shape),
  'lognormal': lambda g, shape: g.lognormal(size=shape) - np.exp(0.5),
  'a tenth with sd 10': lambda g, shape: (
    g.normal(size=shape) * np.where(g.random(shape) < 0.1, 10, 1)
  ),
}
HELD_OUT: Mapping[str, Noise] = {
  'learns at 0.55, sd 0.02 and 0.001': learns(0.55, 0.02, 0.001),
  'learns at 0.35, sd 0.08': learns(0.35, 0.08, 0.08),
  'learns at a rate of the seed': _by_seed,
  'three levels': lambda g, shape: (
    g.choice([FAILED, 0.6, LEARNED], size=shape, p=[0.4, 0.2, 0.4]) + 0.01 * g.normal(size=shape)
  ),
  'U-shaped, beta(0.1, 0.1)': lambda g, shape: g.beta(0.1, 0.1, size=shape),
  'logistic': lambda g, shape: g.logistic(size=shape),
  'exponential': lambda g, shape: g.exponential(size=shape) - 1,
}
SCALES = ('baseline 10', 'half 10', 'baseline 0.1')


def scales(pattern: str, comparisons: int) -> np.ndarray:
  """Returns factors of the noise of the baseline and the variants: 'half 10' or 'baseline 0.1'."""
  factors = np.ones(comparisons + 1)
  which, _, size = pattern.partition(' ')
  if which == 'half':
    factors[1::2] = float(size)
  elif pattern:
    factors[0] = float(size)
  return factors


def verdicts(values: np.ndarray, level: float = LEVEL) -> dict[str, np.ndarray]:
  """Returns which comparisons have a verdict, of the tests alone and with the guard [sweeps, comparisons].

  Args:
    values: metric [sweeps, variants, seeds], the baseline first; NaN at seeds that only the baseline has.
    level: probability of any wrong verdict.
  """
  count = values.shape[-2] - 1
  tested, _ = contrasts(values, count)
  alone = step_down(tested.p, tested.shared, exact_to=level) <= level
  smallest = smallest_differences(values[:, 1:] - values[:, :1], 1, level)
  guarded = alone & (np.abs(tested.difference) > smallest)
  both = np.isfinite(values[0]).all(0)
  if not both.all():
    paired_only, _ = contrasts(values[..., both], count)
    confirmed = step_down(paired_only.p, paired_only.shared, exact_to=level) <= level
    for sweep in np.flatnonzero((guarded & ~confirmed).any(-1)):
      p = np.array([exchange_p(row, values[sweep, 0]) for row in values[sweep, 1:, both].T])
      confirmed[sweep] |= holm(p) <= level
    guarded &= confirmed
  return {'tests': alone, 'guard': guarded}


def rates(
  noise: Noise,
  comparisons: int,
  seeds: int,
  sweeps: int,
  *,
  pattern: str = '',
  stream: int = 0,
  baseline_seeds: int | None = None,
) -> dict[str, float]:
  """Returns error and power, each of the tests alone and with the guard; the baseline may have more seeds.

  error: sweeps without differences in which any variant has a verdict.
  power: variants with a verdict, if a third of them differs by 5 standard errors.
  """
  generator = np.random.default_rng([stream, comparisons, seeds])
  factors = scales(pattern, comparisons)
  deviation = noise(np.random.default_rng(stream + 100), (20_000, 1, 1)).std()
  effect = np.zeros(comparisons)
  effect[::3] = 5 * deviation * np.sqrt((factors[1:] ** 2 + factors[0] ** 2) / seeds)[::3]
  found: dict[str, list[float]] = {}
  for start in range(0, sweeps, _CHUNK):
    count = min(_CHUNK, sweeps - start)
    shape = count, comparisons + 1, baseline_seeds or seeds
    values = noise(generator, shape) * factors[:, None]
    values[:, 1:, seeds:] = np.nan
    for name, decided in verdicts(values).items():
      found.setdefault(f'error {name}', []).extend(decided.any(-1))
    values[:, 1:] += effect[:, None]
    for name, decided in verdicts(values).items():
      found.setdefault(f'power {name}', []).extend(decided[:, ::3].mean(-1))
  return {name: float(np.mean(items)) for name, items in found.items()}


def some_always_learn(
  comparisons: int, always: int, seeds: int, sweeps: int, stream: int = 0
) -> dict[str, float]:
  """Returns the part of sweeps with any wrong verdict if `always` variants always learn, and all others at 0.5.

  Wrong is a verdict on a variant that learns at the rate of the baseline, or that one that always learns is worse.
  """
  generator = np.random.default_rng([stream, comparisons, seeds, always])
  found: dict[str, list[bool]] = {}
  for start in range(0, sweeps, _CHUNK):
    shape = min(_CHUNK, sweeps - start), comparisons + 1, seeds
    values = learns(0.5)(generator, shape)
    values[:, 1 : always + 1] = learns(1.0)(generator, (shape[0], always, seeds))
    worse = values[:, 1:].mean(-1) < values[:, :1].mean(-1)
    worse[:, always:] = True
    for name, decided in verdicts(values).items():
      found.setdefault(name, []).extend((decided & worse).any(-1))
  return {name: float(np.mean(items)) for name, items in found.items()}


def found_learner(comparisons: int, seeds: int, sweeps: int, bound: bool, stream: int = 0) -> float:
  """Returns how often the only variant that always learns helps, where all other runs learn at 0.5.

  Args:
    comparisons: number of variants.
    seeds: number of seeds.
    sweeps: number of sweeps.
    bound: whether `Sweep.failed_below` = 0.5, so that rates are compared.
    stream: number of the random stream.
  """
  generator = np.random.default_rng([stream, comparisons, seeds, 11])
  values = learns(0.5)(generator, (sweeps, comparisons + 1, seeds))
  values[:, 1] = learns(1.0)(generator, (sweeps, seeds))
  if not bound:
    chunks = [values[i : i + _CHUNK] for i in range(0, sweeps, _CHUNK)]
    return float(np.mean(np.concatenate([verdicts(chunk)['guard'][:, 0] for chunk in chunks])))
  return float(np.mean([compare(_bounded(sweep), 'max')[0].verdict == 'helps' for sweep in values]))


def _bounded(values: np.ndarray) -> list[tuple[Sample, Sample]]:
  """Returns the samples of a sweep with `Sweep.failed_below` = 0.5: runs below it count as diverged."""
  samples = [
    Sample({seed: value for seed, value in enumerate(row) if value > 0.5}, int((row <= 0.5).sum()))
    for row in values
  ]
  return [(sample, samples[0]) for sample in samples[1:]]


def with_bound(rate: float, comparisons: int, seeds: int, sweeps: int, stream: int = 0) -> float:
  """Returns the part of sweeps without differences that have a verdict, with `Sweep.failed_below` = 0.5."""
  generator = np.random.default_rng([stream, comparisons, seeds, 7])
  wrong = 0
  for values in learns(rate)(generator, (sweeps, comparisons + 1, seeds)):
    found = compare(_bounded(values), 'max', level=LEVEL)
    wrong += any(item.verdict in ('helps', 'hurts') for item in found)
  return wrong / sweeps


def _percent(value: float) -> str:
  return f'{100 * value:.1f}'


def _table(
  families: Mapping[str, Noise],
  sizes: Sequence[tuple[int, int]],
  sweeps: int,
  patterns: Sequence[str],
  stream: int,
  baseline_seeds: int | None = None,
) -> float:
  """Prints errors and power in percent; returns the largest error with the guard."""
  worst = 0.0
  header = ' | '.join(f'{comparisons}, {seeds}' for comparisons, seeds in sizes)
  lines: dict[str, list[str]] = {'error': [], 'power': []}
  for name, noise in families.items():
    for pattern in patterns:
      settings = {'pattern': pattern, 'stream': stream, 'baseline_seeds': baseline_seeds}
      found = [rates(noise, *size, sweeps, **settings) for size in sizes]
      worst = max(worst, *(item['error guard'] for item in found))
      label = f'{name}, {pattern}' if pattern else name
      for what, rows in lines.items():
        cells = (
          f'{_percent(item[f"{what} guard"])} ({_percent(item[f"{what} tests"])})' for item in found
        )
        rows.append(f'| {label} | {" | ".join(cells)} |')
  for what, rows in lines.items():
    print(f'| {what}, %: comparisons, seeds | {header} |\n|---|{"---:|" * len(sizes)}')
    print('\n'.join(rows), end='\n\n', flush=True)
  return worst


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sweeps', type=int, default=2000)
  parser.add_argument('--held-out', action='store_true')
  parser.add_argument('--comparisons', type=int, nargs='+')
  parser.add_argument('--seeds', type=int, nargs='+')
  parser.add_argument(
    '--scales', type=float, nargs='+', help='only skewed noise, sizes of its spread'
  )
  parser.add_argument('--baseline-seeds', type=int, help='only runs that learn or do not')
  parser.add_argument(
    '--find', action='store_true', help='only power for a variant that always learns'
  )
  args = parser.parse_args()
  began, stream = time.monotonic(), 2 if args.held_out else 0
  families = HELD_OUT if args.held_out else NOISE
  sizes = [
    (comparisons, seeds)
    for comparisons, seeds in SIZES
    if comparisons in (args.comparisons or [comparisons]) and seeds in (args.seeds or [seeds])
  ]
  if args.scales:
    skewed = {name: (NOISE | HELD_OUT)[name] for name in ('lognormal', 'exponential')}
    patterns = [
      f'{which} {size:g}'
      for scale in args.scales
      for which, size in (('baseline', scale), ('half', scale), ('baseline', 1 / scale))
    ]
    _table(skewed, [size for size in sizes if size in SOME_SIZES], args.sweeps, patterns, stream)
  elif args.baseline_seeds:
    others = {f'learns at {rate}': learns(rate) for rate in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8)}
    sizes = [
      (comparisons, seeds)
      for comparisons in args.comparisons or (8, 15)
      for seeds in args.seeds or (5, 10)
    ]
    families = {'normal': NOISE['normal'], **others}
    _table(families, sizes, args.sweeps, [''], stream, args.baseline_seeds)
  elif args.find:
    _find(args.sweeps, args.comparisons or (1, 4, 8, 16), args.seeds or (5, 10, 20))
  else:
    _all_tables(families, sizes, args.sweeps, stream)
  print(
    f'{args.sweeps} sweeps per setting (a fifth with failed_below), numpy {np.__version__}, '
    f'scipy {scipy.__version__}, {time.monotonic() - began:.0f} s'
  )


def _find(sweeps: int, comparisons: Sequence[int], seeds: Sequence[int]) -> None:
  """Prints how often a variant that always learns helps, without and with a bound of failures."""
  print('| comparisons | seeds | helps | with failed_below |\n|---:|---:|---:|---:|')
  for size in itertools.product(comparisons, seeds):
    parts = [
      found_learner(*size, sweeps, bound=False),
      found_learner(*size, sweeps // 5, bound=True),
    ]
    print(
      f'| {size[0]} | {size[1]} | {" | ".join(f"{_percent(p)} %" for p in parts)} |', flush=True
    )


def _all_tables(
  families: Mapping[str, Noise], sizes: Sequence[tuple[int, int]], sweeps: int, stream: int
) -> None:
  worst = _table(families, sizes, sweeps, [''], stream)
  print(f'largest error with the guard: {100 * worst:.2f} %\n')
  print('Noise of different size (standard deviations):\n')
  smooth = {name: noise for name, noise in families.items() if not _is_learning(name)}
  _table(smooth, [size for size in sizes if size in SOME_SIZES], sweeps, SCALES, stream)
  print(
    'Some variants always learn, all other runs at 0.5 (wrong verdicts, %; in brackets: tests alone):\n'
  )
  for comparisons, seeds in sizes:
    if comparisons == 1:
      continue
    for always in sorted({1, comparisons // 2, comparisons - 1} - {0, comparisons}):
      found = some_always_learn(comparisons, always, seeds, sweeps, stream)
      texts = f'{_percent(found["guard"])} ({_percent(found["tests"])})'
      print(f'- {always} of {comparisons}, {seeds} seeds: {texts}', flush=True)
  print('\nWith Sweep.failed_below, runs that learn at 0.5 and 0.8 (wrong verdicts, %):\n')
  for comparisons, seeds in sizes:
    if comparisons < 43:
      texts = [_percent(with_bound(p, comparisons, seeds, sweeps // 5, stream)) for p in (0.5, 0.8)]
      print(f'- {comparisons} comparisons, {seeds} seeds: {", ".join(texts)}', flush=True)


def _is_learning(name: str) -> bool:
  return name.startswith(('learns', 'three', 'U-shaped'))


if __name__ == '__main__':
  main()
