"""A knob is moved to where a quantity is nearest its target."""

import numpy as np
import pytest

from t2x.errors import UserError
from t2x.sweeps.budgets import solve


def nearest(measure, target, limit=5000):
  values = np.arange(1, limit)
  return values[np.argmin([abs(measure(int(v)) - target) for v in values])]


@pytest.mark.parametrize(
  'measure',
  [lambda v: 7 * v + 1000, lambda v: v * v, lambda v: 1e3 * np.sqrt(v)],
  ids=['linear', 'square', 'root'],
)
@pytest.mark.parametrize('start', [1, 40, 900])
@pytest.mark.parametrize('target', [2200.0, 9100.0])
def test_the_nearest_integer(measure, start, target):
  found = solve(measure, start, target, tolerance=0.0)
  assert abs(found.deviation) == pytest.approx(
    abs(measure(int(nearest(measure, target))) / target - 1), abs=1e-12
  )
  assert found.deviation == measure(found.value) / target - 1


def test_a_start_within_the_tolerance_stays():
  assert solve(lambda v: 100.0 * v, 100, 10_050.0, tolerance=0.01).value == 100


@pytest.mark.parametrize('fixed', [1e3, 5e5])
def test_few_values_are_tried(fixed):
  tried = []
  solve(lambda v: tried.append(v) or fixed + 3 * v, 256, 1_000_000.0, tolerance=0.001)
  assert len(tried) < 8


def test_values_that_are_refused_are_passed_over():
  def measure(value):
    if value % 3:
      raise UserError('layers do not divide')
    return 10.0 * value

  assert solve(measure, 6, 121.0, tolerance=0.01).value == 12


def test_what_is_out_of_reach_gives_the_nearest_and_its_gap():
  found = solve(lambda v: 1000.0 + v, 50, 500.0, tolerance=0.01)
  assert (found.value, found.deviation) == (1, 1001 / 500 - 1)


def test_nothing_that_can_be_built_is_an_error():
  def measure(value):
    raise UserError('no')

  with pytest.raises(UserError, match='cannot be built'):
    solve(measure, 3, 1.0, tolerance=0.01)
