"""The picture of a pattern: a PNG that others can read, whose cells are the mask."""

import numpy as np
import pytest

from t2x.errors import UserError
from t2x.layers.patterns import Blocks, Causal, Global, Marked, Prefix, Window
from t2x.layers.picture import _SEEN, _UNSEEN, draw, paint
from t2x.layers.tiles import PARTIAL, SKIP


@pytest.mark.parametrize(
  'pattern',
  [Causal() & Window(9), Window(4, dilation=2) | Global(3), ~Blocks(8) & Causal()],
  ids=str,
)
def test_every_cell_has_the_colour_of_the_mask(pattern):
  image = paint(pattern, 32, 24, 8)
  centres = image[64 + 8 : 64 + 32 * 16 : 16, 48 + 8 : 48 + 24 * 16 : 16]
  assert centres.shape == (32, 24, 3)
  seen = (centres[:, :, None] == np.array(list(_SEEN.values()))).all(-1).any(-1)
  np.testing.assert_array_equal(seen, pattern.mask(32, 24))


def test_the_file_is_a_png_of_the_painted_image(tmp_path):
  image = pytest.importorskip('matplotlib.image')
  draw(
    Causal() | Prefix(),
    tmp_path / 'p.png',
    length=20,
    k_length=30,
    block=7,
    marks={'prefix': range(5)},
  )
  read = image.imread(tmp_path / 'p.png')
  painted = paint(Causal() | Prefix(), 20, 30, 7, {'prefix': range(5)})
  np.testing.assert_array_equal(np.rint(read[..., :3] * 255), painted)


def test_marks_are_drawn_and_their_tiles_are_not_skipped():
  pattern = Window(2) | Marked('global')
  image = paint(pattern, 32, 32, 8, {'global': [20]})
  centres = image[64 + 8 : 64 + 32 * 16 : 16, 48 + 8 : 48 + 32 * 16 : 16]
  seen = (centres[:, :, None] == np.array(list(_SEEN.values()))).all(-1).any(-1)
  window = Window(2).mask(32, 32)
  window[20] = window[:, 20] = True
  np.testing.assert_array_equal(seen, window)
  np.testing.assert_array_equal(centres[0, 31], _UNSEEN[SKIP])
  np.testing.assert_array_equal(centres[0, 17], _UNSEEN[PARTIAL])


def test_a_mark_that_is_not_given_has_an_example():
  example = {'global': (0, 10, 11)}
  np.testing.assert_array_equal(
    paint(Marked('global'), 32, 32, 8), paint(Marked('global'), 32, 32, 8, example)
  )


def test_a_long_row_is_drawn(tmp_path):
  draw(Causal() & Window(256), tmp_path / 'p.png', length=1024, block=128)
  assert (tmp_path / 'p.png').stat().st_size < 100_000


def test_what_cannot_be_drawn_is_told_in_a_line(tmp_path):
  with pytest.raises(UserError, match='cannot be written: No such file'):
    draw(Causal(), tmp_path / 'no' / 'p.png')
  with pytest.raises(UserError, match='1 to 2048'):
    draw(Causal(), tmp_path / 'p.png', length=10_000)
