"""Sources that rewrite another source's examples."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import UInt8

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction, NonEmpty, Range, Size, Text
from t2x.data.crops import resize
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import (
  BulkExamples,
  Example,
  Source,
  example_names,
  label_values,
  origins,
  read_at,
  require_split,
)
from t2x.data.sources.held_out import BUCKETS, bytes_of, split_of

__all__ = ['Joined', 'PartlyLabelled', 'PixelText', 'Prefixed', 'Resized']

Levels = Annotated[int, Range('2 <= x <= 64')]


class _Rewritten(BulkExamples):
  """Examples that are rewritten when they are read."""

  def __init__(self, source: 'RewritingSource', examples: Sequence[Example]):
    self.source, self.examples = source, examples

  def __len__(self) -> int:
    return len(self.examples)

  def read(self, indices):
    return map(self.source.rewrite, read_at(self.examples, indices))

  def names(self):
    return example_names(self.examples)

  def label_values(self):
    values = label_values(self.examples)
    return None if values is None else set(map(self.source.rewrite_label, values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewritingSource(Source):
  """The examples of `source`, rewritten.

  Attributes:
    source: source of the examples.
  """

  source: Source

  @abc.abstractmethod
  def rewrite(self, example: Example) -> Example:
    """Returns the example to use in place of one of the source.

    Raises:
      UserError: the example lacks a field.
    """

  def rewrite_label(self, label: object) -> Any:
    """Returns the label to use in place of one of the source."""
    return label

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def load(self, split):
    return _Rewritten(self, self.source.load(split))

  def fingerprint(self) -> str:
    """Identifies the source and the settings."""
    settings = [
      getattr(self, field.name) for field in dataclasses.fields(self) if field.name != 'source'
    ]
    return fingerprint(type(self).__name__, settings, self.source.fingerprint())

  def _text(self, example: Example, field: str) -> str:
    text = example.get(field)
    if not isinstance(text, str):
      raise UserError(
        f"{type(self).__name__}: the examples of {self.source.describe()} have no text '{field}': they have "
        f'{", ".join(example)}'
      )
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefixed(RewritingSource):
  """Examples with a prefix that names the task, as in T5 ('translate English to German: ').

  Attributes:
    prefix: the text before the field, with its separator.
    field: the field to change.
  """

  prefix: Text
  field: Text = 'source'

  def rewrite(self, example):
    """Returns the example with the prefix."""
    return example | {self.field: self.prefix + self._text(example, self.field)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined(RewritingSource):
  """Examples whose `text` is several fields, for example a sentence and its translation (translation language
  modelling, https://arxiv.org/abs/1901.07291).

  Attributes:
    fields: the fields, in order.
    separator: the text between two fields.
  """

  fields: Annotated[Sequence[Text], NonEmpty] = ('source', 'target')
  separator: str = '\n'

  def rewrite(self, example):
    """Returns `text` only."""
    return {'text': self.separator.join(self._text(example, field) for field in self.fields)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resized(RewritingSource):
  """The examples of a source, with images resized bilinearly, with antialiasing if they are reduced.

  Changes the proportions of images that have others; `CentralCrop` keeps them.

  Attributes:
    source: source whose examples have images uint8 [old height, old width, channels].
    height: height of the images in pixels.
    width: width of the images in pixels.
    field: field of the image: 'source' for captions.
  """

  height: Size
  width: Size
  field: Text = 'image'

  def rewrite(self, example):
    """Returns the example with its image as uint8 [height, width, channels]."""
    return example | {self.field: _rounded(example[self.field], self.height, self.width)}

  def fingerprint(self) -> str:
    """Identifies the source, the size, the filter and another field than `image`."""
    others = () if self.field == 'image' else (self.field,)
    return fingerprint(
      'Resized, antialiased', self.source.fingerprint(), self.height, self.width, *others
    )


def resized_as(source: Source, image: UInt8[np.ndarray, 'old_height old_width channels']) -> Any:
  """Returns an image of another origin in the size of the images of a source, which may contain `Resized`."""
  for inner in reversed([*origins(source)]):
    image = _rounded(image, inner.height, inner.width) if isinstance(inner, Resized) else image
  return image


def _rounded(image: np.ndarray, height: int, width: int) -> UInt8[np.ndarray, '_ _ _']:
  if image.dtype != np.uint8:
    raise UserError(f'Resized needs images of type uint8, not {image.dtype}')
  # In floats, so that only the result is rounded.
  return np.rint(resize(image.astype(np.float32), height, width)).astype(np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelText(RewritingSource):
  """Images of a source as `text`, row by row with one character per pixel, and `label` as text.

  The character of grey level g of 0 .. levels - 1 is chr(48 + g), so that every pixel is a token of `Bytes`.

  Attributes:
    source: source whose examples have `image` uint8 [height, width, 1] and `label`.
    levels: number of grey levels.
  """

  levels: Levels = 16

  def rewrite(self, example):
    """Returns `text` and `label`."""
    image = example['image']
    if image.shape[-1] != 1:
      raise UserError(f'PixelText needs images with one channel, got {image.shape[-1]}')
    levels = image[..., 0].astype(int) * self.levels // 256
    return {'text': ''.join(map(chr, 48 + levels.ravel())), 'label': str(example['label'])}

  def rewrite_label(self, label):
    return str(label)

  def fingerprint(self) -> str:
    """Identifies the source and the number of levels."""
    return fingerprint('PixelText', self.source.fingerprint(), self.levels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartlyLabelled(RewritingSource):
  """Images of a source, of which only a part of one split has a `label`, for learning from a teacher.

  A hash of the image decides, so that neither the order nor other images matter.

  Attributes:
    source: source whose examples have `image` and `label`.
    labelled: share of the images whose label stays.
    split: split that loses labels.
  """

  labelled: Fraction
  split: Text = 'train'

  def __post_init__(self):
    require_split(self.source, self.split)

  def load(self, split):
    """Returns the examples of a split."""
    return super().load(split) if split == self.split else self.source.load(split)

  def rewrite(self, example):
    """Returns the example with or without its label."""
    size = round(self.labelled * BUCKETS)
    parts = {'labelled': range(size), 'unlabelled': range(size, BUCKETS)}
    # Hashed with a prefix, because the hash of the image alone divides splits.
    content = b'label of ' + bytes_of(np.asarray(example['image']))
    if split_of(content, parts, BUCKETS) == 'labelled':
      return example
    return {name: value for name, value in example.items() if name != 'label'}
