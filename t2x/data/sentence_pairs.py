"""Pairs of texts whose second text follows the first, or does not: it is unrelated (BERT,
https://arxiv.org/abs/1810.04805, section 3.1 and appendix A.2) or precedes the first (ALBERT,
https://arxiv.org/abs/1909.11942). Drawn anew in each epoch."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from t2x.base.errors import UserError
from t2x.data.labelled import LabelledPlan
from t2x.data.plans import Column, padded, text_of
from t2x.data.tokenizers.base import Located, Tokenizer

__all__ = ['Negatives', 'PairSentences', 'SentenceRows', 'Swapped', 'Unrelated']

# Between sentences: white space after a full stop, or the end of a line.
BREAK = re.compile(r'(?<=[.!?])\s+|\n+')
# Attempts to draw a row of another document.
ATTEMPTS = 100


@dataclasses.dataclass(frozen=True)
class SentenceRows(LabelledPlan):
  """Splits documents into rows of consecutive sentences that fill a pair of `length` tokens.

  A row has `tokens` without special ids, `segments` (1, or 0 for padding), `sentence` (the number of the sentence of
  each token in its row) and `document`. Sentences of more than half a row are divided.
  """

  length: int

  @property
  def columns(self):
    """Tokens, their sentences, and the number of the document."""
    columns = {name: column for name, column in super().columns.items() if name != 'types'}
    return columns | {
      'sentence': Column(self.length, np.uint16),
      'document': Column(1, np.int32),
    }

  def encode(self, examples, tokenizer, counts):
    """Yields the rows of each document."""
    room = self.room(tokenizer, pair=True)
    for number, example in examples:
      for sentences in _chunks(_pieces(text_of(example, 'text', number), tokenizer, room), room):
        lengths = [len(ids) for ids in sentences]
        yield {
          'tokens': self.filled(np.concatenate(sentences)),
          'segments': self.filled(np.ones(sum(lengths))),
          'sentence': self.filled(np.repeat(np.arange(len(lengths)), lengths)),
          'document': number,
        }


def _pieces(text: str, tokenizer: Tokenizer, room: int) -> Iterator[list[int]]:
  """Yields the ids of each sentence, at most half of the room at a time."""
  sentences = [part for part in BREAK.split(text) if part.strip()]
  half = room // 2
  for ids in tokenizer.encode_batch(sentences) if sentences else ():
    yield from (ids[start : start + half] for start in range(0, len(ids), half))


def _chunks(pieces: Iterator[list[int]], room: int) -> Iterator[list[list[int]]]:
  """Yields lists of consecutive pieces with at most `room` ids in total."""
  chunk: list[list[int]] = []
  for ids in pieces:
    if chunk and sum(map(len, chunk)) + len(ids) > room:
      yield chunk
      chunk = []
    chunk.append(ids)
  if chunk:
    yield chunk


# The ids of each sentence of a text.
Sentences = list[np.ndarray]


@runtime_checkable
class Negatives(Protocol):
  """Makes pairs of texts whose second text does not follow the first."""

  def __call__(
    self,
    first: Sentences,
    second: Sentences,
    room: int,
    row: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    rng: np.random.Generator,
  ) -> tuple[Sentences, Sentences]:
    """Returns the sentences of both texts.

    Args:
      first: sentences of a row of `SentenceRows` up to a random place.
      second: its other sentences, which may be none.
      room: maximum number of ids of both texts.
      row: the row.
      rows: all rows.
      rng: random generator.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Unrelated(Negatives):
  """Replaces the second text by one that starts at a random sentence of another document (BERT)."""

  def __call__(self, first, second, room, row, rows, rng):
    return first, list(_fitting(_unrelated(row, rng, rows), room - sum(map(len, first))))


@dataclasses.dataclass(frozen=True)
class Swapped(Negatives):
  """Swaps the texts, so that models learn the order of sentences (ALBERT, section 3.1).

  The text of a row of one sentence is paired with an unrelated one, as in the published code.
  """

  def __call__(self, first, second, room, row, rows, rng):
    return (second, first) if second else Unrelated()(first, second, room, row, rows, rng)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairSentences:
  """Converts a row of `SentenceRows` to a pair whose second text may follow the first.

  The first text has the sentences up to a random place. With probability 1/2 the second text has the remaining
  sentences of the row; else, or if no sentence remains, `negatives` makes the pair. BERT also pairs the replaced
  sentences in an extra row; here the next epoch draws all pairs anew.

  Attributes:
    tokenizer: adds its special ids.
    length: tokens per row.
    negatives: makes pairs whose second text does not follow.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  length: int
  negatives: Negatives = Unrelated()

  needs_rows: ClassVar[bool] = True

  def __call__(
    self, row: Mapping[str, Any], rng: np.random.Generator, rows: Sequence[Mapping[str, Any]]
  ) -> dict[str, Any]:
    """Returns `tokens`, `types`, `segments`: int32 [length], and `next`: 1 if the second text follows, else 0.

    Raises:
      UserError: no row of another document was drawn.
    """
    sentences = _sentences(row)
    end = int(rng.integers(1, max(len(sentences), 2)))
    first, second = sentences[:end], sentences[end:]
    follows = bool(second) and rng.random() < 0.5
    if not follows:
      room = self.length - self.tokenizer.num_added(pair=True)
      first, second = self.negatives(first, second, room, row, rows, rng)
    texts = (_located(np.concatenate(text)) for text in (first, second))
    pair = self.tokenizer.join(*texts)
    values = {'tokens': pair.ids, 'types': pair.types, 'segments': np.ones(len(pair))}
    return {name: padded(array, self.length) for name, array in values.items()} | {
      'next': np.int32(follows)
    }


def _unrelated(
  row: Mapping[str, Any], rng: np.random.Generator, rows: Sequence[Mapping[str, Any]]
) -> Iterator[np.ndarray]:
  """Yields the sentences of another document from a random sentence on."""
  for _ in range(ATTEMPTS):
    index = int(rng.integers(len(rows)))
    document = rows[index]['document']
    if document != row['document']:
      sentences = _sentences(rows[index])
      yield from sentences[int(rng.integers(len(sentences))) :]
      while (index := index + 1) < len(rows) and rows[index]['document'] == document:
        yield from _sentences(rows[index])
      return
  raise UserError(
    f'{ATTEMPTS} rows were drawn, all of document {int(row["document"])}: next sentence prediction needs many documents'
  )


def _sentences(row: Mapping[str, Any]) -> Sentences:
  """Returns the ids of each sentence of a row."""
  count = int(np.count_nonzero(row['segments']))
  starts = np.flatnonzero(np.diff(row['sentence'][:count])) + 1
  return np.split(np.asarray(row['tokens'][:count], np.int32), starts)


def _fitting(sentences: Iterator[np.ndarray], room: int) -> Iterator[np.ndarray]:
  """Yields sentences that fit, as rows are filled: unrelated texts are not longer or shorter than others. The first
  sentence is cut."""
  used = 0
  for ids in sentences:
    if used and used + len(ids) > room:
      return
    yield ids[:room]
    used += len(ids)


def _located(ids: np.ndarray) -> Located:
  return Located(ids, np.zeros((len(ids), 2), np.int64))
