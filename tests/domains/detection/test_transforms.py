"""Boxes move with their image: against torchvision's transforms of bounding boxes."""

import dataclasses

import numpy as np
import pytest
from detectors import CLASSES, QUERIES, rows

from t2x.base.errors import UserError
from t2x.data import RandomResizedCrop
from t2x.data.crops import Box, Crop
from t2x.domains.detection import PrepareBoxes

HEIGHT, WIDTH = 20, 30
PLAIN = PrepareBoxes(height=HEIGHT, width=WIDTH, num_classes=CLASSES, num_boxes=QUERIES)


@dataclasses.dataclass(frozen=True)
class FixedCrop(Crop):
  part: Box = Box(14, 8, 30, 20)

  def box(self, height, width, new_height, new_width, rng):
    return self.part


def prepared(row, transform=PLAIN, seed=0):
  """The image in 0..1, and the boxes and labels without padding."""
  example = transform(row, np.random.default_rng(seed))
  present = example['label'] < CLASSES
  assert not example['boxes'][~present].any() and example['weight'] == 1
  return example['image'] / 2 + 0.5, example['boxes'][present], example['label'][present]


@pytest.mark.parametrize('flip', [False, True])
def test_crops_and_flips_equal_torchvision(flip):
  """Boxes are cut, and those outside are left out; in shares of the image, so that the size does not matter."""
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  pytest.importorskip('torchvision', reason="the extra 'references' is not installed")
  from torchvision import tv_tensors
  from torchvision.transforms.v2 import functional

  part = FixedCrop().part
  transform = dataclasses.replace(PLAIN, crop=FixedCrop(), flip=flip, height=10, width=16)
  left_out = 0
  for seed, row in enumerate(rows(HEIGHT, WIDTH, counts=[QUERIES] * 6)):
    boxes = tv_tensors.BoundingBoxes(
      torch.tensor(row['boxes']), format='XYWH', canvas_size=(HEIGHT, WIDTH)
    )
    height, width = int(part.bottom - part.top), int(part.right - part.left)
    boxes = functional.crop(boxes, int(part.top), int(part.left), height, width)
    mirrored = flip and np.random.default_rng(seed).random() < 0.5
    boxes = functional.horizontal_flip(boxes) if mirrored else boxes
    wanted = functional.convert_bounding_box_format(boxes, new_format='CXCYWH').numpy()
    inside = (wanted[:, 2:] > 0).all(axis=1)
    left_out += (~inside).sum()
    _, found, labels = prepared(row, transform, seed)
    np.testing.assert_allclose(found, wanted[inside] / np.tile([width, height], 2), atol=1e-6)
    np.testing.assert_array_equal(labels, row['labels'][inside])
  assert left_out


def test_the_pixels_of_a_box_move_with_it():
  """A bright rectangle is where its box is, after a crop, resizing and a flip."""
  image = np.zeros((40, 60, 1), np.uint8)
  image[10:20, 30:50] = 255
  row = {'image': image, 'boxes': [[30, 10, 20, 10]], 'labels': [2]}
  transform = PrepareBoxes(
    height=80,
    width=120,
    num_classes=CLASSES,
    num_boxes=2,
    crop=RandomResizedCrop(area=(0.6, 1.0)),
    flip=True,
  )
  for seed in range(8):
    pixels, [[x, y, w, h]], _ = prepared(row, transform, seed)
    rows, columns = (np.flatnonzero((pixels > 0.5).any(axis=axis)) for axis in ((1, 2), (0, 2)))
    found = columns[0], columns[-1] + 1, rows[0], rows[-1] + 1
    wanted = (x - w / 2) * 120, (x + w / 2) * 120, (y - h / 2) * 80, (y + h / 2) * 80
    np.testing.assert_allclose(found, wanted, atol=1.01)


def test_groups_are_left_out_and_mistakes_are_refused():
  [row] = rows(HEIGHT, WIDTH, counts=[3])
  crowd = [False, True, False]
  assert prepared({**row, 'crowd': crowd})[2].tolist() == row['labels'][[0, 2]].tolist()
  with pytest.raises(UserError, match=r'3 objects, but Detection.num_queries = 2'):
    prepared(row, dataclasses.replace(PLAIN, num_boxes=2))
  with pytest.raises(UserError, match='has the label 5: labels must be integers from 0 to 4'):
    prepared({**row, 'labels': [0, 5, 1]})
  with pytest.raises(UserError, match='3 boxes, 2 labels and 2 values of crowd'):
    prepared({**row, 'labels': [0, 1]})
