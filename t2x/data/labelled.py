"""How labelled examples become rows of one shape, one example (or a part of a long one) a row.

Whole texts, or pairs of them, with a class each; sentences with a label for each word; questions
with the place of their answer in a context (https://arxiv.org/abs/1810.04805, section 4).
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t2x.data.plans import Column, Plan, Row, text_of
from t2x.data.tokenizers import Encoding, Located, Tokenizer
from t2x.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledPlan(Plan):
  """Turns examples into rows: `tokens` with the special ids that the tokenizer adds, `types`,
  `segments` (1, and 0 for padding), and what is to be predicted.

  Attributes:
    length: tokens a row.
  """

  length: int

  def __post_init__(self):
    if self.length < 1:
      raise UserError(f'{type(self).__name__}.length = {self.length}: must be at least 1')

  @property
  def columns(self):
    """`tokens`, `types` and `segments`."""
    tokens = {'tokens': Column(self.length, None)}
    return tokens | {name: Column(self.length, np.uint8) for name in ('types', 'segments')}

  def room(self, tokenizer: Tokenizer, pair: bool = False) -> int:
    """Tokens of text that a row has place for.

    Raises:
      UserError: none.
    """
    room = self.length - tokenizer.num_added(pair)
    if room < 2 if pair else room < 1:
      raise UserError(f'rows of {self.length} tokens have no room for text: set length to more')
    return room

  def padded(self, encoding: Encoding) -> Row:
    """The row of an encoded text without what is to be predicted."""
    values = {'tokens': encoding.ids, 'types': encoding.types, 'segments': np.ones(len(encoding))}
    return {name: self.filled(array) for name, array in values.items()}

  def filled(self, values: Any) -> np.ndarray:
    """The values, and zeros up to the length of a row."""
    row = np.zeros(self.length, np.int32)
    row[: len(values)] = values
    return row


def label_ids(labels: Sequence[str]) -> dict[str, int]:
  """Label -> its place in the list.

  Raises:
    UserError: one stands there twice.
  """
  twice = [label for label, count in collections.Counter(labels).items() if count > 1]
  if twice:
    raise UserError(f'labels name {twice[0]!r} more than once')
  return {label: number for number, label in enumerate(labels)}


def _id_of(ids: Mapping[str, int], label: Any, number: int) -> int:
  if str(label) not in ids:
    raise UserError(
      f'example {number} has the label {str(label)!r}, and the labels are {", ".join(ids)}: '
      'set the labels of the task to those of the data'
    )
  return ids[str(label)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledTexts(LabelledPlan):
  """A text, or a pair of texts, and its class: adds `label` and `weight` (1).

  What does not fit is cut at its end; of a pair the longer text first.

  Attributes:
    labels: the classes' names, which examples have as `label`.
    fields: the text fields, one or two.
  """

  labels: tuple[str, ...]
  fields: tuple[str, ...] = ('text',)

  def __post_init__(self):
    super().__post_init__()
    if len(self.fields) not in (1, 2):
      raise UserError(f'fields = {list(self.fields)}: one text or a pair of them is classified')

  @property
  def columns(self):
    """One label a row."""
    return super().columns | {'label': Column(1, np.int32), 'weight': Column(1, np.uint8)}

  def rows(self, examples, tokenizer, counts):
    """A row an example."""
    ids, pair = label_ids(self.labels), len(self.fields) == 2
    room = self.room(tokenizer, pair)
    for number, example in enumerate(examples):
      texts = [tokenizer.locate(text_of(example, field, number)) for field in self.fields]
      counts['cut'] += sum(map(len, texts)) > room
      label = _id_of(ids, example.get('label'), number)
      yield self.padded(tokenizer.join(*_fitting(texts, room))) | {'label': label, 'weight': 1}


def _fitting(texts: Sequence[Located], room: int) -> list[Located]:
  """The texts, the longer one cut until they fit together."""
  if len(texts) == 1:
    return [texts[0][:room]]
  first, second = map(len, texts)
  keep = min(first, max(room - second, room - room // 2))
  return [texts[0][:keep], texts[1][: room - keep]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledWords(LabelledPlan):
  """The words of a sentence and the label of each, which its first piece is to tell: adds
  `word_positions` (the places of first pieces in the row), `word_labels` and `word_weights` (1 for a
  word, else 0).

  A sentence longer than a row goes on in the next, cut between words, so that every word is told
  exactly once.

  Attributes:
    labels: the labels' names.
  """

  labels: tuple[str, ...]

  @property
  def columns(self):
    """As many places for words as for tokens."""
    small = np.uint8 if self.length <= 1 << 8 else np.uint16
    added = {'word_positions': small, 'word_labels': np.uint16, 'word_weights': np.uint8}
    return super().columns | {name: Column(self.length, dtype) for name, dtype in added.items()}

  def rows(self, examples, tokenizer, counts):
    """A row for each part of a sentence that fits."""
    ids, room = label_ids(self.labels), self.room(tokenizer)
    for number, example in enumerate(examples):
      words, labels = _words_of(example, number)
      if not words:
        counts['empty'] += 1
        continue
      numbers = [_id_of(ids, label, number) for label in labels]
      text, starts, stops = _joined(words)
      located = tokenizer.locate(text)
      first = first_pieces(located, starts, stops)
      parts = list(_parts(first, len(located), room))
      counts['cut'] += len(parts) > 1
      for begin, end, low, high in parts:
        encoding = tokenizer.join(located[low:high])
        before = int(np.argmax(encoding.texts == 0))
        places = before + first[begin:end] - low
        yield self.padded(encoding) | {
          'word_positions': self.filled(places),
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
    raise UserError(f'example {number} has a word without a character: {blank[0]!r}')
  return [str(word) for word in words], labels


def _joined(words: Sequence[str]) -> tuple[str, np.ndarray, np.ndarray]:
  """The sentence, and where in it each word starts and stops."""
  lengths = np.array([len(word) for word in words])
  stops = np.cumsum(lengths + 1) - 1
  return ' '.join(words), stops - lengths, stops


def first_pieces(
  located: Located, starts: Int[np.ndarray, 'words'], stops: Int[np.ndarray, 'words']
) -> Int[np.ndarray, 'words']:
  """The number of the first piece of each word. A word without a piece of its own (nothing but
  characters that the tokenizer leaves out) has the piece before it."""
  real = np.flatnonzero(located.spans[:, 0] < located.spans[:, 1])
  if not len(real):
    return np.zeros(len(starts), np.int64)
  found = np.searchsorted(located.spans[real, 1], starts, side='right')
  own = real[np.minimum(found, len(real) - 1)]
  has_one = (found < len(real)) & (located.spans[own, 0] < stops)
  return np.where(has_one, own, real[np.maximum(found - 1, 0)])


def _parts(first: np.ndarray, num_pieces: int, room: int) -> Iterator[tuple[int, int, int, int]]:
  """Words begin..end and pieces low..high of each part of a sentence, neither more than the room; a
  word that is longer keeps its first pieces."""
  # Words without a piece of their own share one.
  ends = np.maximum(np.append(first[1:], num_pieces), first + 1)
  begin = 0
  while begin < len(first):
    low = int(first[begin])
    fitting = int(np.searchsorted(ends[begin : begin + room], low + room, side='right'))
    end = begin + max(1, fitting)
    yield begin, end, low, min(int(ends[end - 1]), low + room)
    begin = end
