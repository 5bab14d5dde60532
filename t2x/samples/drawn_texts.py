"""Evaluator of images of texts, which reads the scenes of the sample `DrawnScenes` by a rule."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Size
from t2x.domains.pixels.sampled_images import SampledImages
from t2x.domains.pixels.text_to_image import TextToImage
from t2x.samples.drawn_scenes import matches, read_caption, read_picture
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluated, Evaluation
from t2x.tasks.pictures import enlarged, grid
from t2x.tasks.prediction import in_batches

__all__ = ['DrawnTexts']


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnTexts(SampledImages):
  """Draws an image of each text of `DrawnScenes`, and reads the scene that it shows by a rule.

  Metrics: `match`, the share of images whose two objects have the colours, the shapes and the relation of the text;
  `colours`, `shapes` and `relation`, the shares with the right ones; `drawn`, the share of images of the split, in the
  colours of the palette, that match their own text, which is the maximum to expect.

  Attributes:
    num_drawn: number of images in the picture.
  """

  num_examples: Count | None = 200
  num_drawn: Size = 16

  kinds: ClassVar[tuple[type[Task], ...]] = (TextToImage,)

  def check(self, task, model):
    """Also raises UserError if the texts are not those of `DrawnScenes`, or the model cannot draw."""
    super().check(task, model)
    if read_caption(task.source.load(self._split(task))[0].get('text', '')) is None:
      raise UserError(
        'DrawnTexts reads scenes of two objects: set TextToImage.source = @DrawnScenes()'
      )
    task.check_sampled(model, 1 + task.text_length, self.strategy)

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Returns the metrics, and the first images, with their texts as samples."""
    task, model = evaluated.task, evaluated.model()
    examples = task.source.load(self._split(task))
    chosen = [examples[i] for i in self._indices(examples)]

    def drawn(numbers):
      texts = [chosen[i]['text'] for i in numbers]
      return task.images(model, texts, self.strategy, self.seed, numbers)

    size = min(self.batch_size, len(chosen))
    outputs = in_batches(range(len(chosen)), drawn, size, watched=evaluated.watched)
    images = [image for _, image in outputs]
    values: dict[str, list[bool]] = {}
    for example, image in zip(chosen, images, strict=True):
      for name, value in self._compared(task, example, image).items():
        values.setdefault(name, []).append(value)
    arrays = {name: np.array(value, float) for name, value in values.items()}
    shown = images[: self.num_drawn]
    samples = [
      {'text': example['text'], 'output': str(read_picture(image))}
      for example, image in zip(chosen, shown, strict=False)
    ]
    picture = grid([enlarged(image) for image in shown], 4)
    metrics = {name: float(array.mean()) for name, array in arrays.items()}
    return Evaluation(metrics, samples, {'images': picture}, arrays)

  def _compared(
    self, task: TextToImage, example: Mapping[str, Any], image: np.ndarray
  ) -> dict[str, bool]:
    palette = task.palette
    own = palette.image(palette.pixels(example['image']), *task.image_shape[:2])
    wanted, shown, text = read_caption(example['text']), read_picture(image), example['text']
    parts = ('colours', 'shapes', 'relation')
    return {
      'match': shown is not None and matches(text, shown),
      **{name: getattr(shown, name, None) == getattr(wanted, name) for name in parts},
      'drawn': read_picture(own) == wanted,
    }
