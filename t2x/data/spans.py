"""Plan for extractive question answering, with long contexts in overlapping windows
(BERT, https://arxiv.org/abs/1810.04805, and its run_squad.py)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.data.labelled import LabelledPlan
from t2x.data.plans import Column, check_positive, text_of
from t2x.data.tokenizers.base import Located, Tokenizer

__all__ = ['SpanWindows']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanWindows(LabelledPlan):
  """Converts a question and the windows of its context to rows with the position of the answer.

  Adds `context` (1 for tokens of the context), `start` and `end` (positions of the first and last
  token of the answer; 0, the class token, if the window does not contain all of it) and `weight`
  (1). To convert positions to text, it adds `example` (the number of the example), `char_starts`
  and `char_ends` (the span of a context token in characters of the context).

  Examples have `question`, `context`, `answers` and `starts` (texts, and the offsets of their first
  characters in the context). The first answer is the label; without answers, the question has none.

  Attributes:
    stride: tokens between the starts of consecutive windows.
    question_length: maximum number of question tokens; the rest is truncated.
  """

  stride: int
  question_length: int

  def __post_init__(self):
    super().__post_init__()
    check_positive(self, 'stride', 'question_length')

  @property
  def columns(self):
    """Adds columns per token and columns per window."""
    by_token = {'context': np.uint8, 'char_starts': np.int32, 'char_ends': np.int32}
    by_window = {'start': np.int32, 'end': np.int32, 'weight': np.uint8, 'example': np.int32}
    return (
      super().columns
      | {name: Column(self.length, dtype) for name, dtype in by_token.items()}
      | {name: Column(1, dtype) for name, dtype in by_window.items()}
    )

  def encode(self, examples, tokenizer, counts):
    """Yields at least one row per example. Examples with several rows count as `windowed`."""
    room = self.room(tokenizer, pair=True)
    _check_class_token(tokenizer)
    cached = ('', Located(np.zeros(0, np.int32), np.zeros((0, 2), np.int32)))
    for number, example in examples:
      question = tokenizer.locate(text_of(example, 'question', number))[: self.question_length]
      if len(question) >= room:
        raise UserError(
          f'example {number}: a question of {len(question)} tokens leaves no room for its context '
          f'in rows of {self.length}: increase length or reduce question_length'
        )
      text = text_of(example, 'context', number)
      # Consecutive questions often share a context.
      cached = cached if cached[0] == text else (text, tokenizer.locate(text))
      answer = _answer_pieces(_answer(example, text, number), cached[1])
      size = room - len(question)
      step = min(self.stride, size)
      num_extra = -(-max(len(cached[1]) - size, 0) // step)
      counts['windowed'] += num_extra > 0
      for low in range(0, (num_extra + 1) * step, step):
        row = self._window(question, cached[1], low, size, answer, tokenizer)
        yield row | {'example': number, 'weight': 1}

  def _window(
    self,
    question: Located,
    context: Located,
    low: int,
    size: int,
    answer: tuple[int, int] | None,
    tokenizer: Tokenizer,
  ) -> dict[str, Any]:
    encoding = tokenizer.join(question, context[low : low + size])
    inside = encoding.texts == 1
    offset = int(np.argmax(inside))
    start = end = 0
    if answer is not None and low <= answer[0] and answer[1] < low + size:
      start, end = (offset + place - low for place in answer)
    spans = np.where(inside[:, None], encoding.spans, 0)
    return self.padded(encoding) | {
      'context': self.filled(inside),
      'char_starts': self.filled(spans[:, 0]),
      'char_ends': self.filled(spans[:, 1]),
      'start': start,
      'end': end,
    }


def _check_class_token(tokenizer: Tokenizer) -> None:
  if isinstance(tokenizer.pair[0][0], str):
    raise UserError(
      'the tokenizer must begin a text with a class token, which marks questions without an '
      'answer: choose another tokenizer'
    )


def _answer(example: Mapping[str, Any], context: str, number: int) -> tuple[int, int] | None:
  """Returns the first character of the answer and the one after its last; None without answers."""
  answers, starts = example.get('answers'), example.get('starts')
  if not isinstance(answers, list | tuple) or not isinstance(starts, list | tuple):
    raise UserError(
      f"example {number} has no lists 'answers' and 'starts': its fields are {sorted(example)}"
    )
  if not answers:
    return None
  if not starts or context[starts[0] : starts[0] + len(answers[0])] != answers[0]:
    raise UserError(
      f'example {number}: the answer {answers[0]!r} is not in its context at the character offset '
      f"in 'starts' ({starts[0] if starts else 'empty'}): correct the offset"
    )
  return starts[0], starts[0] + len(answers[0])


def _answer_pieces(characters: tuple[int, int] | None, context: Located) -> tuple[int, int] | None:
  """Returns the first and the last piece that overlap the answer; None if no piece does."""
  if characters is None:
    return None
  spans = context.spans
  real = spans[:, 0] < spans[:, 1]
  shared = np.flatnonzero(real & (spans[:, 1] > characters[0]) & (spans[:, 0] < characters[1]))
  return (int(shared[0]), int(shared[-1])) if len(shared) else None
