"""Intervals and p-values contain the noise of the evaluated examples."""

import importlib.util
import json
from pathlib import Path

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


@pytest.fixture(scope='module')
def simulation():
  path = Path(__file__).parents[2] / 'experiments' / 'statistics' / 'examples.py'
  spec = importlib.util.spec_from_file_location('simulated_examples', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize(
  ('seeds', 'comparisons'),
  [
    pytest.param(3, 1, marks=pytest.mark.nightly),
    pytest.param(5, 4, marks=pytest.mark.nightly),
    (5, 7),
  ],
)
def test_variants_that_differ_by_the_sample_of_examples_get_no_verdict(
  simulation, seeds, comparisons
):
  """5 % and two standard errors of 80 sweeps."""
  without, with_examples = simulation.wrong_verdicts(seeds, 200, comparisons, 1.5, 80)
  assert with_examples <= 0.1
  if comparisons == 4:
    assert without > 0.15


def test_examples_never_narrow_an_interval(simulation):
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
      names = ('loss', 'accuracy', 'top5_accuracy', 'label', 'prediction')
      assert {*file} == {*names, *(f'test/{name}' for name in names)}
      for name, values in file.items():
        if name.rpartition('/')[2] not in ('label', 'prediction'):
          assert values.mean(dtype='f8') == pytest.approx(metrics[name], rel=1e-6)
        assert len(values) == metrics[f'{name.rpartition("/")[0]}/eval_examples'.removeprefix('/')]
  folder = tmp_path / 'out' / 'study'
  results = read_results(folder)
  (row,) = (row for row in results.rows if row.comparison)
  assert row.comparison.examples == len(values)
  assert f'and the noise of the {len(values)} evaluated examples' in details(results)
  next((tmp_path / 'out' / 'trials').glob(f'*/{EXAMPLES}')).unlink()
  assert main(['report', str(folder)]) == 0
  assert 'but not the noise of the evaluated examples' in (folder / 'report.md').read_text()
