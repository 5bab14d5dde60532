"""Drawings of boxes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from detectors import CLASSES, task

from t2x.base.names import domain_modules
from t2x.domains.detection.look import draw_boxes, look_at_boxes
from t2x.look import Look
from t2x.look.page import page_data
from t2x.look.pictures import write_pictures
from t2x.models import Output

PIXELS = np.full((96, 192, 1), 40, np.uint8)
ORANGE, GREEN = (255, 140, 0), (0, 200, 90)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
  """Predicts the right half as class 1, and an improbable box."""

  bias: jax.Array = dataclasses.field(default_factory=lambda: jnp.zeros(()))

  def __call__(self, images):
    classes = jnp.asarray([[[[0, 5.0, 0], [0.1, 0, 0]]]]) + self.bias
    boxes = jnp.asarray([[[[0.75, 0.5, 0.5, 1.0], [0.1, 0.5, 0.1, 0.1]]]])
    return Output(classes[:, -1], heads={'classes': classes, 'boxes': boxes})


def edges(picture, colour):
  """Left, top, right and bottom of the pixels of a colour whose neighbours below and to the side have it."""
  rows, columns = np.nonzero((picture == colour).all(axis=-1))
  return columns.min(), rows.min(), columns.max(), rows.max()


def test_a_box_is_where_it_says_in_an_enlarged_picture():
  picture = draw_boxes(PIXELS, [(np.array([48.0, 24.0, 96.0, 48.0]), '', ORANGE)])
  assert picture.shape == (384, 768, 3) and (picture[0, 0] == 40).all()
  np.testing.assert_allclose(edges(picture, ORANGE), (192, 96, 576, 288), atol=3)


def test_probable_predictions_and_objects_are_drawn(tmp_path):
  objects = [(np.array([0.25, 0.5, 0.4, 0.5], np.float32), 'cat')]
  picture = look_at_boxes(Fixed(), PIXELS / np.float32(255), PIXELS, objects)
  left, top, right, _ = edges(picture, ORANGE)
  assert abs(left - 384) < 3 and top < 3 and right == 767
  assert abs(edges(picture, GREEN)[0] - (0.05 * 768)) < 4
  look = Look(drawings={'Boxes of it': picture})
  [path] = write_pictures(look, tmp_path)
  assert path.name == 'boxes_of_it.png'
  [[title, url]] = page_data(look, {})['drawings']
  assert title == 'Boxes of it' and url.startswith('data:image/png;base64,')


def test_the_lab_finds_the_drawings_of_a_task_by_file_name():
  [module] = domain_modules('look')
  own, image = task(96, 192), PIXELS / np.float32(255)
  assert isinstance(own, module.TASK)
  boxes = np.array([[0.25, 0.5, 0.4, 0.5], [0, 0, 0, 0]], np.float32)
  # The second box is padding.
  example = {'image': image, 'boxes': boxes, 'label': np.array([2, CLASSES])}
  drawn = module.drawings(Fixed(), own, example, PIXELS, 'class {}'.format)
  expected = look_at_boxes(Fixed(), image, PIXELS, [(boxes[0], 'class 2')], name='class {}'.format)
  np.testing.assert_array_equal(drawn['Boxes'], expected)
