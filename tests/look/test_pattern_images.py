"""The picture of a pattern: a PNG with labelled axes, whose cells are the mask and the schedule."""

import sys

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb

from t2x.base.errors import UserError
from t2x.layers.patterns.algebra import Causal, Global, Marked, Prefix, Window
from t2x.layers.patterns.sparse import Blocks
from t2x.layers.patterns.tiles import PARTIAL, SKIP
from t2x.look.pattern_images import EDGE, KINDS, cells, draw


def is_seen(kinds):
  return np.array([seen for seen, *_ in KINDS])[kinds]


def verdict_of(kind):
  return KINDS[kind][1]


@pytest.mark.parametrize(
  'pattern',
  [Causal() & Window(9), Window(4, dilation=2) | Global(3), ~Blocks(8) & Causal()],
  ids=str,
)
def test_every_cell_matches_the_mask(pattern):
  kinds = cells(pattern, 32, 24, 8)
  assert kinds.shape == (32, 24) and (kinds >= 0).all()
  np.testing.assert_array_equal(is_seen(kinds), pattern.mask(32, 24))


def test_a_schedule_that_skips_visible_pairs_shows():
  class Wrong(Causal):
    def tiles(self, q, k):
      return super().tiles(q, k)._replace(empty=np.array(True))

  kinds = cells(Wrong(), 8, 8, 4)
  np.testing.assert_array_equal(kinds == -1, Causal().mask(8, 8))


def shares(path):
  """Part of the picture's pixels that have each colour."""
  pixels = image.imread(path)[..., :3]
  colours = [to_rgb(colour) for *_, colour in KINDS] + [to_rgb(EDGE)]
  return [(abs(pixels - colour).max(axis=-1) < 0.01).mean() for colour in colours]


def test_the_file_is_a_png_with_the_cells_in_their_colours(tmp_path):
  pattern, marks = Causal() | Prefix(), {'prefix': range(5)}
  draw(pattern, tmp_path / 'p', length=20, k_length=30, block=7, marks=marks)
  assert (tmp_path / 'p').read_bytes().startswith(b'\x89PNG')
  kinds = cells(pattern, 20, 30, 7, marks)
  drawn = np.array(shares(tmp_path / 'p'))
  assert (drawn > 0).all()
  parts = np.bincount(kinds.ravel(), minlength=len(KINDS)) / kinds.size
  np.testing.assert_allclose(drawn[:-1] / drawn[:-1].sum(), parts, atol=0.05)


def test_the_picture_has_a_title_and_names_its_axes(tmp_path, monkeypatch):
  from matplotlib.figure import Figure

  figures, save = [], Figure.savefig

  def savefig(figure, path, **settings):
    figures.append(figure)
    save(figure, path, **settings)

  monkeypatch.setattr(Figure, 'savefig', savefig)
  draw(Causal() & Window(9), tmp_path / 'p.png', length=20, k_length=30, block=8)
  (axes,) = figures[0].axes
  assert (axes.get_xlabel(), axes.get_ylabel()) == ('key position', 'query position')
  assert axes.get_title() == repr(Causal() & Window(9))
  for axis, edges in ((axes.xaxis, [0, 8, 16, 24]), (axes.yaxis, [0, 8, 16])):
    assert all(place == round(place) for place in axis.get_majorticklocs())
    assert axis.get_minorticklocs().tolist() == [edge - 0.5 for edge in edges]
  labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
  assert labels == [*(label for *_, label, _ in KINDS), 'edge of a tile']


def test_marks_are_drawn_and_their_tiles_are_not_skipped():
  kinds = cells(Window(2) | Marked('global'), 32, 32, 8, {'global': [20]})
  window = Window(2).mask(32, 32)
  window[20] = window[:, 20] = True
  np.testing.assert_array_equal(is_seen(kinds), window)
  assert verdict_of(kinds[0, 31]) == SKIP
  assert verdict_of(kinds[0, 17]) == PARTIAL


def test_a_mark_that_is_not_given_has_an_example():
  example = {'global': (0, 10, 11)}
  np.testing.assert_array_equal(
    cells(Marked('global'), 32, 32, 8), cells(Marked('global'), 32, 32, 8, example)
  )


def test_a_long_row_is_drawn_with_a_pixel_for_each_cell(tmp_path):
  draw(Causal() & Window(256), tmp_path / 'p.png', length=1024, block=128)
  assert (tmp_path / 'p.png').stat().st_size < 100_000
  assert min(image.imread(tmp_path / 'p.png').shape[:2]) > 1024


def test_a_pattern_that_cannot_be_drawn_is_a_one_line_error(tmp_path, monkeypatch):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match=r'cannot be written: .*file is not a folder'):
    draw(Causal(), tmp_path / 'file' / 'p.png')
  with pytest.raises(UserError, match='1 to 2048'):
    draw(Causal(), tmp_path / 'p.png', length=10_000)
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  with pytest.raises(UserError, match=r"needs the package matplotlib: pip install 't2x\[report\]'"):
    draw(Causal(), tmp_path / 'p.png')
