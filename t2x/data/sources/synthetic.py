"""Sources for long sequences whose examples are computed: nested lists, recall, copies and paths.

They follow Long Range Arena (Tay et al. 2021, https://arxiv.org/abs/2011.04006). An example depends only on the
settings, the split and its index.
"""

import abc
import dataclasses
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, NonEmpty, Range, Seed, Size
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, Example, Source, require_split

__all__ = [
  'AssociativeRecall',
  'Copying',
  'ListOps',
  'Pathfinder',
]

SIZES = {'train': 20000, 'validation': 1000, 'test': 1000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic(Source):
  """Base class; subclasses define `example`, and `labels` if the examples have a label.

  Attributes:
    examples: number of examples of each split.
    seed: random seed.
  """

  examples: Annotated[Mapping[str, Count], NonEmpty] = dataclasses.field(
    default_factory=lambda: dict(SIZES)
  )
  seed: Seed = 0

  # The possible labels; empty: the examples have none.
  labels: ClassVar[Sequence[Any]] = ()

  @abc.abstractmethod
  def example(self, rng: np.random.Generator, split: str) -> Example:
    """Returns a random example of a split."""

  def splits(self) -> tuple[str, ...]:
    return tuple(self.examples)

  def load(self, split: str) -> 'SyntheticExamples':
    """Returns a split, whose examples are computed when they are read."""
    require_split(self, split)
    return SyntheticExamples(self, split)

  def fingerprint(self) -> str:
    return fingerprint(self)


class SyntheticExamples(BulkExamples):
  """Examples of a split; each is a function of the settings, the split and the index."""

  def __init__(self, source: Synthetic, split: str):
    self.source, self.split = source, split

  def __len__(self) -> int:
    return self.source.examples[self.split]

  def read(self, indices):
    key = self.source.seed, zlib.crc32(self.split.encode())
    for i in indices:
      yield self.source.example(np.random.default_rng((*key, i)), self.split)

  def label_values(self):
    return set(self.source.labels)


# Symbol -> function of the arguments.
_OPERATORS: Mapping[str, Callable[[Sequence[int]], int]] = {
  'x': max,
  'n': min,
  'd': lambda values: int(np.median(values)),
  's': lambda values: sum(values) % 10,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOps(Synthetic):
  """Nested lists of digits with `text` and `label`, the value as one digit (Nangia and Bowman 2018,
  https://arxiv.org/abs/1804.06028).

  A list is an operator and its arguments in parentheses: `x(43n(52)0)` is max(4, 3, min(5, 2), 0). Operators: `x`
  maximum, `n` minimum, `d` median (rounded down), `s` sum modulo 10. Every character is a token of `Bytes`.

  Attributes:
    max_depth: maximum depth of the lists.
    max_arguments: maximum number of arguments; the minimum is 2.
    min_length: minimum number of characters.
    max_length: maximum number of characters.
  """

  max_depth: Size = 10
  max_arguments: Size = 10
  min_length: Size = 100
  max_length: Size = 500

  def __post_init__(self):
    if self.min_length > self.max_length:
      raise UserError(
        f'ListOps.min_length = {self.min_length} is more than ListOps.max_length = {self.max_length}'
      )
    if self.max_arguments < 2:
      raise UserError(f'ListOps.max_arguments = {self.max_arguments}: must be at least 2')

  labels = tuple('0123456789')

  def example(self, rng, split):
    """Returns the first random list of a suitable length."""
    # Scalars of the standard library's generator take a tenth of the time.
    scalars = random.Random(int(rng.integers(2**63)))
    for _ in range(100_000):
      item = self._list(scalars, 1, self.max_length)
      if item is not None and len(item[0]) >= self.min_length:
        return {'text': item[0], 'label': str(item[1])}
    raise UserError(
      f'ListOps: no list of {self.min_length} to {self.max_length} characters in 100,000 attempts: raise max_depth or '
      'max_arguments, or widen the range of lengths'
    )

  def _list(self, rng: random.Random, depth: int, room: int) -> tuple[str, int] | None:
    """Returns a list and its value, or None if it has more than `room` characters."""
    operator, texts, values = rng.choice('xnds'), list[str](), list[int]()
    room -= 3
    for _ in range(rng.randint(2, self.max_arguments)):
      # A quarter of the arguments are lists, as in Long Range Arena.
      if depth < self.max_depth and rng.random() < 0.25:
        item = self._list(rng, depth + 1, room)
      else:
        digit = rng.randrange(10)
        item = str(digit), digit
      if item is None or len(item[0]) > room:
        return None
      room -= len(item[0])
      texts.append(item[0])
      values.append(item[1])
    return f'{operator}({"".join(texts)})', _OPERATORS[operator](values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssociativeRecall(Synthetic):
  """Pairs of a letter and a digit, then one of the letters; `label` is its digit.

  The text is `length` characters: pairs such as `k7`, filler `.`, and the last character, the letter to look up.
  All letters are distinct.

  Attributes:
    length: number of characters.
    num_pairs: number of pairs.
    distance: number of characters between the pair to recall and the last character; further pairs are anywhere. None:
      the pair to recall is anywhere, too.
  """

  length: Size = 256
  num_pairs: Annotated[int, Range('1 <= x <= 26')] = 8
  distance: Size | None = 200

  def __post_init__(self):
    if self.distance is not None and self.distance + 3 > self.length:
      raise UserError(
        f'AssociativeRecall.distance = {self.distance}: must be at most length - 3 = {self.length - 3}'
      )
    # Any position of the pair to recall leaves room for all pairs.
    if 4 * self.num_pairs + 3 > self.length:
      raise UserError(
        f'AssociativeRecall.num_pairs = {self.num_pairs}: must be at most (length - 3) / 4 = {(self.length - 3) // 4}'
      )

  labels = tuple('0123456789')

  def example(self, rng, split):
    """Returns random pairs at random places that do not overlap."""
    letters = rng.permutation(26)[: self.num_pairs]
    digits = rng.integers(10, size=self.num_pairs)
    text = ['.'] * self.length
    free = np.ones(self.length - 2, bool)  # Where a pair can begin.
    for i, (letter, digit) in enumerate(zip(letters, digits, strict=True)):
      if i == 0 and self.distance is not None:
        place = self.length - 3 - self.distance
      else:
        place = int(rng.choice(np.flatnonzero(free)))
      free[max(place - 1, 0) : place + 2] = False
      text[place : place + 2] = chr(97 + letter), str(digit)
    text[-1] = chr(97 + letters[0])
    return {'text': ''.join(text), 'label': str(digits[0])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying(Synthetic):
  """Pairs whose `source` and `target` are the same random letters.

  Attributes:
    min_length: minimum number of letters.
    max_length: maximum number of letters; all lengths are equally frequent.
    num_letters: number of different letters.
  """

  min_length: Size = 10
  max_length: Size = 100
  num_letters: Annotated[int, Range('1 <= x <= 26')] = 26

  def __post_init__(self):
    if self.min_length > self.max_length:
      raise UserError(
        f'Copying.min_length = {self.min_length} is more than Copying.max_length = {self.max_length}'
      )

  def example(self, rng, split):
    """Returns random letters twice."""
    length = rng.integers(self.min_length, self.max_length + 1)
    text = ''.join(chr(97 + letter) for letter in rng.integers(self.num_letters, size=length))
    return {'source': text, 'target': text}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pathfinder(Synthetic):
  """Images with dashed paths and two dots; `label` is 1 if the dots are the ends of one path (Linsley et al. 2018,
  https://arxiv.org/abs/1805.08315), otherwise 0.

  Every image has two long paths and `num_distractors` short ones; paths do not touch. `image` is uint8 [side, side, 1].

  Attributes:
    side: height and width in pixels.
    path_length: length of the long paths in pixels.
    num_distractors: number of short paths, of a third of the length.
  """

  side: Annotated[int, Range('16 <= x <= 512')] = 32
  path_length: Annotated[int, Range('9 <= x <= 512')] = 24
  num_distractors: Annotated[int, Range('0 <= x <= 64')] = 3

  labels = (0, 1)

  def example(self, rng, split):
    """Returns the first image whose paths fit."""
    for _ in range(200):
      paths = self._paths(rng)
      if paths is not None:
        label = int(rng.integers(2))
        dots = (paths[0][0], paths[0][-1]) if label else (paths[0][0], paths[1][-1])
        return {'image': self._draw(paths, dots), 'label': label}
    raise UserError(
      f'Pathfinder: no room for the paths in 200 attempts: raise side = {self.side}, or decrease path_length = '
      f'{self.path_length} or num_distractors = {self.num_distractors}'
    )

  def _paths(self, rng: np.random.Generator) -> list[np.ndarray] | None:
    """Returns paths of points one pixel apart, or None if one does not fit."""
    rows, columns = np.mgrid[: self.side, : self.side]
    taken = np.zeros((self.side, self.side), bool)
    paths = []
    for i in range(2 + self.num_distractors):
      length = self.path_length if i < 2 else max(self.path_length // 3, 3)
      for _ in range(50):
        path = _curve(rng, length, self.side)
        inside = (path >= 2).all() and (path <= self.side - 3).all()
        if inside and not taken[tuple(np.rint(path).astype(int).T)].any():
          break
      else:
        return None
      paths.append(path)
      for row, column in path:
        taken |= np.hypot(rows - row, columns - column) < 4.5
    return paths

  def _draw(self, paths: Sequence[np.ndarray], dots: Sequence[np.ndarray]) -> np.ndarray:
    image = np.zeros((self.side, self.side, 1), np.uint8)
    for path in paths:
      for i, (row, column) in enumerate(np.rint(path).astype(int)):
        if i % 4 < 3:  # Dashes of three pixels.
          image[row, column] = 160
    rows, columns = np.mgrid[: self.side, : self.side]
    for row, column in dots:
      image[np.hypot(rows - row, columns - column) < 1.6] = 255
    return image


def _curve(rng: np.random.Generator, length: int, side: int) -> np.ndarray:
  """Returns points [length, 2], one pixel apart, of a curve whose direction changes slowly."""
  turns = rng.normal(0, 0.25, length - 1).cumsum() * 0.5
  angles = rng.uniform(0, 2 * np.pi) + turns
  steps = np.stack([np.sin(angles), np.cos(angles)], axis=1)
  start = rng.uniform(2, side - 3, 2)
  return np.concatenate([start[None], start + steps.cumsum(axis=0)])
