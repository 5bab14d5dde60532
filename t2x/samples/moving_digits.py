"""Videos of a handwritten digit that moves, for classes of videos and for videos with captions."""

import dataclasses
from typing import Literal

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Natural, Size
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import ClassSource
from t2x.samples.digit_rows import WORDS
from t2x.samples.digit_scenes import PARTS
from t2x.samples.digits import in_published_order
from t2x.samples.fetched import Sample

__all__ = ['MovingDigits']

# Changes of row and column.
DIRECTIONS = {
  'north': (-1, 0),
  'northeast': (-1, 1),
  'east': (0, 1),
  'southeast': (1, 1),
  'south': (1, 0),
  'southwest': (1, -1),
  'west': (0, -1),
  'northwest': (-1, -1),
}
# Pixels per frame, in a row, a column or both.
SPEEDS = 1, 2
# Number of videos in each of the validation and test splits.
HELD_OUT = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingDigits(Sample, ClassSource):
  """A digit of 8 x 8 pixels that moves over noise in one of eight directions: `video` uint8 [frames, side, side, 1], a
  `label`, and `text`, such as 'a three moves northeast'.

  A digit that leaves the frame enters on the opposite side, and all places of the first frame are equally likely, so
  that a single frame does not show the direction. The digits come from scikit-learn; validation and test have 500
  videos each, of different writers than the train split.

  Attributes:
    label: meaning of the label: the digit, or the number of the direction.
    frames: number of frames.
    side: height and width in pixels.
    noise: largest value of the noise.
    train_examples: number of videos in the train split.
  """

  packages = ('sklearn',)

  label: Literal['digit', 'direction']
  frames: Size = 8
  side: Size = 16
  noise: Natural = 47
  train_examples: Count = 4000

  def __post_init__(self):
    if not self.train_examples:
      raise UserError('MovingDigits.train_examples is not set: set a number')
    if self.side < 8:
      raise UserError(f'MovingDigits.side = {self.side}: must be at least 8, the side of a digit')

  def class_names(self) -> tuple[str, ...]:
    return WORDS if self.label == 'digit' else tuple(DIRECTIONS)

  def examples(self, split):
    digits = in_published_order()[slice(*PARTS[split])]
    random = np.random.default_rng((20261126, list(self.split_names).index(split)))
    for _ in range(self.train_examples if split == 'train' else HELD_OUT):
      image, digit = digits[random.integers(len(digits))]
      direction = int(random.integers(len(DIRECTIONS)))
      name, step = list(DIRECTIONS.items())[direction]
      yield {
        'video': self._video(image, random.choice(SPEEDS) * np.array(step), random),
        'label': digit if self.label == 'digit' else direction,
        'text': f'a {WORDS[digit]} moves {name}',
      }

  def _video(self, image, step, random):
    shape = self.frames, self.side, self.side, 1
    video = random.integers(0, self.noise + 1, shape).astype(np.uint8)
    canvas = np.zeros(shape[1:], np.uint8)
    canvas[:8, :8] = image
    first = random.integers(0, self.side, 2)
    for number, frame in enumerate(video):
      np.maximum(frame, np.roll(canvas, tuple(first + number * step), (0, 1)), out=frame)
    return video

  def fingerprint(self) -> str:
    """Identifies the settings: the data never changes."""
    return fingerprint(self, WORDS, DIRECTIONS, PARTS, SPEEDS, HELD_OUT)
