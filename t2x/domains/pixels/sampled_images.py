"""Evaluators of models of pixels: completed images."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from t2x.base.ranges import Count, Natural, Size
from t2x.data.sources.subset import spread
from t2x.data.tokenizers.palette import PaletteTokenizer
from t2x.decode import Strategy
from t2x.domains.pixels.hidden_pixels import HiddenPixels
from t2x.domains.pixels.tasks import PixelLM
from t2x.domains.pixels.text_to_image import TextToImage
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluated, Evaluation, TaskEvaluator
from t2x.tasks.pictures import enlarged, grid
from t2x.tasks.prediction import in_batches

__all__ = ['CompletedImages']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledImages(TaskEvaluator):
  """Base class of evaluators that sample images.

  Attributes:
    num_examples: number of images, sampled evenly from the split.
    strategy: decoding strategy; None: the task's.
    batch_size: images that are sampled at a time.
    seed: random seed; the same in every evaluation.
  """

  num_examples: Count | None = 8
  strategy: Strategy | None = None
  batch_size: Size = 64
  seed: Natural = 0

  def _indices(self, rows: Sequence[Any]) -> list[int]:
    """Returns the indices of the examples."""
    return list(spread(min(self.num_examples or len(rows), len(rows)), len(rows)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletedImages(SampledImages):
  """Draws one row per image of the split: the image, its visible part, and samples of the `hidden` part. A model of
  texts and images reads the text.

  Metric: `accuracy`, the share of the pixels with several allowed colours whose sampled colour equals the image; no
  metric if everything is hidden.

  Attributes:
    hidden: the part that the model completes.
    num_samples: samples of each image.
  """

  hidden: HiddenPixels
  num_samples: Size = 4

  fixed = frozenset({'num_examples'})
  kinds: ClassVar[tuple[type[Task], ...]] = (PixelLM, TextToImage)

  def check(self, task, model):
    """Also raises UserError if the model cannot sample an image."""
    super().check(task, model)
    prompt = 1 + task.spec(1)['tokens'].shape[1] - task.num_pixels
    task.check_sampled(model, prompt, self.strategy)

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Returns the picture and the metric."""
    task, model = evaluated.task, evaluated.model()
    palette, (height, width, _) = task.palette, task.image_shape
    rows, transform = evaluated.rows(self._split(task)), task.transform(train=False)
    examples = [transform(rows[i], np.random.default_rng(0)) for i in self._indices(rows)]
    tokens = np.stack([example['tokens'] for example in examples])
    # The start token, and the text if there is one.
    prompts = np.insert(tokens[:, : -task.num_pixels], 0, palette.bos_id, axis=1)
    images = tokens[:, -task.num_pixels :].reshape(-1, height, width)
    colours = np.stack([self.hidden.allowed(palette, image) for image in images])
    colours = colours.reshape(len(images), task.num_pixels, -1)
    allowed = np.pad(colours, ((0, 0), (0, 0), (palette.first, 0)))

    def sampled(numbers):
      own = [i // self.num_samples for i in numbers]
      return task.sampled(model, prompts[own], allowed[own], self.strategy, self.seed, numbers)

    count = len(images) * self.num_samples
    size = min(self.batch_size, count)
    outputs = in_batches(range(count), sampled, size, watched=evaluated.watched)
    samples = np.stack([ids for _, ids in outputs]).reshape(len(images), -1, task.num_pixels)
    return Evaluation(
      self._metrics(images, colours, samples),
      images={'images': self._picture(palette, images, samples)},
    )

  def _metrics(
    self, images: np.ndarray, colours: np.ndarray, samples: np.ndarray
  ) -> dict[str, float]:
    """Returns the share of right pixels, given the ids of the images and of their samples."""
    right, hidden = 0.0, 0
    for image, own, ids in zip(images, colours, samples, strict=True):
      places = own.sum(axis=-1) > 1
      right += (ids == image.ravel())[:, places].mean(axis=0).sum()
      hidden += places.sum()
    return {} if colours.all() or not hidden else {'accuracy': float(right / hidden)}

  def _picture(
    self, palette: PaletteTokenizer, images: np.ndarray, samples: np.ndarray
  ) -> np.ndarray:
    cells = []
    for image, ids in zip(images, samples, strict=True):
      shape = image.shape
      cells += [palette.image(image.ravel(), *shape), self.hidden.visible(palette, image)]
      cells += list(palette.image(ids, *shape))
    return grid([enlarged(cell) for cell in cells], 2 + self.num_samples)
