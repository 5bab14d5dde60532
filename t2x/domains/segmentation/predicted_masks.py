"""Evaluator that draws the masks of a segmentation."""

import dataclasses
from typing import ClassVar

import numpy as np

from t2x.base.ranges import Count
from t2x.data.sources.subset import spread
from t2x.domains.segmentation.task import SemanticSegmentation
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluated, Evaluation, TaskEvaluator
from t2x.tasks.pictures import enlarged, grid, pixels_of

__all__ = ['PredictedMasks']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictedMasks(TaskEvaluator):
  """Draws images beside their masks and the predicted masks, with a colour for each class; computes no metrics.

  Pixels without a class, or with no prediction, are white. Colours are those of PASCAL VOC, whose class 0 is black.

  Attributes:
    num_examples: number of images, sampled evenly from the split.
  """

  num_examples: Count | None = 8

  fixed = frozenset({'num_examples'})
  kinds: ClassVar[tuple[type[Task], ...]] = (SemanticSegmentation,)

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Returns the picture: two examples per row, each with the image, its mask and the predicted mask."""
    task = evaluated.task
    split, transform = self._split(task), task.transform(train=False)
    rows = evaluated.rows(split)
    chosen = [rows[i] for i in spread(min(self.num_examples or len(rows), len(rows)), len(rows))]
    colours, panels = voc_colours(max(task.num_classes, task.ignored + 1)), []
    colours[task.ignored] = 255
    for row, predicted in evaluated.predict(chosen, task.predictions):
      prepared = transform(row, np.random.default_rng(0))
      image = pixels_of(prepared['image'], task.mean, task.std)
      rgb = image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1)
      drawn = np.where(predicted < 0, task.ignored, predicted)
      panels += [enlarged(one) for one in (rgb, colours[prepared['mask']], colours[drawn])]
    return Evaluation({}, (), {'masks': grid(panels, 6 if len(chosen) > 1 else 3)})


def voc_colours(number: int) -> np.ndarray:
  """Returns the colours of the classes of PASCAL VOC, uint8 [number, 3]: bits of a class become the highest bits of
  red, green and blue in turn."""
  classes, colours = np.arange(number), np.zeros((number, 3), np.int64)
  for bit in range(8):
    for channel in range(3):
      colours[:, channel] |= (classes >> (3 * bit + channel) & 1) << (7 - bit)
  return colours.astype(np.uint8)
