"""Error rates and power of verdicts on tuned variants: how tuning seeds choose the values of the comparison.

python experiments/statistics/tuned.py                      # errors and power of all procedures
python experiments/statistics/tuned.py --sweeps 500 --seeds 10 --comparisons 8

Every variant has the same curve over five values of a hyperparameter: the metric at a distance of d steps from the best
one is `curvature * d ** 2` worse, and every run has normal noise of standard deviation 1. Procedures:

best mean N   the value with the best mean of N tuning seeds, for all seeds of the comparison
matched       tuning seed i chooses the value of seed i of the comparison (`Sweep.tune`)
blocks N      N tuning seeds choose the values of blocks of seeds, whose means are compared

Wrong is any verdict. With an untuned baseline, the baseline has the expected result of the tuned variants at one
value. Power: the part of the variants that get a verdict in the right direction, if a third of them is better by a
number of standard deviations.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import scipy
from noise import verdicts

STEPS = np.arange(5) - 2
_CHUNK = 250
# Returns the chosen values [sweeps, variants, seeds] of curves [values].
Choose = Callable[[np.random.Generator, tuple[int, int, int], np.ndarray], np.ndarray]


def best_mean(count: int) -> Choose:
  """Returns the procedure that takes one value for all seeds, the best mean of `count` tuning seeds."""

  def choose(generator, shape, curve):
    sweeps, variants, seeds = shape
    means = curve + generator.normal(size=(sweeps, variants, len(curve))) / np.sqrt(count)
    return np.repeat(means.argmin(-1)[..., None], seeds, axis=-1)

  return choose


def matched(generator: np.random.Generator, shape: tuple[int, int, int], curve: np.ndarray):
  """Each seed has the value that its own tuning seed chose."""
  return (curve + generator.normal(size=(*shape, len(curve)))).argmin(-1)


def blocks(count: int) -> Choose:
  """Returns the procedure in which `count` tuning seeds choose the values of blocks of seeds."""

  def choose(generator, shape, curve):
    sweeps, variants, seeds = shape
    return matched(generator, (sweeps, variants, count), curve)[..., np.arange(seeds) % count]

  return choose


PROCEDURES: dict[str, tuple[Choose, int | None]] = {
  'best mean 1': (best_mean(1), None),
  'best mean 2': (best_mean(2), None),
  'matched': (matched, None),
  'blocks 3': (blocks(3), 3),
  'blocks 5': (blocks(5), 5),
}


def decided(
  procedure: str,
  generator: np.random.Generator,
  shape: tuple[int, int, int],
  curve: np.ndarray,
  effect: np.ndarray | float = 0.0,
  *,
  tuned_baseline: bool = True,
) -> np.ndarray:
  """Simulates sweeps; returns 1 for a verdict that a variant is better, -1 for worse, else 0 [sweeps, comparisons].

  Args:
    procedure: one of `PROCEDURES`.
    generator: source of randomness.
    shape: sweeps, variants with the baseline, seeds.
    curve: expected metric at each value, lower is better.
    effect: added to the metric of each variant [comparisons].
    tuned_baseline: whether the baseline is tuned, too.
  """
  choose, count = PROCEDURES[procedure]
  expected = curve[choose(generator, shape, curve)]
  if not tuned_baseline:
    expected[:, 0] = expected_result(procedure, curve)
  values = expected + generator.normal(size=shape)
  values[:, 1:] += np.broadcast_to(effect, shape[1] - 1)[:, None]
  if count is not None:
    block = np.arange(shape[2]) % count
    values = np.stack([values[..., block == i].mean(-1) for i in range(count)], -1)
  difference = values[:, 1:].mean(-1) - values[:, :1].mean(-1)
  return np.where(verdicts(values)['guard'], -np.sign(difference), 0)


def expected_result(procedure: str, curve: np.ndarray, draws: int = 200_000) -> float:
  """Returns the expected metric of the tuned value, by simulation."""
  choose, _ = PROCEDURES[procedure]
  return float(curve[choose(np.random.default_rng(1), (draws, 1, 1), curve)].mean())


def error(
  procedure: str,
  comparisons: int,
  seeds: int,
  curvature: float,
  sweeps: int,
  *,
  tuned_baseline: bool = True,
) -> float:
  """Returns the part of sweeps with any verdict if all variants have the same curve."""
  generator = np.random.default_rng([comparisons, seeds, int(100 * curvature), tuned_baseline])
  wrong = 0
  for start in range(0, sweeps, _CHUNK):
    shape = min(_CHUNK, sweeps - start), comparisons + 1, seeds
    found = decided(
      procedure, generator, shape, curvature * STEPS**2.0, tuned_baseline=tuned_baseline
    )
    wrong += int(found.any(-1).sum())
  return wrong / sweeps


def power(
  procedure: str, comparisons: int, seeds: int, curvature: float, size: float, sweeps: int
) -> float:
  """Returns the part of the better variants with the verdict that they are, if every third one is better by `size`."""
  generator = np.random.default_rng([comparisons, seeds, int(100 * curvature), 2])
  effect = np.zeros(comparisons)
  effect[::3] = -size
  found = []
  for start in range(0, sweeps, _CHUNK):
    shape = min(_CHUNK, sweeps - start), comparisons + 1, seeds
    right = decided(procedure, generator, shape, curvature * STEPS**2.0, effect)[:, ::3] > 0
    found.extend(right.mean(-1))
  return float(np.mean(found))


def _valid(procedure: str, seeds: int) -> bool:
  count = PROCEDURES[procedure][1]
  return count is None or count < seeds


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sweeps', type=int, default=2000)
  parser.add_argument('--comparisons', type=int, nargs='+', default=[1, 4, 8, 15])
  parser.add_argument('--seeds', type=int, nargs='+', default=[5, 10, 20])
  parser.add_argument('--procedures', nargs='+', default=[*PROCEDURES], choices=[*PROCEDURES])
  parser.add_argument('--curvatures', type=float, nargs='+', default=[0.25, 1.0, 4.0])
  args = parser.parse_args()
  began, columns = time.monotonic(), ' | '.join(f'{c:g}' for c in args.curvatures)
  print(f'| procedure | baseline | comparisons | seeds | error: {columns} |')
  print(f'|---|---|---:|---:|{"---:|" * len(args.curvatures)}', flush=True)
  for procedure in args.procedures:
    for tuned_baseline in (True, False):
      for comparisons in args.comparisons:
        for seeds in filter(lambda n: _valid(procedure, n), args.seeds):
          cells = (
            error(procedure, comparisons, seeds, c, args.sweeps, tuned_baseline=tuned_baseline)
            for c in args.curvatures
          )
          name = 'tuned' if tuned_baseline else 'one value'
          text = ' | '.join(f'{100 * cell:.1f} %' for cell in cells)
          print(f'| {procedure} | {name} | {comparisons} | {seeds} | {text} |', flush=True)
  print(f'\n| procedure | comparisons | seeds | size | power: {columns} |')
  print(f'|---|---:|---:|---:|{"---:|" * len(args.curvatures)}', flush=True)
  for procedure in args.procedures:
    for comparisons in args.comparisons:
      for seeds in filter(lambda n: _valid(procedure, n), args.seeds):
        for size in (2.0, 4.0):
          cells = (
            power(procedure, comparisons, seeds, c, size, args.sweeps // 4) for c in args.curvatures
          )
          text = ' | '.join(f'{100 * cell:.0f} %' for cell in cells)
          print(f'| {procedure} | {comparisons} | {seeds} | {size:g} | {text} |', flush=True)
  print(
    f'\n{args.sweeps} sweeps per error, {args.sweeps // 4} per power; numpy {np.__version__}, '
    f'scipy {scipy.__version__}, {time.monotonic() - began:.0f} s'
  )


if __name__ == '__main__':
  main()
