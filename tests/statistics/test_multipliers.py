"""Multipliers of compute: exact laws, scipy's curve_fit for noisy ones, and coverage of the intervals."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize, stats

from experiments.referee import simulate_multipliers as simulation
from t2x.statistics.multipliers import AHEAD, fit_laws, lack_of_fit, log_multiplier, multipliers
from t2x.statistics.table import Columns, read_table

COMPUTE = np.tile(np.repeat(1e18 * 3.0 ** np.arange(5), 4), 2)
VARIANTS = np.repeat([0, 1], 20)


def law(compute, offset, factor, exponent):
  return offset + factor * compute**-exponent


def losses(noise=0.0, exponents=(0.1, 0.1), seed=0):
  """The second variant needs half the compute for the loss at 1e18, and everywhere with equal exponents."""
  factors = 60.0 * 1e18 ** (exponents[0] - 0.1), 60.0 * 2e18**-0.1 * 1e18 ** exponents[1]
  sides = [law(COMPUTE, 1.7, *pair) for pair in zip(factors, exponents, strict=True)]
  exact = np.where(VARIANTS == 0, *sides)
  return exact + noise * np.random.default_rng(seed).normal(size=len(exact))


def at(laws, compute):
  return lambda vector: log_multiplier(vector, laws.places, 1, 0, math.log(compute) - laws.center)


@pytest.mark.parametrize('shared', [True, False])
def test_exact_losses_give_their_laws(shared):
  laws = fit_laws(COMPUTE, losses(), VARIANTS, shared)
  np.testing.assert_allclose(laws.constants(0), (1.7, 60.0, 0.1), rtol=1e-6)
  assert math.exp(at(laws, 1e20)(laws.vector)) == pytest.approx(2.0, rel=1e-6)


def test_constants_and_interval_match_curve_fit():
  """The oracle has log Sc as a constant of the law; its covariance is scipy's."""
  noisy = losses(0.002)

  def function(compute, offset, log_factor, exponent, log_multiplier):
    return offset + np.exp(
      log_factor - exponent * (np.log(compute / 1e19) + VARIANTS * log_multiplier)
    )

  start = 1.7, math.log(60 * 1e19**-0.1), 0.1, math.log(2)
  constants, covariance = optimize.curve_fit(
    function, COMPUTE, noisy, start, method='trf', x_scale='jac'
  )
  laws = fit_laws(COMPUTE, noisy, VARIANTS, shared=True)
  assert laws.constants(0)[0] == pytest.approx(constants[0], rel=1e-5)
  value, low, high = laws.interval(at(laws, 1e20))
  half = stats.t.isf(0.025, len(noisy) - 4) * math.sqrt(covariance[3, 3])
  assert value == pytest.approx(constants[3], rel=1e-4)
  np.testing.assert_allclose([low, high], [constants[3] - half, constants[3] + half], rtol=2e-3)


def test_lack_of_fit_is_an_f_test_against_the_noise_of_equal_runs():
  noisy = losses(0.002)
  laws = fit_laws(COMPUTE, noisy, VARIANTS, shared=True)
  cells = noisy.reshape(10, 4)
  pure = ((cells - cells.mean(1, keepdims=True)) ** 2).sum()
  ratio = (laws.squares - pure) / 6 / (pure / 30)
  assert lack_of_fit(laws, COMPUTE, noisy, VARIANTS) == pytest.approx(stats.f.sf(ratio, 6, 30))


def test_laws_of_several_experiments_are_those_of_each():
  batch = np.stack([losses(0.002, seed=seed) for seed in range(3)])
  together = fit_laws(COMPUTE, batch, VARIANTS, shared=True)
  for index, own in enumerate(batch):
    alone = fit_laws(COMPUTE, own, VARIANTS, shared=True)
    np.testing.assert_allclose(together.vector[index], alone.vector, rtol=1e-7)


@pytest.mark.parametrize('kind', ['normal', 't3'])
@pytest.mark.parametrize('case', ['shared law', 'own law'])
def test_intervals_cover_the_true_multiplier(case, kind):
  """600 simulations: two standard errors of 95 % are 1.8 %."""
  rng = np.random.default_rng(1)
  exact = simulation.true_losses(case, simulation.COMPUTE)[:, :, None]
  shape = (600, 3, simulation.SIZES, simulation.SEEDS)
  ends, _ = simulation.intervals(exact + simulation.noise(kind, shape, rng))
  for variant in (1, 2):
    _, low, high = ends[:, variant - 1]
    true = math.log(simulation.true_multiplier(case, variant))
    known = np.isfinite(low)
    assert known.mean() > 0.9
    assert 0.925 < ((low <= true) & (true <= high))[known].mean() < 0.975


def write(path, values, extra=lambda index: '', header='variant,size,seed,flops,loss'):
  lines = [header]
  for index, value in enumerate(values):
    compute = COMPUTE[index]
    lines.append(
      f'{"ab"[VARIANTS[index]]},{compute},{index % 4},{float(compute)!r},{float(value)!r}{extra(index)}'
    )
  path.write_text('\n'.join(lines))
  return read_table(path, Columns())


def test_the_wall_clock_multiplier_is_sc_times_the_ratio_of_speeds(tmp_path):
  """The second variant trains at 0.8 of the speed."""
  table = write(
    tmp_path / 'a.csv',
    losses(0.002),
    lambda index: f',{COMPUTE[index] / (1e15 * (0.8 if VARIANTS[index] else 1.0))}',
    'variant,size,seed,flops,loss,seconds',
  )
  (result,) = multipliers(table, 'loss', 'a')
  for row, size in zip(result.rows, (81e18, AHEAD * 81e18), strict=True):
    assert row.compute == pytest.approx(size)
    assert row.of_compute.low < 2.0 < row.of_compute.high
    assert row.of_time.value == pytest.approx(0.8 * row.of_compute.value)
  assert not result.crossings and 'shared E and a' in result.note


def test_laws_that_cross_have_their_own_constants_and_a_crossing(tmp_path):
  """60 C^-0.1 = f C^-0.13 at a compute between the sizes."""
  table = write(tmp_path / 'a.csv', losses(0.0005, (0.1, 0.13)))
  (result,) = multipliers(table, 'loss', 'a')
  assert 'a law for each variant' in result.note
  # Equal losses at C where (2e18)^-0.1 (1e18)^0.13 C^-0.13 = C^-0.1, below 1e18.
  true = 1e18 * 2 ** (-0.1 / 0.03)
  crossing = result.crossings['b']
  assert crossing is None or crossing.low < true < crossing.high


def test_wide_intervals_and_few_sizes_are_undetermined(tmp_path):
  (result,) = multipliers(write(tmp_path / 'a.csv', losses(0.3)), 'loss', 'a')
  assert all(row.of_compute is None for row in result.rows)
  keep = COMPUTE < 5e18
  table = write(tmp_path / 'b.csv', losses(0.002)).only(keep)
  (result,) = multipliers(table, 'loss', 'a')
  assert not result.rows and 'needs 3 sizes of each variant, not 2' in result.note


def test_parameters_are_counted_with_and_without_embeddings(tmp_path):
  table = write(
    tmp_path / 'a.csv',
    losses(0.002),
    lambda index: f',{int(COMPUTE[index] ** 0.5)},{int(1e7)},{1e9}',
    'variant,size,seed,flops,loss,parameters,embeddings,tokens',
  )
  del table.numbers['flops']
  first, second = multipliers(table, 'loss', 'a')
  assert (first.count, second.count) == ('6 N D with all parameters', '6 N D without embeddings')
  assert first.rows[0].compute > second.rows[0].compute


def test_a_run_with_items_counts_once(tmp_path):
  """The items differ more than the runs; their mean is the loss of the run."""
  runs = losses(0.002)
  spread = np.array([-0.2, -0.1, 0.0, 0.3])
  rows = np.repeat(np.arange(len(runs)), len(spread))
  lines = ['variant,size,seed,flops,item,loss']
  for index, item in zip(rows, np.tile(np.arange(len(spread)), len(runs)), strict=True):
    cells = COMPUTE[index], index % 4, COMPUTE[index], item, runs[index] + spread[item]
    lines.append(','.join(['ab'[VARIANTS[index]], *map(str, map(float, cells))]))
  (tmp_path / 'items.csv').write_text('\n'.join(lines))
  (of_items,) = multipliers(read_table(tmp_path / 'items.csv', Columns()), 'loss', 'a')
  (of_runs,) = multipliers(write(tmp_path / 'runs.csv', runs), 'loss', 'a')
  for own, other in zip(of_items.rows, of_runs.rows, strict=True):
    sides = [dataclasses.astuple(row.of_compute) for row in (own, other)]
    np.testing.assert_allclose(*sides, rtol=1e-6)
