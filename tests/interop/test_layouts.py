"""Layouts: round trips return the same arrays as views, and projections are equal to those of flat matrices."""

import numpy as np
import pytest

from t2x.interop.layouts import (
  CLASS_TOKEN,
  CONV1D,
  GROUPED,
  LINEAR,
  PATCHES,
  ROW,
  SAME,
  VECTOR,
)

# Layout, shapes of the parameters in a tensor, shape of the tensor.
CASES = {
  'same': (SAME, [(3, 4)], (3, 4)),
  'vectors of heads': (VECTOR, [(2, 3), (2, 3), (1, 3)], (15,)),
  'row': (ROW, [(5, 4)], (1, 5, 4)),
  'class token': (CLASS_TOKEN, [(4,)], (1, 1, 4)),
  'linear': (LINEAR, [(4, 6)], (6, 4)),
  'linear to heads': (LINEAR, [(4, 2, 3)], (6, 4)),
  'linear to heads of two sizes': (LINEAR, [(4, 4, 3), (4, 2, 3), (4, 2, 3)], (24, 4)),
  'linear from heads': (LINEAR.from_heads, [(2, 3, 4)], (4, 6)),
  'conv1d': (CONV1D, [(4, 6)], (4, 6)),
  'conv1d to heads, fused': (CONV1D, [(4, 2, 3)] * 3, (4, 18)),
  'conv1d from heads': (CONV1D.from_heads, [(2, 3, 4)], (6, 4)),
  'a head of queries, keys and values': (GROUPED, [(4, 2, 3)] * 3, (18, 4)),
  'biases of a head of queries, keys and values': (GROUPED, [(2, 3)] * 3, (18,)),
  'patches': (PATCHES, [(2, 2, 3, 5)], (5, 3, 2, 2)),
}


def random(shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize('case', CASES)
def test_there_and_back_is_the_same(case):
  layout, shapes, expected = CASES[case]
  parameters = [random(shape, seed) for seed, shape in enumerate(shapes)]
  tensor = layout.join(parameters)
  assert tensor.shape == layout.joined_shape(shapes) == expected
  for number, one in enumerate(parameters):
    part = layout.extract(tensor, shapes, number)
    np.testing.assert_array_equal(part, one)
    assert np.shares_memory(part, tensor)


def test_interleaved_heads_lie_as_gpt_neox_reads_them():
  q, k, v = (random((4, 2, 3), seed) for seed in range(3))
  x = random((5, 4), 3)
  fused = (x @ GROUPED.join([q, k, v]).T).reshape(5, 2, 9)
  for number, kernel in enumerate((q, k, v)):
    np.testing.assert_allclose(
      fused[..., 3 * number : 3 * number + 3], np.einsum('bd,dhk->bhk', x, kernel)
    )


def test_grouped_heads_lie_as_falcon_reads_them():
  q, k, v = random((4, 6, 3)), random((4, 2, 3), 1), random((4, 2, 3), 2)
  x, shapes = random((5, 4), 3), [(4, 6, 3), (4, 2, 3), (4, 2, 3)]
  whole = GROUPED.join([q, k, v])
  fused = (x @ whole.T).reshape(5, 2, 5, 3)
  queries = np.einsum('bd,dhk->bhk', x, q).reshape(5, 2, 3, 3)
  np.testing.assert_allclose(fused[:, :, :-2], queries)
  np.testing.assert_allclose(fused[:, :, -2], np.einsum('bd,dhk->bhk', x, k))
  np.testing.assert_allclose(fused[:, :, -1], np.einsum('bd,dhk->bhk', x, v))
  for number, one in enumerate((q, k, v)):
    np.testing.assert_array_equal(GROUPED.extract(whole, shapes, number), one)


def test_projections_to_and_from_heads_compute_what_a_flat_matrix_does():
  x, kernel = random((5, 4)), random((4, 2, 3), 1)
  np.testing.assert_allclose(
    np.einsum('bd,dhk->bhk', x, kernel).reshape(5, 6), x @ LINEAR.to_tensor(kernel).T
  )
  np.testing.assert_allclose(
    np.einsum('bd,dhk->bhk', x, kernel).reshape(5, 6), x @ CONV1D.to_tensor(kernel)
  )
  y, out = random((5, 2, 3)), random((2, 3, 4), 1)
  flat = y.reshape(5, 6)
  np.testing.assert_allclose(
    np.einsum('bhk,hkd->bd', y, out), flat @ LINEAR.from_heads.to_tensor(out).T
  )
  np.testing.assert_allclose(
    np.einsum('bhk,hkd->bd', y, out), flat @ CONV1D.from_heads.to_tensor(out)
  )
