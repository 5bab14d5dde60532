"""Plans that convert labelled examples to rows of one shape, one row per example or part of it.

Texts, or pairs of texts, have a class each; sentences have a label for each word
(BERT, https://arxiv.org/abs/1810.04805, section 4).
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t2x.base.errors import UserError
from t2x.data.plans import Column, Plan, Row, check_positive, padded, text_of
from t2x.data.tokenizers.base import Encoding, Located, Tokenizer

__all__ = ['LabelledPlan', 'LabelledTexts', 'LabelledWords', 'ScoredTexts']


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledPlan(Plan):
  """Converts examples to rows of one shape.

  A row has `tokens` with the tokenizer's special ids, `types`, `segments` (1, or 0 for padding) and
  labels.

  Attributes:
    length: tokens per row.
  """

  length: int

  def __post_init__(self):
    check_positive(self, 'length')

  @property
  def columns(self):
    """Columns `tokens`, `types` and `segments`."""
    tokens = {'tokens': Column(self.length, None)}
    return tokens | {name: Column(self.length, np.uint8) for name in ('types', 'segments')}

  def room(self, tokenizer: Tokenizer, pair: bool = False) -> int:
    """Returns the number of text tokens that fit in a row beside the special tokens.

    Raises:
      UserError: no text fits.
    """
    room = self.length - tokenizer.num_added(pair)
    if room < 2 if pair else room < 1:
      raise UserError(f'rows of {self.length} tokens have no room for text: increase length')
    return room

  def padded(self, encoding: Encoding) -> Row:
    """Returns the padded row of an encoded text, without labels."""
    values = {'tokens': encoding.ids, 'types': encoding.types, 'segments': np.ones(len(encoding))}
    return {name: self.filled(array) for name, array in values.items()}

  def encoded(
    self,
    example: Mapping[str, Any],
    number: int,
    fields: Sequence[str],
    tokenizer: Tokenizer,
    counts: collections.Counter[str],
  ) -> Row:
    """Returns the row of one or two text fields of an example, truncated, without labels."""
    room = self.room(tokenizer, len(fields) == 2)
    texts = [tokenizer.locate(text_of(example, field, number)) for field in fields]
    counts['cut'] += sum(map(len, texts)) > room
    return self.padded(tokenizer.join(*_truncate(texts, room)))

  def filled(self, values: Sequence[object] | np.ndarray) -> np.ndarray:
    """Pads the values with zeros to the length of a row."""
    return padded(values, self.length)


def label_ids(labels: Sequence[str]) -> dict[str, int]:
  """Returns label -> index in the list.

  Raises:
    UserError: a label is repeated.
  """
  repeated = [label for label, count in collections.Counter(labels).items() if count > 1]
  if repeated:
    raise UserError(f'labels must be unique: {repeated[0]!r} is repeated')
  return {label: number for number, label in enumerate(labels)}


def _label_id(ids: Mapping[str, int], label: object, number: int) -> int:
  if str(label) not in ids:
    raise UserError(
      f'example {number} has the label {str(label)!r}, but the labels of the task are '
      f'{", ".join(ids)}: set them to the labels of the data'
    )
  return ids[str(label)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledTexts(LabelledPlan):
  """Converts a text, or a pair of texts, and its class to a row with `label` and `weight` (1).

  A text that does not fit is truncated at its end; in a pair, the longer text is truncated first.

  Attributes:
    labels: names of the classes, the values of `label` in the examples.
    fields: names of one or two text fields.
  """

  labels: tuple[str, ...]
  fields: tuple[str, ...] = ('text',)

  def __post_init__(self):
    super().__post_init__()
    if len(self.fields) not in (1, 2):
      raise UserError(f'fields = {list(self.fields)}: must be the names of one or two text fields')

  @property
  def columns(self):
    """Adds a label per row."""
    return super().columns | {'label': Column(1, np.int32), 'weight': Column(1, np.uint8)}

  def encode(self, examples, tokenizer, counts):
    """Yields one row per example."""
    ids = label_ids(self.labels)
    for number, example in examples:
      row = self.encoded(example, number, self.fields, tokenizer, counts)
      yield row | {'label': _label_id(ids, example.get('label'), number), 'weight': 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredTexts(LabelledPlan):
  """Converts a text, or a pair of texts, and a number to a row with `target` (float32) and `weight` (1).

  Texts are truncated as by `LabelledTexts`.

  Attributes:
    score: name of the field of the number.
    fields: names of one or two text fields.
  """

  score: str
  fields: tuple[str, ...] = ('text',)

  @property
  def columns(self):
    """Adds a number per row."""
    return super().columns | {'target': Column(1, np.float32), 'weight': Column(1, np.uint8)}

  def encode(self, examples, tokenizer, counts):
    """Yields one row per example."""
    for number, example in examples:
      score = example.get(self.score)
      if isinstance(score, bool) or not isinstance(score, int | float) or not np.isfinite(score):
        raise UserError(
          f'example {number} has {self.score!r} = {score!r}, which is no finite number: its fields are '
          f'{sorted(example)}'
        )
      row = self.encoded(example, number, self.fields, tokenizer, counts)
      yield row | {'target': np.float32(score), 'weight': 1}


def _truncate(texts: Sequence[Located], room: int) -> list[Located]:
  """Returns the texts, the longer truncated so that they have at most `room` tokens in total."""
  if len(texts) == 1:
    return [texts[0][:room]]
  first, second = map(len, texts)
  keep = min(first, max(room - second, room - room // 2))
  return [texts[0][:keep], texts[1][: room - keep]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledWords(LabelledPlan):
  """Converts a sentence to rows with a label per word, predicted by the first piece of the word.

  Adds `word_positions` (the positions of the first pieces in the row), `word_labels` and
  `word_weights` (1 for a word, else 0). A sentence longer than a row is split between words into
  several rows, so that every word is predicted exactly once.

  Attributes:
    labels: names of the labels.
  """

  labels: tuple[str, ...]

  @property
  def columns(self):
    """Adds columns of words, each as long as `tokens`."""
    small = np.uint8 if self.length <= 1 << 8 else np.uint16
    added = {'word_positions': small, 'word_labels': np.uint16, 'word_weights': np.uint8}
    return super().columns | {name: Column(self.length, dtype) for name, dtype in added.items()}

  def encode(self, examples, tokenizer, counts):
    """Yields one row for each part of a sentence that fits in a row."""
    ids, room = label_ids(self.labels), self.room(tokenizer)
    for number, example in examples:
      words, labels = _words_of(example, number)
      if not words:
        counts['empty'] += 1
        continue
      numbers = [_label_id(ids, label, number) for label in labels]
      text, starts, stops = _join(words)
      located = tokenizer.locate(text)
      first = first_pieces(located, starts, stops)
      parts = list(_parts(first, len(located), room))
      counts['cut'] += len(parts) > 1
      for begin, end, low, high in parts:
        encoding = tokenizer.join(located[low:high])
        offset = int(np.argmax(encoding.texts == 0))
        positions = offset + first[begin:end] - low
        yield self.padded(encoding) | {
          'word_positions': self.filled(positions),
          'word_labels': self.filled(numbers[begin:end]),
          'word_weights': self.filled(np.ones(end - begin)),
        }


def _words_of(example: Mapping[str, Any], number: int) -> tuple[Sequence[str], Sequence[Any]]:
  words, labels = (example.get(name) for name in ('words', 'labels'))
  if not isinstance(words, list | tuple) or not isinstance(labels, list | tuple):
    raise UserError(
      f"example {number} has no lists 'words' and 'labels': its fields are {sorted(example)}"
    )
  if len(words) != len(labels):
    raise UserError(f'example {number} has {len(words)} words and {len(labels)} labels')
  if blank := [word for word in words if not str(word).strip()]:
    raise UserError(f'example {number} has a blank word: {blank[0]!r}')
  return [str(word) for word in words], labels


def _join(words: Sequence[str]) -> tuple[str, np.ndarray, np.ndarray]:
  """Returns the sentence, and the first character and the one after the last of each word."""
  lengths = np.array([len(word) for word in words])
  stops = np.cumsum(lengths + 1) - 1
  return ' '.join(words), stops - lengths, stops


def first_pieces(
  located: Located, starts: Int[np.ndarray, 'words'], stops: Int[np.ndarray, 'words']
) -> Int[np.ndarray, 'words']:
  """Returns the index of the first piece of each word.

  A word without a piece of its own, whose characters the tokenizer omits, has the piece before it.
  """
  real = np.flatnonzero(located.spans[:, 0] < located.spans[:, 1])
  if not len(real):
    return np.zeros(len(starts), np.int64)
  candidates = np.searchsorted(located.spans[real, 1], starts, side='right')
  own = real[np.minimum(candidates, len(real) - 1)]
  has_own = (candidates < len(real)) & (located.spans[own, 0] < stops)
  return np.where(has_own, own, real[np.maximum(candidates - 1, 0)])


def _parts(first: np.ndarray, num_pieces: int, room: int) -> Iterator[tuple[int, int, int, int]]:
  """Yields words begin:end and pieces low:high of each part of a sentence, each at most `room`. A
  longer word is truncated to its first pieces."""
  # Words without a piece of their own share a piece.
  ends = np.maximum(np.append(first[1:], num_pieces), first + 1)
  begin = 0
  while begin < len(first):
    low = int(first[begin])
    fitting = int(np.searchsorted(ends[begin : begin + room], low + room, side='right'))
    end = begin + max(1, fitting)
    yield begin, end, low, min(int(ends[end - 1]), low + room)
    begin = end
