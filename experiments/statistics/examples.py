"""Measures wrong verdicts on variants that differ only by the sample of evaluated examples.

python experiments/statistics/examples.py        # 300 sweeps per row, ten minutes

All variants of a simulated sweep are equal on average over all examples. Each has an effect of its own at each example
(standard deviation `spread` of a logit), and runs classify an example correctly if its logit with the noise of the run
is positive. Wrong verdicts are counted with the noise of the seeds only, and with the recorded examples.
"""

import argparse

import numpy as np

from t2x.statistics.comparisons import Sample, compare

# Seeds, examples, comparisons.
SIZES = ((3, 300, 1), (5, 300, 1), (5, 1000, 1), (5, 300, 4), (5, 300, 8), (10, 300, 4))
SPREADS = (0.0, 0.5, 1.5)


def runs(rng: np.random.Generator, logits: np.ndarray, seeds: int) -> Sample:
  """Returns the results of a variant with these mean logits."""
  examples = {
    seed: (logits + rng.normal(0, 0.05) + rng.logistic(0, 0.7, len(logits)) > 0).astype(np.float32)
    for seed in range(seeds)
  }
  values = {seed: float(correct.mean()) for seed, correct in examples.items()}
  return Sample(values, 0, examples)


def wrong_verdicts(
  seeds: int, count: int, comparisons: int, spread: float, sweeps: int
) -> tuple[float, float]:
  """Returns the rates of sweeps with any wrong verdict: without the recorded examples, and with them."""
  rng, wrong = np.random.default_rng([seeds, count, comparisons]), np.zeros(2)
  for _ in range(sweeps):
    base = rng.normal(1.4, 1.5, count)
    baseline, *variants = (
      runs(rng, base + rng.normal(0, spread, count), seeds) for _ in range(1 + comparisons)
    )
    for index, recorded in enumerate((False, True)):
      sides = [one if recorded else Sample(one.values) for one in (baseline, *variants)]
      result = compare([(side, sides[0]) for side in sides[1:]], 'max')
      wrong[index] += any(one.verdict in ('helps', 'hurts') for one in result)
  without, with_examples = wrong / sweeps
  return float(without), float(with_examples)


def main() -> None:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sweeps', type=int, default=300)
  args = parser.parse_args()
  print('seeds  examples  comparisons  spread  seeds only  with examples')
  for size in SIZES:
    for spread in SPREADS:
      rates = wrong_verdicts(*size, spread, args.sweeps)
      print(
        f'{size[0]:5}  {size[1]:8}  {size[2]:11}  {spread:6.1f}  {rates[0]:10.3f}  {rates[1]:13.3f}'
      )


if __name__ == '__main__':
  main()
