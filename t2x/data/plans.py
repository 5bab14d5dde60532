"""Interface of plans, which convert the examples of a split to rows when the cache is written."""

import abc
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from t2x.base.errors import UserError
from t2x.data.tokenizers.base import SpecialIds, Tokenizer

Row = dict[str, Any]
T = TypeVar('T')
# Examples with their numbers in the split.
Examples = Iterable[tuple[int, Mapping[str, Any]]]
# The values of an encoded example, or of a part of it, by name: numbers or arrays, integers or float32.
Item = dict[str, Any]


class Column(NamedTuple):
  """Shape and stored type of a column of rows.

  Attributes:
    shape: shape of the array of a row; the shape 1 is a number.
    dtype: stored type, of integers or floats; None: that of token ids. Rows have int32 or float32.
  """

  shape: int | tuple[int, ...]
  dtype: type | None


class Plan(abc.ABC):
  """Converts examples to rows of one shape. Its `repr` is part of the cache's fingerprint.

  `encode` takes most of the time; several processes encode different examples. `pack` then reads
  all items in the order of the examples, in one process.
  """

  # True if, for any data, every row is one segment without padding: models then need no segments.
  one_segment: ClassVar[bool] = False
  # True if token positions, which start at 0 in each segment, are added to rows when they are read.
  positions: ClassVar[bool] = False

  @property
  @abc.abstractmethod
  def columns(self) -> dict[str, Column]:
    """Name -> shape and type. Every column of token ids has a column of segments."""

  @abc.abstractmethod
  def encode(
    self, examples: Examples, tokenizer: Tokenizer, counts: collections.Counter[str]
  ) -> Iterator[Item]:
    """Yields items while it reads the examples; encodes each example independently.

    Adds counts such as `cut` examples to `counts`. Every item has the same names.
    """

  def pack(
    self, items: Iterable[Item], special: SpecialIds, counts: collections.Counter[str]
  ) -> Iterator[Row]:
    """Yields the rows of the items of all examples. Adds to `counts`."""
    yield from items

  def rows(
    self,
    examples: Iterable[Mapping[str, Any]],
    tokenizer: Tokenizer,
    counts: collections.Counter[str],
  ) -> Iterator[Row]:
    """Yields rows while it reads the examples. Adds counts such as `cut` examples to `counts`."""
    return self.pack(self.encode(enumerate(examples), tokenizer, counts), tokenizer, counts)

  @property
  def texts(self) -> list[str]:
    """Names of the columns of token ids."""
    return [name for name, column in self.columns.items() if column.dtype is None]

  def dtype(self, vocab_size: int) -> np.dtype:
    """Returns the structured type of a stored row."""
    ids = np.uint16 if vocab_size <= 1 << 16 else np.int32
    columns = self.columns.items()
    return np.dtype(
      [
        (name, c.dtype or ids, c.shape if isinstance(c.shape, tuple) else (c.shape,))
        for name, c in columns
      ]
    )


def by_size(items: Iterable[T], size_of: Callable[[T], int], limit: int) -> Iterator[list[T]]:
  """Yields lists of consecutive items whose sizes add up to at least `limit`, except the last."""
  batch: list[T] = []
  size = 0
  for item in items:
    batch.append(item)
    size += size_of(item)
    if size >= limit:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def padded(
  values: Sequence[object] | np.ndarray, length: int, dtype: type = np.int32
) -> np.ndarray:
  """Returns an array [length] that begins with the values and continues with zeros."""
  row: np.ndarray = np.zeros(length, dtype)
  row[: len(values)] = values
  return row


def check_positive(plan: object, *names: str) -> None:
  """Raises UserError unless attributes of a plan are at least 1."""
  for name in names:
    if getattr(plan, name) < 1:
      raise UserError(f'{type(plan).__name__}.{name} = {getattr(plan, name)}: must be at least 1')


def segments_of(column: str) -> str:
  """Returns the name of a column's segments: `segments` for `tokens`, `source_segments`, ..."""
  return 'segments' if column == 'tokens' else f'{column}_segments'


def text_of(example: Mapping[str, Any], field: str, number: int) -> str:
  """Returns a text field of an example.

  Raises:
    UserError: the field is missing or is not text.
  """
  text = example.get(field)
  if isinstance(text, bytes):
    text = text.decode(errors='replace')
  if not isinstance(text, str):
    raise UserError(f"example {number} has no text '{field}': its fields are {sorted(example)}")
  return text
