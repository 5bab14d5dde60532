"""Intervals and p-values contain the noise of the evaluated examples."""

import numpy as np
import pytest

from experiments.statistics import examples as simulation
from t2x.statistics.comparisons import Sample, compare
from t2x.statistics.example_noise import ExampleNoise, variance


def anova(d):
  """The component of the examples in a crossed layout with random effects, from sums of squares."""
  seeds, count = d.shape
  grand = d.mean()
  of_examples = seeds * sum((d[:, x].mean() - grand) ** 2 for x in range(count))
  of_seeds = count * sum((d[s].mean() - grand) ** 2 for s in range(seeds))
  residual = ((d - grand) ** 2).sum() - of_examples - of_seeds
  mean_squares = of_examples / (count - 1), residual / ((seeds - 1) * (count - 1))
  return max(0.0, (mean_squares[0] - mean_squares[1]) / seeds) / count


@pytest.mark.parametrize('spread', [0.0, 1.0])
def test_the_variance_is_the_component_of_a_crossed_layout(spread):
  rng = np.random.default_rng(0)
  for _ in range(5):
    d = rng.normal(size=(4, 30)) + spread * rng.normal(size=30) + rng.normal(size=(4, 1))
    assert variance(d) == pytest.approx(anova(d), abs=1e-12)


def test_of_deterministic_models_it_is_the_variance_of_discordant_pairs():
  """McNemar: b and c examples that only one of the two classifies correctly."""
  b, c, n = 17, 8, 200
  d = np.repeat([1.0, -1.0, 0.0], [b, c, n - b - c])
  assert variance(np.stack([d] * 3)) == pytest.approx((b + c - (b - c) ** 2 / n) / n / (n - 1))


@pytest.mark.parametrize(
  ('seeds', 'comparisons'),
  [
    pytest.param(3, 1, marks=pytest.mark.nightly),
    pytest.param(5, 4, marks=pytest.mark.nightly),
    (5, 7),
  ],
)
def test_variants_that_differ_by_the_sample_of_examples_get_no_verdict(seeds, comparisons):
  """5 % and two standard errors of 80 sweeps."""
  without, with_examples = simulation.wrong_verdicts(seeds, 200, comparisons, 1.5, 80)
  assert with_examples <= 0.1
  if comparisons == 4:
    assert without > 0.15


def test_examples_never_narrow_an_interval():
  rng = np.random.default_rng(0)
  for spread in (0.0, 0.3, 3.0):
    base = rng.normal(1.4, 1.5, 300)
    sides = [simulation.runs(rng, base + rng.normal(0, spread, 300), 3) for _ in range(2)]
    (with_examples,) = compare([tuple(sides)], 'max', margin=0.2)
    (without,) = compare([tuple(Sample(side.values) for side in sides)], 'max', margin=0.2)
    assert (with_examples.examples, without.examples) == (300, None)
    assert with_examples.p >= without.p
    assert with_examples.low <= without.low and without.high <= with_examples.high
    assert with_examples.more_seeds is None or with_examples.more_seeds >= without.more_seeds


def test_of_other_examples_or_a_seed_without_them_nothing_is_added():
  values, ten, nine = {0: 1.0, 1: 2.0}, np.arange(10.0), np.arange(9.0)
  assert ExampleNoise.of({0: ten, 1: ten}, {0: ten, 1: ten}, [*values]) == ExampleNoise(0.0, 10)
  for other in ({0: ten}, {0: nine, 1: nine}, {}):
    assert ExampleNoise.of({0: ten, 1: ten}, other, [*values]) == ExampleNoise()
