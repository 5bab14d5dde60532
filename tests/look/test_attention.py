"""Statistics of heads on attention whose values are known."""

import numpy as np

from t2x.look.attention import Grid, grid_statistics, text_statistics


def test_a_head_of_previous_tokens_and_a_uniform_head():
  previous = np.eye(8, k=-1, dtype=np.float32)
  previous[0, 0] = 1
  heads = np.stack([previous, np.full((8, 8), 1 / 8, np.float32)])
  statistics = text_statistics(heads, np.arange(8) == 7)
  np.testing.assert_allclose(statistics.entropy, [0, 3], atol=1e-6)
  np.testing.assert_allclose(statistics.distance, [7 / 8, 63 / 24], atol=1e-6)
  np.testing.assert_allclose(statistics.previous, [1, 1 / 8], atol=1e-6)
  np.testing.assert_allclose(statistics.first, [1 / 7, 1 / 8], atol=1e-6)
  np.testing.assert_allclose(statistics.separator, [0, 1 / 8], atol=1e-6)


def test_distances_between_patches_ignore_the_class_token():
  attention = np.zeros((1, 5, 5), np.float32)
  attention[0, :, 0], attention[0, :, 4] = 0.5, 0.5
  statistics = grid_statistics(attention, Grid(2, 2, 1))
  np.testing.assert_allclose(statistics.distance, [(np.sqrt(2) + 1 + 1 + 0) / 4], atol=1e-6)
  np.testing.assert_allclose(statistics.first, [0.5], atol=1e-6)
