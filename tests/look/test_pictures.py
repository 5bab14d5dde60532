"""PNG and SVG files of a look."""

import dataclasses
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.look import Look
from t2x.look.pictures import draw_panels, write_pictures


def test_one_file_per_layer_and_one_for_the_alignment(look, tmp_path):
  paths = write_pictures(look, tmp_path / 'new')
  names = ['alignment.png', 'cross_attention_layer_1.png', 'self_attention_layer_1.png']
  assert [path.name for path in paths] == names
  for path in paths:
    assert len(Image.open(path).convert('RGB').getcolors(1 << 20)) > 2, path


def test_svg_files_have_the_names_and_labels_as_vectors(look, tmp_path):
  drawn = dataclasses.replace(look, drawings={'Boxes': np.zeros((4, 4, 3), np.uint8)})
  paths = write_pictures(drawn, tmp_path, 'svg')
  assert [path.name for path in paths] == [
    'boxes.svg', 'alignment.svg', 'cross_attention_layer_1.svg', 'self_attention_layer_1.svg',
  ]  # fmt: skip
  for path in paths:
    root = ElementTree.parse(path).getroot()
    kinds = {element.tag.rpartition('}')[2] for element in root.iter()}
    assert {'image', 'path'} <= kinds, path


def test_a_map_has_a_scale_from_zero_or_of_both_signs(tmp_path, monkeypatch):
  from matplotlib.figure import Figure

  saved, save = [], Figure.savefig

  def savefig(self, path, **settings):
    saved.append(self)
    save(self, path, **settings)

  monkeypatch.setattr(Figure, 'savefig', savefig)
  for values, limits in (([[0.0, 0.5]], (0.0, 0.5)), ([[-2.0, 1.0]], (-2.0, 2.0))):
    draw_panels([('map', np.asarray(values))], tmp_path / 'map.png')
    panel, scale = saved.pop().axes
    assert panel.images[0].get_clim() == limits
    assert scale.get_xlim() == limits


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
  with pytest.raises(UserError, match=r'file cannot be written: .*file is not a folder'):
    write_pictures(look, tmp_path / 'file')
