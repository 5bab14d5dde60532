"""PNG files of a look."""

import sys

import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.look import Look
from t2x.look.pictures import write_pictures


def test_one_file_per_layer_and_one_for_the_alignment(look, tmp_path):
  paths = write_pictures(look, tmp_path / 'new')
  names = ['alignment.png', 'cross_attention_layer_1.png', 'self_attention_layer_1.png']
  assert [path.name for path in paths] == names
  for path in paths:
    assert len(Image.open(path).convert('RGB').getcolors(1 << 20)) > 2, path


def test_the_weights_of_the_class_token_are_drawn_over_the_picture(look, tmp_path):
  path = write_pictures(look, tmp_path)[-1]
  picture = Image.open(path).convert('RGB')
  width, height = picture.size
  corners = [
    picture.getpixel((round(x * width), round(y * height))) for y in (0.4, 0.9) for x in (0.1, 0.9)
  ]
  # Red above blue only where the class token looks: the others are grey.
  assert [red - blue > 50 for red, _, blue in corners] == [True, False, False, False]


def test_the_load_of_experts_is_one_file_with_its_legend(loads, tmp_path):
  (path,) = write_pictures(Look(loads=loads), tmp_path)
  assert path.name == 'experts.png'
  picture = np.asarray(Image.open(path).convert('RGB')).astype(int)
  # Both layers and both legends have the colour of the largest share.
  darkest = (picture == picture.reshape(-1, 3)[_blue(picture).argmax()]).all(axis=-1)
  columns = np.flatnonzero(darkest.any(axis=0))
  assert columns.min() < picture.shape[1] / 2 < columns.max()


def _blue(picture):
  return (picture[..., 2] - picture[..., 0]).reshape(-1)


def test_without_matplotlib_the_error_names_the_extra(look, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
  with pytest.raises(UserError, match=r"pip install 't2x\[report\]'"):
    write_pictures(look, tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(look, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='the picture cannot be written'):
    write_pictures(look, tmp_path / 'file')
