"""Shardings of intermediate arrays: rules against the compiler's, by hand."""

import pytest

from t2x.plan.shards import dot_spec, merged, reshaped

SIZES = {'data': 2, 'fsdp': 4, 'tensor': 2}
BATCH = ('data', 'fsdp')


@pytest.mark.parametrize(
  ('shape', 'spec', 'new', 'expected'),
  [
    # Rows and tokens are merged, and split again.
    ((16, 8, 64), (BATCH, (), ()), (128, 64), (BATCH, ())),
    ((128, 64), (BATCH, ()), (16, 8, 64), (BATCH, (), ())),
    # Heads keep the axis, features per head have none.
    ((16, 64), ((), ('tensor',)), (16, 4, 16), ((), ('tensor',), ())),
    ((16, 4, 16), ((), ('tensor',), ()), (16, 64), ((), ('tensor',))),
    ((1, 16, 8), ((), BATCH, ()), (16, 1, 8), (BATCH, (), ())),
    # Three parts cannot be split over two devices.
    ((6, 5), (('tensor',), ()), (3, 10), ((), ())),
  ],
)
def test_reshapes_keep_the_axes_of_the_major_part(shape, spec, new, expected):
  assert reshaped(shape, spec, new, SIZES) == expected


def test_products_sum_over_the_axes_of_contracted_dimensions():
  activation, kernel = (BATCH, (), ('tensor',)), (('tensor',), ())
  contract_last = (((2,), (0,)), ((), ()))
  assert dot_spec(activation, kernel, contract_last) == ((BATCH, (), ()), ('tensor',))
  # The gradient of a kernel sums over the rows.
  rows = (((0, 1), (0, 1)), ((), ()))
  gradient, summed = dot_spec((BATCH, (), ()), (BATCH, (), ('tensor',)), rows)
  assert (gradient, summed) == (((), ('tensor',)), BATCH)


def test_an_axis_splits_one_dimension():
  assert merged([(BATCH, ()), ((), ('fsdp',))], 2) == (BATCH, ())
