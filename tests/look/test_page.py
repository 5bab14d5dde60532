"""Data of a page."""

import base64
import dataclasses
import zlib

import numpy as np

from t2x.look.attention import Grid
from t2x.look.page import page, page_data
from t2x.look.parameters import PositionVectors


def unpacked(maps):
  codes = np.frombuffer(zlib.decompress(base64.b64decode(maps['numbers'])), '<u2')
  low, high = (np.array(maps[name])[:, None, None] for name in ('low', 'high'))
  return low + codes.reshape(maps['shape']) / 65535 * (high - low)


def test_the_mean_over_heads_is_stored_before_the_heads(look):
  one = look.attention[0]
  (maps,) = page_data(look, {})['attention'][0]['layers']
  expected = np.concatenate([one.layers[0].mean(0)[None], one.layers[0]])
  np.testing.assert_allclose(unpacked(maps), expected, atol=1e-5)


def test_tokens_cannot_end_the_script(look, loads):
  assert page(dataclasses.replace(look, loads=loads), 'x', {}).count('</script>') == 2


def test_positions_of_a_grid_are_a_map_of_each_patch_at_its_place():
  grid = Grid(rows=2, columns=3, num_extra=1)
  similarity = np.arange(49.0).reshape(7, 7)
  vectors = PositionVectors('grid', np.zeros((7, 4)), similarity, True, grid)
  picture = vectors.similarity_map
  assert picture.shape == (4, 9)
  for patch in range(6):
    row, column = divmod(patch, 3)
    small = picture[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
    np.testing.assert_array_equal(small.reshape(-1), similarity[1 + patch, 1:])
