"""Drawn scenes of two objects with captions, and rules that read the scene of a caption or of a picture."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, UInt8

from t2x.base.errors import UserError
from t2x.base.ranges import Range
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.held_out import SPLITS, split_of
from t2x.data.sources.synthetic import Synthetic

__all__ = ['DrawnScenes', 'Scene', 'scene_is_right']

PictureSize = Annotated[int, Range('16 <= x <= 256')]

COLOURS = {
  'red': (220, 40, 40),
  'green': (40, 180, 60),
  'blue': (50, 80, 230),
  'yellow': (235, 215, 50),
  'purple': (160, 60, 200),
  'white': (240, 240, 240),
}
SHAPES = ('square', 'circle', 'triangle', 'cross')
# Phrase -> its relation, and whether the object after it is the first of the scene.
RELATIONS = {
  'left of': ('left of', False),
  'to the left of': ('left of', False),
  'right of': ('left of', True),
  'to the right of': ('left of', True),
  'above': ('above', False),
  'over': ('above', False),
  'below': ('above', True),
  'under': ('above', True),
}
SENTENCES = ('a {} {} a {}', 'there is a {} {} a {}', 'the {} is {} the {}')
_CAPTION = re.compile(
  r'(?:there is )?(?:a|the) ({colour}) ({shape}) (?:is )?({phrase}) (?:a|the) ({colour}) ({shape})'
  .format(colour='|'.join(COLOURS), shape='|'.join(SHAPES), phrase='|'.join(RELATIONS))
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Scene:
  """The facts of a picture.

  Attributes:
    colours: names of the colours of the left and the right object, or of the upper and the lower one.
    shapes: names of their shapes.
    relation: 'left of' or 'above'.
  """

  colours: tuple[str, str]
  shapes: tuple[str, str]
  relation: str

  def captions(self) -> tuple[str, ...]:
    """Returns the twelve captions of the scene."""
    first, second = map(' '.join, zip(self.colours, self.shapes, strict=True))
    return tuple(
      sentence.format(second, phrase, first) if swapped else sentence.format(first, phrase, second)
      for sentence in SENTENCES
      for phrase, (relation, swapped) in RELATIONS.items()
      if relation == self.relation
    )


@functools.cache
def scenes(split: str) -> tuple[Scene, ...]:
  """Returns the scenes of a split: those of 1,104 scenes of two different objects whose hash is in it."""
  pairs = itertools.permutations(itertools.product(COLOURS, SHAPES), 2)
  every = (
    Scene((a[0], b[0]), (a[1], b[1]), relation)
    for a, b in pairs
    for relation in ('left of', 'above')
  )
  return tuple(scene for scene in every if split_of(scene.captions()[0]) == split)


def read_caption(caption: str) -> Scene | None:
  """Returns the scene that a caption describes, in any mixture of the sentences; None for other texts."""
  match = _CAPTION.fullmatch(caption.strip())
  if match is None:
    return None
  colour, shape, phrase, other_colour, other_shape = match.groups()
  relation, swapped = RELATIONS[phrase]
  colours, shapes = (colour, other_colour), (shape, other_shape)
  return (
    Scene(colours[::-1], shapes[::-1], relation) if swapped else Scene(colours, shapes, relation)
  )


def matches(caption: str, facts: Scene) -> bool:
  """Returns whether a caption describes a scene."""
  return read_caption(caption) == facts


def scene_is_right(caption: str, example: Mapping[str, Any]) -> bool:
  """Returns whether a caption describes the `facts` of an example of `DrawnScenes`, in any of its words."""
  return matches(caption, example['facts'])


def read_picture(image: UInt8[np.ndarray, 'size size 3']) -> Scene | None:
  """Returns the scene that a picture shows; None unless it shows two objects.

  An object has the most frequent colour of its half, and the shape that overlaps most with the pixels of this colour.
  """
  palette = np.array([(30, 30, 30), *COLOURS.values()])
  distances = np.square(image[..., None, :].astype(int) - palette).sum(axis=-1)
  nearest = distances.argmin(axis=-1)  # 0: background
  if not nearest.any():
    return None
  height, width = np.ptp(np.argwhere(nearest), axis=0)
  beside = width > height
  if max(height, width) < len(image) / 2:
    return None  # one object
  objects = [_read_object(half) for half in np.array_split(nearest, 2, axis=int(beside))]
  if objects[0] is None or objects[1] is None:
    return None
  colours, shapes = zip(*objects, strict=True)
  return Scene(colours, shapes, 'left of' if beside else 'above')


def _read_object(nearest: np.ndarray) -> tuple[str, str] | None:
  """Returns the colour and shape of the object in a half, given the number of the nearest colour of each pixel."""
  counts = np.bincount(nearest.ravel(), minlength=1 + len(COLOURS))[1:]
  if not counts.any():
    return None
  colour = int(counts.argmax())
  places = np.argwhere(nearest == 1 + colour)
  top, left = places.min(axis=0)
  side = int(np.ptp(places, axis=0).max()) + 1
  pixels = np.zeros((side, side), bool)
  pixels[tuple((places - (top, left)).T)] = True

  def overlap(shape: str) -> float:
    other = outline(shape, side)
    return float((pixels & other).sum() / (pixels | other).sum())

  return tuple(COLOURS)[colour], max(SHAPES, key=overlap)


@functools.cache
def outline(shape: str, side: int) -> Bool[np.ndarray, 'side side']:
  """Returns which pixels of a square a shape covers."""
  middle = (side - 1) / 2
  y, x = np.indices((side, side))
  covered: Mapping[str, np.ndarray] = {
    'square': np.ones((side, side), bool),
    'circle': (y - middle) ** 2 + (x - middle) ** 2 <= side**2 / 4,
    'triangle': np.abs(x - middle) <= (y + 1) / 2,
    'cross': np.minimum(np.abs(y - middle), np.abs(x - middle)) <= side / 6,
  }
  return covered[shape]


def draw(scene: Scene, size: int, random: np.random.Generator) -> UInt8[np.ndarray, 'size size 3']:
  """Draws a scene on a dark background, with random sizes, places and shades.

  Args:
    scene: what to draw.
    size: height and width in pixels.
    random: draws what differs between pictures of a scene.
  """
  image = np.full((size, size, 3), random.integers(10, 50), np.uint8)
  half = size // 2
  for number, (colour, shape) in enumerate(zip(scene.colours, scene.shapes, strict=True)):
    side = int(random.integers(3 * size // 8, 7 * size // 16 + 1))
    along = number * half + random.integers(half - side + 1)
    # At most an eighth off the middle, so that the pair is longer in one direction.
    across = (size - side) // 2 + random.integers(-(size // 8), size // 8 + 1)
    top, left = (across, along) if scene.relation == 'left of' else (along, across)
    shade = np.clip(np.array(COLOURS[colour]) + random.integers(-15, 16, 3), 0, 255)
    image[top : top + side, left : left + side][outline(shape, side)] = shade
  return image


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnScenes(Synthetic):
  """Pictures of two objects, such as 'a red square left of a blue circle', in six colours, four
  shapes and two relations.

  An example has `image` uint8 [size, size, 3] and its `text`, one of the twelve captions of the scene; the same as
  `source` and `target`; all `captions`; and `facts`, a `Scene`. Places, sizes and shades differ between pictures of a
  scene. A hash of the two objects and their relation puts a scene into one of the splits, so that no scene of
  validation or test is in train; their colours, shapes and relations are.

  Attributes:
    size: height and width of the pictures in pixels, an even number.
  """

  size: PictureSize = 16

  def __post_init__(self):
    if self.size % 2:
      raise UserError(
        f'DrawnScenes.size = {self.size}: must be even, because a picture has two halves'
      )
    if unknown := set(self.examples) - set(SPLITS):
      raise UserError(
        f'DrawnScenes.examples has the split {min(unknown)!r}: scenes are divided into {", ".join(SPLITS)}'
      )

  def example(self, rng, split):
    own: Sequence[Scene] = scenes(split)
    scene = own[rng.integers(len(own))]
    image = draw(scene, self.size, rng)
    captions = scene.captions()
    text = captions[rng.integers(len(captions))]
    pair = {'image': image, 'text': text, 'source': image, 'target': text}
    return pair | {'captions': captions, 'facts': scene}

  def fingerprint(self) -> str:
    """Identifies the settings and the lists that scenes are made of."""
    return fingerprint(self, COLOURS, SHAPES, RELATIONS, SENTENCES)
