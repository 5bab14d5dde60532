"""Packing plans, which convert tokenised examples to rows of one shape when the cache is written.

A row holds, for each column (`tokens`; `source` and `target`), token ids and segments: 1, 2, ...
for its examples, 0 for padding. Positions start at 0 in each segment and are computed from the
segments. Every example ends with eos. First-fit packing of pairs follows Raffel et al. 2020
(https://arxiv.org/abs/1910.10683) and Krell et al. 2021 (https://arxiv.org/abs/2107.02027).
"""

import abc
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Int

from t2x.base.errors import UserError
from t2x.data.plans import (
  Column,
  Examples,
  Plan,
  Row,
  by_size,
  check_positive,
  segments_of,
  text_of,
)
from t2x.data.tokenizers.base import SpecialIds, Tokenizer

__all__ = [
  'ConcatenateAndSplit',
  'DocumentPlan',
  'FullRows',
  'PackPairs',
  'PadPairs',
  'PairPlan',
  'RestartPositions',
]

# Number of characters to tokenise at once.
BATCH = 1 << 20
# The ids of an example by text field, without eos.
Ids = dict[str, np.ndarray]


def _positions_of(column: str) -> str:
  return 'positions' if column == 'tokens' else f'{column}_positions'


def positions(segments: Int[np.ndarray, 'length']) -> Int[np.ndarray, 'length']:
  """Returns 0, 1, 2, ... in each segment, and 0 on padding."""
  index = np.arange(len(segments), dtype=np.int32)
  places = np.zeros_like(index)
  starts = np.flatnonzero(segments[1:] != segments[:-1]) + 1
  for start, stop in itertools.pairwise([0, *starts.tolist(), len(segments)]):
    if segments[start]:
      places[start:stop] = index[: stop - start]
  return places


def add_positions(row: Row, columns: Iterable[str]) -> Row:
  """Returns the row with the positions of each column added."""
  added = {_positions_of(column): positions(row[segments_of(column)]) for column in columns}
  return row | added


@dataclasses.dataclass(frozen=True)
class PackingPlan(Plan):
  """Packs the token ids of texts."""

  # Text fields of an example to tokenise.
  fields: ClassVar[tuple[str, ...]]

  positions: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def lengths(self) -> dict[str, int]:
    """Column -> tokens per row."""

  @property
  def columns(self):
    """Ids and segments of each text column."""
    columns = {}
    for name, length in self.lengths.items():
      columns[name] = Column(length, None)
      columns[segments_of(name)] = Column(length, np.uint16 if length < 1 << 16 else np.int32)
    return columns

  @abc.abstractmethod
  def pack(
    self, examples: Iterable[Ids], special: SpecialIds, counts: collections.Counter[str]
  ) -> Iterator[Row]:
    """Yields the rows. Adds `empty`, `dropped` and `cut` examples and `cut_tokens` to `counts`."""

  def encode(
    self, examples: Examples, tokenizer: Tokenizer, counts: collections.Counter[str]
  ) -> Iterator[Ids]:
    """Yields the ids of each example's fields; encodes many examples at once.

    Also adds to the counts `bytes` (of UTF-8 text) and `lossy_texts`, texts with unknown tokens.
    """
    counts.update(empty=0, dropped=0, cut=0, cut_tokens=0, bytes=0, lossy_texts=0)
    for texts in by_size(self._texts(examples, counts), lambda row: sum(map(len, row)), BATCH):
      columns = []
      for field, column in zip(self.fields, zip(*texts, strict=True), strict=True):
        side = tokenizer.target if field == 'target' else tokenizer
        columns.append(side.encode_batch(column))
        counts['lossy_texts'] += sum(side.unk_id in encoded for encoded in columns[-1])
      for ids in zip(*columns, strict=True):
        yield {
          field: np.array(side, np.int32) for field, side in zip(self.fields, ids, strict=True)
        }

  def _texts(self, examples: Examples, counts: collections.Counter[str]) -> Iterator[list[str]]:
    for number, example in examples:
      texts = [text_of(example, field, number) for field in self.fields]
      counts['bytes'] += sum(len(text.encode()) for text in texts)
      yield texts


@dataclasses.dataclass(frozen=True)
class DocumentPlan(PackingPlan):
  """Packs documents into rows of `length` tokens.

  Each token, including the eos of each document, is in exactly one row. A causal model therefore
  reads a row shifted right within each segment (bos first) and predicts the row itself: every token
  is a target exactly once, and the summed loss is the cost of the entire text. A document that is
  split continues as a new segment. Empty documents are omitted.

  Attributes:
    length: tokens per row.
  """

  length: int

  fields: ClassVar[tuple[str, ...]] = ('text',)

  def __post_init__(self):
    check_positive(self, 'length')

  @property
  def lengths(self):
    """Length of the only column, `tokens`."""
    return {'tokens': self.length}

  def documents(
    self, examples: Iterable[Ids], special: SpecialIds, counts: collections.Counter[str]
  ) -> Iterator[np.ndarray]:
    """Yields the ids of the documents that are not empty, each with eos."""
    for example in examples:
      if len(example['text']):
        yield np.append(example['text'], special.eos_id)
      else:
        counts['empty'] += 1


@dataclasses.dataclass(frozen=True)
class ConcatenateAndSplit(DocumentPlan):
  """Joins documents in order and splits them every `length` tokens; only the last row is padded.

  For the content of rows see `DocumentPlan`. `counts['divided']` is the number of documents in more
  than one row.
  """

  def pack(self, examples, special, counts):
    """Yields rows in the order of the documents."""
    row, used, segment = empty_row(self.lengths), 0, 0
    for document in self.documents(examples, special, counts):
      counts['divided'] += used + len(document) > self.length
      start = 0
      while start < len(document):
        part = document[start : start + self.length - used]
        segment += 1
        put(row, 'tokens', used, part, segment)
        used, start = used + len(part), start + len(part)
        if used == self.length:
          yield row
          row, used, segment = empty_row(self.lengths), 0, 0
    if used:
      yield row


@dataclasses.dataclass(frozen=True)
class FullRows(ConcatenateAndSplit):
  """`ConcatenateAndSplit` with one segment per row: tokens attend to earlier documents in it.

  The last row is dropped unless it is full; its tokens count as `cut_tokens`.
  """

  one_segment: ClassVar[bool] = True

  def pack(self, examples, special, counts):
    """Yields rows in the order of the documents."""
    for row in super().pack(examples, special, counts):
      used = int(np.count_nonzero(row['segments']))
      if used < self.length:
        counts['cut_tokens'] += used
      else:
        yield self._joined(row)

  def _joined(self, row: Row) -> Row:
    """Returns a full row, whose segments are its documents, as one segment."""
    return row | {'segments': np.ones_like(row['segments'])}


@dataclasses.dataclass(frozen=True)
class RestartPositions(FullRows):
  """`FullRows` with positions that start at 0 in each document, as Megatron's --reset-position-ids.

  Only position encodings read these positions. Tokens attend to earlier documents of the row, so
  relative encodings get the difference of positions in two documents, which can be negative.

  Attributes:
    length: tokens per row, at least 2.
  """

  # The segments do not show where a document starts, so the positions are stored.
  positions: ClassVar[bool] = False

  def __post_init__(self):
    super().__post_init__()
    if self.length < 2:
      raise UserError('RestartPositions.length = 1: must be at least 2')

  @property
  def columns(self):
    """Ids, segments and positions of `tokens`."""
    columns = super().columns
    return columns | {'positions': columns['segments']}

  def _joined(self, row):
    return super()._joined(row) | {'positions': positions(row['segments'])}


@dataclasses.dataclass(frozen=True)
class PairPlan(PackingPlan):
  """Packs pairs of texts into rows with a source and a target.

  Attributes:
    source_length: source tokens per row, including the eos of each pair.
    target_length: target tokens per row, including the eos of each pair.
    too_long: 'drop' to drop pairs that do not fit, 'cut' to truncate them (they keep their eos).
  """

  source_length: int
  target_length: int
  too_long: Literal['drop', 'cut'] = dataclasses.field(default='drop', kw_only=True)

  fields: ClassVar[tuple[str, ...]] = ('source', 'target')

  def __post_init__(self):
    check_positive(self, 'source_length', 'target_length')

  @property
  def lengths(self):
    """Lengths of `source` and `target`."""
    return {'source': self.source_length, 'target': self.target_length}

  def fits(self, example: Ids, special: SpecialIds) -> bool:
    """Returns whether a pair is in a row: it is neither empty nor dropped."""
    added = len(special.before) + 1
    cut = self.too_long == 'cut'
    return all(
      len(example[name]) and (cut or len(example[name]) + added <= length)
      for name, length in self.lengths.items()
    )

  def _fit_pairs(
    self, examples: Iterable[Ids], special: SpecialIds, counts: collections.Counter[str]
  ) -> Iterator[Ids]:
    """Yields pairs with eos and the model's prefix ids; drops or truncates long pairs. Adds the lengths that fit all as
    `longest_source` and `longest_target` to `counts`."""
    prefix = np.array(special.before, np.int32)
    added = len(prefix) + 1
    if min(self.lengths.values()) < added:
      raise UserError(
        f'{self}: lengths must be at least {added}, the number of special tokens of a text'
      )
    for example in examples:
      if not all(len(example[name]) for name in self.fields):
        counts['empty'] += 1
        continue
      sizes = {name: len(example[name]) + added for name in self.lengths}
      for name, size in sizes.items():
        counts[f'longest_{name}'] = max(counts[f'longest_{name}'], size)
      over = {name: sizes[name] - length for name, length in self.lengths.items()}
      if max(over.values()) > 0:
        counts['dropped' if self.too_long == 'drop' else 'cut'] += 1
        if self.too_long == 'drop':
          continue
        counts['cut_tokens'] += sum(max(tokens, 0) for tokens in over.values())
      yield {
        name: np.concatenate([prefix, example[name][: length - added], [special.eos_id]])
        for name, length in self.lengths.items()
      }


@dataclasses.dataclass(frozen=True)
class PadPairs(PairPlan):
  """One pair per row.

  Attributes:
    source_length: source tokens per row, including eos.
    target_length: target tokens per row, including eos.
  """

  def pack(self, examples, special, counts):
    """Yields rows in the order of the pairs."""
    for pair in self._fit_pairs(examples, special, counts):
      yield _join_pairs(self.lengths, [pair])


@dataclasses.dataclass(frozen=True)
class PackPairs(PairPlan):
  """Several pairs per row: each pair is added to the first open row with room for both sides.

  Attributes:
    open_rows: maximum number of open rows; beyond it, the fullest row is closed.
  """

  open_rows: int = 64

  def __post_init__(self):
    super().__post_init__()
    check_positive(self, 'open_rows')

  def pack(self, examples, special, counts):
    """Yields rows in the order in which they are closed; both sides share segment numbers."""
    rooms: list[list[int]] = []
    waiting: list[list[Ids]] = []

    def close(i: int) -> Row:
      rooms.pop(i)
      return _join_pairs(self.lengths, waiting.pop(i))

    for pair in self._fit_pairs(examples, special, counts):
      source, target = len(pair['source']), len(pair['target'])
      i = self._choose([i for i, (s, t) in enumerate(rooms) if source <= s and target <= t], rooms)
      if i is None:
        if len(rooms) == self.open_rows:
          yield close(min(range(len(rooms)), key=lambda i: sum(rooms[i])))
        i = len(rooms)
        rooms.append([self.source_length, self.target_length])
        waiting.append([])
      rooms[i][0] -= source
      rooms[i][1] -= target
      waiting[i].append(pair)
      # The smallest pair has one token and eos on each side.
      if min(rooms[i]) < 2:
        yield close(i)
    while waiting:
      yield close(0)

  def _choose(self, fitting: Sequence[int], rooms: Sequence[Sequence[int]]) -> int | None:
    """Returns an open row with room for a pair; None if no row fits.

    Args:
      fitting: indices of these rows, in the order in which the rows were opened.
      rooms: source and target tokens that are free in each open row.
    """
    return fitting[0] if fitting else None


def empty_row(lengths: dict[str, int]) -> Row:
  row = {}
  for column, length in lengths.items():
    row[column] = np.zeros(length, np.int32)
    row[segments_of(column)] = np.zeros(length, np.int32)
  return row


def put(row: Row, column: str, start: int, ids: np.ndarray, segment: int) -> None:
  row[column][start : start + len(ids)] = ids
  row[segments_of(column)][start : start + len(ids)] = segment


def _join_pairs(lengths: dict[str, int], pairs: list[Ids]) -> Row:
  row = empty_row(lengths)
  for column in lengths:
    start = 0
    for segment, pair in enumerate(pairs, 1):
      put(row, column, start, pair[column], segment)
      start += len(pair[column])
  return row
