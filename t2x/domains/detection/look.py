"""The boxes that a detector predicts, drawn over the image: `t2x look` of a `Detection` task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from t2x.domains.detection.average_precision import Detected, in_pixels, predicted
from t2x.domains.detection.task import Detection
from t2x.parallel import runs_model
from t2x.tasks.prediction import on_devices

TASK = Detection

# Minimum side of a picture in pixels; smaller images are enlarged.
_MIN_PIXELS = 384
_PREDICTED, _OBJECT = (255, 140, 0), (0, 200, 90)


def drawings(
  model: object,
  task: Detection,
  example: Mapping[str, Any],
  pixels: UInt8[np.ndarray, 'height width channels'],
  name: Callable[[int], str],
) -> dict[str, UInt8[np.ndarray, 'rows columns 3']]:
  """Returns the drawings of a prepared example by title.

  Args:
    model: the detector.
    task: its task.
    example: the prepared image with its boxes and labels.
    pixels: the image to show.
    name: returns the name of a class.
  """
  present = [i for i, number in enumerate(example['label']) if number < task.num_classes]
  objects = [(example['boxes'][i], name(int(example['label'][i]))) for i in present]
  return {'Boxes': look_at_boxes(model, example['image'], pixels, objects, name=name)}


def look_at_boxes(
  model: object,
  image: Float[np.ndarray, 'height width channels'],
  pixels: UInt8[np.ndarray, 'height width channels'],
  objects: Sequence[tuple[Float[np.ndarray, ' 4'], str]] = (),
  *,
  name: Callable[[int], str] = str,
  threshold: float = 0.5,
) -> UInt8[np.ndarray, 'rows columns 3']:
  """Returns the picture of an image with the predictions of at least `threshold` and, if it is known, the objects.

  Args:
    model: the detector.
    image: the input, normalised as in training.
    pixels: the image to show.
    objects: box (centre, width and height as shares of the image) and name of each object.
    name: returns the name of a class.
    threshold: smallest probability of a prediction.
  """
  found = on_devices(jax.jit(runs_model(predicted)), model, {'image': image[None]})
  detected = in_pixels(Detected(*(array[0] for array in found)), pixels.shape)
  known = [in_pixels(Detected(box[None], box, box), pixels.shape).boxes[0] for box, _ in objects]
  likely = np.flatnonzero(detected.scores >= threshold)
  texts = [f'{name(int(detected.labels[i]))} {detected.scores[i]:.2f}' for i in likely]
  drawn = [(box, text, _OBJECT) for box, (_, text) in zip(known, objects, strict=True)]
  drawn += [
    (box, text, _PREDICTED) for box, text in zip(detected.boxes[likely], texts, strict=True)
  ]
  return draw_boxes(pixels, drawn)


def draw_boxes(
  pixels: UInt8[np.ndarray, 'height width channels'],
  boxes: Sequence[tuple[np.ndarray, str, tuple[int, int, int]]],
) -> UInt8[np.ndarray, 'rows columns 3']:
  """Returns an image, enlarged if it is small, with boxes.

  Args:
    pixels: the image, with one channel or three.
    boxes: left, top, width and height in pixels, text and colour of each.
  """
  factor = max(1, -(-_MIN_PIXELS // min(pixels.shape[:2])))
  rgb = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
  picture = Image.fromarray(rgb.repeat(factor, axis=0).repeat(factor, axis=1))
  draw = ImageDraw.Draw(picture)
  for (left, top, width, height), text, colour in boxes:
    edges = [factor * side for side in (left, top, left + width, top + height)]
    draw.rectangle(edges, outline=colour, width=3)
    # Predictions are named above their box, objects below it.
    below = colour == _OBJECT
    place = edges[0], edges[3] + 2 if below else edges[1] - 2
    draw.text(place, text, fill=colour, anchor='lt' if below else 'lb', font_size=18)
  return np.asarray(picture)
