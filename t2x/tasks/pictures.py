"""Evaluators that draw pictures: attention maps and classified images."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Text
from t2x.data.sources.subset import spread
from t2x.models import Model, ModelSpec
from t2x.models.ranks import choice
from t2x.tasks.base import Task
from t2x.tasks.classification import Classification
from t2x.tasks.evaluators import Evaluated, Evaluation, Evaluator, TaskEvaluator
from t2x.tasks.inspection import Inspection
from t2x.tasks.text import TextTask

__all__ = ['AttentionMaps', 'ClassifiedImages']

# Minimum width in pixels of one attention map or image; smaller ones are enlarged.
_MIN_PIXELS = 96
_GAP = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMaps(Evaluator):
  """Draws the attention probabilities of each layer, one picture per layer; computes no metrics.

  A picture has a row of maps per example, one map per head: queries from top to bottom, keys from left to right,
  the largest probability of a map white.

  Attributes:
    texts: texts to draw, for models of texts and, as sources, for encoder-decoders; other inputs, such as images, are
      read from the split.
    targets: target texts of an encoder-decoder.
    num_examples: number of images, sampled evenly from the split.
  """

  texts: Sequence[Text] = ()
  targets: Sequence[Text] = ()
  num_examples: Count | None = 1

  @property
  def fixed(self):
    """The number of examples, and with texts the split."""
    return frozenset({'num_examples', 'split'} if self.texts else {'num_examples'})

  def check(self, task: Task, model: Model) -> None:
    """Raises UserError if the texts do not fit the model, or would have no effect."""
    spec = model.spec
    if spec.first.kind != 'ids':
      if self.texts:
        raise UserError(
          f'AttentionMaps.texts has no effect on a model of {spec.first.kind}: remove it'
        )
      self._check_targets(spec, self.num_examples or 0)
      return
    if not self.texts or not isinstance(task, TextTask):
      raise UserError('AttentionMaps.texts is not set: give one or several texts')
    for name, default in (('split', None), ('num_examples', 1)):
      if getattr(self, name) != default:
        raise UserError(f'AttentionMaps.{name} has no effect on a model of texts: remove it')
    self._check_targets(spec, len(self.texts))

  def _check_targets(self, spec: ModelSpec, num_inputs: int) -> None:
    if len(self.targets) != (num_inputs if spec.is_encoder_decoder else 0):
      raise UserError(
        'AttentionMaps.targets must have one text for each of AttentionMaps.texts, or for each of its num_examples '
        'images, if the model is an encoder-decoder, and must be empty otherwise'
      )

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Returns a picture of each layer."""
    model, task = evaluated.model(), evaluated.task
    images = {}
    for inputs in evaluated.watched([self._inputs(evaluated)]):
      tokenizer = task.fitted if isinstance(task, TextTask) else None
      inspection = Inspection(model, tokenizer, task.token_marks)
      targets = list(self.targets) or None
      kinds = {'attention': ('mixer', 'decoder')}
      if targets:
        kinds |= {'encoder': ('mixer', 'encoder'), 'cross': ('cross', 'decoder')}
      for kind, (sublayer, side) in kinds.items():
        layers = inspection.layers(f'{sublayer}.probabilities', inputs, targets, side)
        for number, layer in enumerate(layers):
          images[f'{kind}/layer_{number:02}'] = _maps(layer)
    return Evaluation({}, (), images)

  def _inputs(self, evaluated: Evaluated) -> Any:
    if self.texts:
      return list(self.texts)
    rows = _rows(evaluated, self._split(evaluated.task), self.num_examples)
    name, *_ = evaluated.task.inputs
    return np.stack([row[name] for row in rows])


@runtime_checkable
class Normalised(Protocol):
  """Interface of tasks over images or videos that are normalised.

  Attributes:
    mean: subtracted from the pixels, a number or a number per channel.
    std: divisor of the centred pixels.
  """

  mean: ArrayLike
  std: ArrayLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifiedImages(TaskEvaluator):
  """Draws images, or the frames of videos side by side, with a green border if the predicted class is right, else
  with a red one.

  The samples have the label and the prediction of each image, -1 if several classes are the likeliest or a logit is
  NaN. Computes no metrics.

  Attributes:
    num_examples: number of images or videos, sampled evenly from the split.
  """

  num_examples: Count | None = 16

  fixed = frozenset({'num_examples'})
  kinds: ClassVar[tuple[type[Task], ...]] = (Classification,)
  names: ClassVar[str] = '@ImageClassification and @VideoClassification'

  def fits(self, task):
    """Returns whether a task classifies normalised images or videos."""
    is_visual = {*task.inputs.values()} <= {'image', 'video'}
    return super().fits(task) and is_visual and isinstance(task, Normalised)

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Returns the picture, and a sample for each image in its order."""
    task: Any = evaluated.task
    [name] = task.inputs
    for rows in evaluated.watched([_rows(evaluated, self._split(task), self.num_examples)]):
      images = np.stack([row[name] for row in rows])
      labels = [int(row['label']) for row in rows]
      logits, _ = Inspection(evaluated.model(), None).outputs(images)
      predictions = [int(best) for best in choice(logits)]
    pixels: np.ndarray | list[np.ndarray] = pixels_of(images, task.mean, task.std)
    columns = math.ceil(math.sqrt(len(images)))
    if name == 'video':
      pixels, columns = [grid([_coloured(f) for f in frames], len(frames)) for frames in pixels], 1
    framed = [
      _framed(image, (0, 160, 0) if label == prediction else (220, 0, 0))
      for image, label, prediction in zip(pixels, labels, predictions, strict=True)
    ]
    samples = [
      {'image': str(i), 'label': str(label), 'output': str(prediction)}
      for i, (label, prediction) in enumerate(zip(labels, predictions, strict=True))
    ]
    return Evaluation({}, samples, {'images': grid(framed, columns)})


def pixels_of(images: np.ndarray, mean: ArrayLike, std: ArrayLike) -> np.ndarray:
  """Returns images that were normalised by `mean` and `std` as uint8."""
  mean, std = (np.asarray(value, np.float32) for value in (mean, std))
  return np.clip((images * std + mean) * 255, 0, 255).round().astype(np.uint8)


def _rows(evaluated: Evaluated, split: str, count: int | None) -> list[Mapping[str, Any]]:
  """Returns transformed rows, sampled evenly from a split."""
  rows, transform = evaluated.rows(split), evaluated.task.transform(train=False)
  indices = spread(min(count or len(rows), len(rows)), len(rows))
  chosen = [rows[i] for i in indices]
  return chosen if transform is None else [transform(r, np.random.default_rng(0)) for r in chosen]


def _maps(probabilities: np.ndarray) -> np.ndarray:
  """Draws probabilities [batch, heads, queries, keys], each map relative to its maximum."""
  top = probabilities.max(axis=(2, 3), keepdims=True)
  gray = (255 * probabilities / np.where(top > 0, top, 1)).round().astype(np.uint8)
  maps = [enlarged(np.repeat(head[..., None], 3, axis=-1)) for row in gray for head in row]
  return grid(maps, gray.shape[1])


def _framed(image: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
  """Returns an enlarged image [height, width, 1 or 3] in RGB with a frame."""
  image = _coloured(image)
  framed = np.empty((image.shape[0] + 6, image.shape[1] + 6, 3), np.uint8)
  framed[:] = color
  framed[3:-3, 3:-3] = image
  return framed


def _coloured(image: np.ndarray) -> np.ndarray:
  """Returns an enlarged image [height, width, 1 or 3] in RGB."""
  return enlarged(image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1))


def enlarged(image: np.ndarray) -> np.ndarray:
  """Repeats the pixels of a small image."""
  factor = math.ceil(_MIN_PIXELS / image.shape[1])
  return image.repeat(factor, axis=0).repeat(factor, axis=1)


def grid(images: Sequence[np.ndarray], columns: int) -> np.ndarray:
  """Arranges images of one shape in rows, with gaps in between."""
  height, width, _ = images[0].shape
  rows = -(-len(images) // columns)
  shape = rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3
  grid = np.full(shape, 96, np.uint8)
  for i, image in enumerate(images):
    y, x = i // columns * (height + _GAP), i % columns * (width + _GAP)
    grid[y : y + height, x : x + width] = image
  return grid
