"""Intervals and p-values contain the noise of the evaluated examples."""

import json

import numpy as np
import pytest

from t2x.cli import main
from t2x.sweeps.comparisons import Sample, compare
from t2x.sweeps.examples import ExampleNoise, read_examples, variance
from t2x.sweeps.report import read_results
from t2x.sweeps.report.markdown import details
from t2x.train.logs.writers import EXAMPLES, write_examples


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


def runs(rng, base, own, seeds, of_seeds=0.05):
  """A variant whose runs classify an example correctly if its logit is positive."""
  examples = {
    seed: (base + own + rng.normal(0, of_seeds) + rng.logistic(0, 0.7, len(base)) > 0).astype('f4')
    for seed in range(seeds)
  }
  return Sample({seed: float(x.mean()) for seed, x in examples.items()}, 0, examples)


def wrong(seeds, comparisons, recorded, sweeps=80, count=200):
  """The rates of sweeps with a wrong verdict and with an interval without 0: all variants are equal on average."""
  rng, verdicts, uncovered = np.random.default_rng(seeds), 0, 0
  for _ in range(sweeps):
    base = rng.normal(1.4, 1.5, count)
    baseline, *variants = (
      runs(rng, base, rng.normal(0, 1.5, count), seeds) for _ in range(1 + comparisons)
    )
    if not recorded:
      baseline, *variants = (Sample(one.values) for one in (baseline, *variants))
    result = compare([(one, baseline) for one in variants], 'max')
    verdicts += any(one.verdict in ('helps', 'hurts') for one in result)
    uncovered += any(not one.low <= 0 <= one.high for one in result)
  return verdicts / sweeps, uncovered / sweeps


@pytest.mark.parametrize(('seeds', 'comparisons'), [(3, 1), (5, 4), (5, 7)])
def test_variants_that_differ_by_the_sample_of_examples_get_no_verdict(seeds, comparisons):
  """5 % and two standard errors of 80 sweeps."""
  assert max(wrong(seeds, comparisons, recorded=True)) <= 0.1
  if comparisons == 4:
    assert min(wrong(seeds, comparisons, recorded=False)) > 0.15


def test_examples_never_narrow_an_interval():
  rng = np.random.default_rng(0)
  for spread in (0.0, 0.3, 3.0):
    base = rng.normal(1.4, 1.5, 300)
    sides = [runs(rng, base, rng.normal(0, spread, 300), 3) for _ in range(2)]
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


def test_files_of_other_evaluations_and_damaged_ones_are_not_read(tmp_path):
  values = np.array([0.25, 0.75, 1.0], 'f4')
  assert read_examples(tmp_path, 'test/accuracy', 2 / 3) is None
  write_examples(tmp_path, {'test/accuracy': values, 'one': values[:1]})
  np.testing.assert_array_equal(read_examples(tmp_path, 'test/accuracy', 2 / 3), values)
  assert read_examples(tmp_path, 'test/accuracy', 0.5) is None
  assert read_examples(tmp_path, 'one', 0.25) is None
  assert read_examples(tmp_path, 'loss', 2 / 3) is None
  path = tmp_path / EXAMPLES
  path.write_bytes(path.read_bytes()[:-40])
  assert read_examples(tmp_path, 'test/accuracy', 2 / 3) is None


def test_a_sweep_records_the_examples_and_reports_their_noise(sweep, tmp_path):
  settings = "  metric = 'test/accuracy'\n  goal = 'max'\n"
  code, _ = sweep(extra=settings)
  assert not code
  for run in (tmp_path / 'out' / 'trials').iterdir():
    metrics = json.loads((run / 'trial.json').read_text())['metrics']
    with np.load(run / EXAMPLES) as file:
      assert {*file} == {'loss', 'accuracy', 'top5_accuracy'} | {
        f'test/{name}' for name in ('loss', 'accuracy', 'top5_accuracy')
      }
      for name, values in file.items():
        assert values.mean(dtype='f8') == pytest.approx(metrics[name], rel=1e-6)
        assert len(values) == metrics[f'{name.rpartition("/")[0]}/eval_examples'.removeprefix('/')]
  folder = tmp_path / 'out' / 'study'
  results = read_results(folder)
  (row,) = (row for row in results.rows if row.comparison)
  assert row.comparison.examples == len(values)
  assert f'and that of the {len(values)} evaluated examples' in details(results)
  next((tmp_path / 'out' / 'trials').glob(f'*/{EXAMPLES}')).unlink()
  assert main(['report', str(folder)]) == 0
  assert 'not that of the evaluated examples' in (folder / 'report.md').read_text()
