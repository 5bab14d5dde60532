"""Average precision of detected boxes, computed by pycocotools (https://github.com/cocodataset/cocoapi)."""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data.sources.subset import spread
from t2x.domains.detection.task import Detection
from t2x.domains.detection.transforms import objects_of
from t2x.models import Output
from t2x.models.ranks import choice
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluation, TaskEvaluator

__all__ = ['AveragePrecision']


class Detected(NamedTuple):
  """The boxes that are predicted for an image.

  Attributes:
    boxes: left, top, width and height in pixels, [queries, 4].
    labels: class of each, [queries]; -1 if several are the likeliest.
    scores: probability of that class, [queries].
  """

  boxes: Any
  labels: Any
  scores: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragePrecision(TaskEvaluator):
  """Computes the average precision of the boxes that a detector predicts, as COCO does, with pycocotools.

  Metrics: ap (mean over overlaps from 0.5 to 0.95), ap50 and ap75, as shares. Groups (`crowd`) are ignored. Each query
  predicts its most probable class of objects; queries with equal probabilities or NaN predict nothing. A class without
  objects in the split is left out.
  """

  packages: ClassVar[tuple[str, ...]] = ('pycocotools',)

  kinds: ClassVar[tuple[type[Task], ...]] = (Detection,)

  def __call__(self, evaluated):
    """Returns the metrics; NaN without objects."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    results = list(evaluated.predict([rows[i] for i in indices], predicted))
    found = [in_pixels(output, np.shape(row['image'])) for row, output in results]
    metrics = average_precision([row for row, _ in results], found, task.num_classes)
    return Evaluation({'examples': float(len(found))} | metrics)


def predicted(model: Callable[..., Output], batch: Mapping[str, Any]) -> Detected:
  """Returns boxes as centre, width and height in shares of the image, their classes and probabilities."""
  heads = model(batch['image']).heads
  probabilities = jax.nn.softmax(heads['classes'][:, -1].astype(jnp.float32), axis=-1)[..., :-1]
  boxes = heads['boxes'][:, -1].astype(jnp.float32)
  return Detected(boxes, choice(probabilities), probabilities.max(axis=-1))


def in_pixels(found: Detected, shape: Sequence[int]) -> Detected:
  """Returns left, top, width and height in pixels of an image of a shape."""
  boxes = np.asarray(found.boxes, np.float64) * np.tile([shape[1], shape[0]], 2)
  boxes[:, :2] -= boxes[:, 2:] / 2
  return found._replace(boxes=boxes)


def average_precision(
  rows: Iterable[Mapping[str, Any]], found: Sequence[Detected], num_classes: int
) -> dict[str, float]:
  """Returns ap, ap50 and ap75.

  Args:
    rows: examples as in `PrepareBoxes`.
    found: predictions for each of them.
    num_classes: number of classes.
  """
  from pycocotools.coco import COCO
  from pycocotools.cocoeval import COCOeval

  objects: list[dict[str, Any]] = []
  predictions: list[dict[str, Any]] = []
  for image, (row, detected) in enumerate(zip(rows, found, strict=True)):
    boxes, labels, crowd = objects_of(row, num_classes)
    for box, label, group in zip(boxes, labels, crowd, strict=True):
      objects.append(_annotation(image, box, label, iscrowd=int(group)))
    for box, label, score in zip(*detected, strict=True):
      # NaN overlaps with everything in pycocotools.
      if label >= 0 and np.isfinite(box).all():
        predictions.append(_annotation(image, box, label, iscrowd=0, score=float(score)))

  def index(annotations):
    # An id of 0 would count as no match.
    numbered = [{**item, 'id': i + 1} for i, item in enumerate(annotations)]
    coco = COCO()
    coco.dataset = {
      'images': [{'id': i} for i in range(len(found))],
      'categories': [{'id': i} for i in range(num_classes)],
      'annotations': numbered,
    }
    coco.createIndex()
    return coco

  with contextlib.redirect_stdout(io.StringIO()):
    evaluation = COCOeval(index(objects), index(predictions), 'bbox')
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
  # -1 stands for no objects.
  return {
    name: float(value) if value >= 0 else float('nan')
    for name, value in zip(('ap', 'ap50', 'ap75'), evaluation.stats, strict=False)
  }


def _annotation(image: int, box: np.ndarray, label: int, **more: Any) -> dict[str, Any]:
  _, _, width, height = sides = [float(side) for side in box]
  ids = {'image_id': image, 'category_id': int(label)}
  return {**ids, 'bbox': sides, 'area': width * height, **more}
