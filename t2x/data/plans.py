"""What a plan is: it turns the examples of a split into rows of one shape when the cache is written."""

import abc
import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from t2x.data.tokenizers import Tokenizer
from t2x.errors import UserError

Row = dict[str, Any]
Examples = Iterable[Mapping[str, Any]]


class Column(NamedTuple):
  """Length and stored type of a column of rows; the type None is that of token ids."""

  length: int
  dtype: type | None


class Plan(abc.ABC):
  """Turns examples into rows. Its `repr` is part of the cache's fingerprint."""

  # Whether every row is one segment without padding, whatever the data, so that models need no segments.
  one_segment: ClassVar[bool] = False
  # Whether rows get the positions of their tokens when they are read, which start at 0 in each segment.
  positions: ClassVar[bool] = False

  @property
  @abc.abstractmethod
  def columns(self) -> dict[str, Column]:
    """Name -> length and type. Every column of token ids has one of segments beside it."""

  @abc.abstractmethod
  def rows(
    self, examples: Examples, tokenizer: Tokenizer, counts: collections.Counter[str]
  ) -> Iterator[Row]:
    """The rows, made as the examples are read. Adds to `counts` the examples that are `cut`, ..."""

  @property
  def texts(self) -> list[str]:
    """The columns of token ids."""
    return [name for name, column in self.columns.items() if column.dtype is None]

  def dtype(self, vocab_size: int) -> np.dtype:
    """The structured type of a stored row."""
    ids = np.uint16 if vocab_size <= 1 << 16 else np.int32
    return np.dtype([(name, c.dtype or ids, (c.length,)) for name, c in self.columns.items()])


def segments_of(column: str) -> str:
  """The name of a column's segments: `segments` for `tokens`, else `source_segments` and so on."""
  return 'segments' if column == 'tokens' else f'{column}_segments'


def text_of(example: Mapping[str, Any], field: str, number: int) -> str:
  """A text field of an example.

  Raises:
    UserError: it has none of that name.
  """
  text = example.get(field)
  if isinstance(text, bytes):
    text = text.decode(errors='replace')
  if not isinstance(text, str):
    raise UserError(f"example {number} has no text '{field}': its fields are {sorted(example)}")
  return text
