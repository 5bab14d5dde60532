"""Questions and contexts as rows, long contexts in overlapping windows (BERT,
https://arxiv.org/abs/1810.04805, as its run_squad.py does)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.data.labelled import LabelledPlan
from t2x.data.plans import Column, text_of
from t2x.data.tokenizers import Located, Tokenizer
from t2x.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanWindows(LabelledPlan):
  """A question and a window of its context, as a pair of texts, and the place of the answer.

  Adds `context` (1 for tokens of the context), `start` and `end` (the places of the answer's first
  and last token; the class token's, 0, where the window does not hold it whole) and `weight` (1).
  For whoever turns places into text again: `example` (its number), `char_starts` and `char_ends`
  (where a token of the context stands in it).

  Examples have `question`, `context`, `answers` and `starts` (texts, and the places of their first
  characters in the context): the first answer is the one that is learnt, and without any there is
  none to be found.

  Attributes:
    stride: tokens from the start of a window to that of the next.
    question_length: tokens of a question that are kept.
  """

  stride: int
  question_length: int

  def __post_init__(self):
    super().__post_init__()
    for name in ('stride', 'question_length'):
      if getattr(self, name) < 1:
        raise UserError(f'{type(self).__name__}.{name} = {getattr(self, name)}: must be at least 1')

  @property
  def columns(self):
    """Numbers by token, and some by window."""
    by_token = {'context': np.uint8, 'char_starts': np.int32, 'char_ends': np.int32}
    by_window = {'start': np.int32, 'end': np.int32, 'weight': np.uint8, 'example': np.int32}
    return (
      super().columns
      | {name: Column(self.length, dtype) for name, dtype in by_token.items()}
      | {name: Column(1, dtype) for name, dtype in by_window.items()}
    )

  def rows(self, examples, tokenizer, counts):
    """At least one row an example. Those that need more count as `windowed`."""
    room = self.room(tokenizer, pair=True)
    _check_class_token(tokenizer)
    seen = ('', Located(np.zeros(0, np.int32), np.zeros((0, 2), np.int32)))
    for number, example in enumerate(examples):
      question = tokenizer.locate(text_of(example, 'question', number))[: self.question_length]
      if len(question) >= room:
        raise UserError(
          f'example {number}: a question of {len(question)} tokens leaves no room for its context in '
          f'rows of {self.length}: set length to more or question_length to less'
        )
      text = text_of(example, 'context', number)
      # Neighbours often ask about the same context.
      seen = seen if seen[0] == text else (text, tokenizer.locate(text))
      answer = _pieces_of(_answer(example, text, number), seen[1])
      size = room - len(question)
      step = min(self.stride, size)
      more = -(-max(len(seen[1]) - size, 0) // step)
      counts['windowed'] += more > 0
      for low in range(0, (more + 1) * step, step):
        row = self._window(question, seen[1], low, size, answer, tokenizer)
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
    before = int(np.argmax(inside))
    start = end = 0
    if answer is not None and low <= answer[0] and answer[1] < low + size:
      start, end = (before + place - low for place in answer)
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
      'spans are looked for behind a class token, which says that there is none, and this tokenizer '
      'begins a text without: choose another'
    )


def _answer(example: Mapping[str, Any], context: str, number: int) -> tuple[int, int] | None:
  """First character of the answer and the one behind its last; None: there is no answer."""
  answers, starts = example.get('answers'), example.get('starts')
  if not isinstance(answers, list | tuple) or not isinstance(starts, list | tuple):
    raise UserError(
      f"example {number} has no lists 'answers' and 'starts': its fields are {sorted(example)}"
    )
  if not answers:
    return None
  if not starts or context[starts[0] : starts[0] + len(answers[0])] != answers[0]:
    raise UserError(
      f'example {number}: the answer {answers[0]!r} does not stand in its context at the character '
      f'that `starts` says ({starts[0] if starts else "nothing"})'
    )
  return starts[0], starts[0] + len(answers[0])


def _pieces_of(characters: tuple[int, int] | None, context: Located) -> tuple[int, int] | None:
  """The first and the last piece that share a character with the answer."""
  if characters is None:
    return None
  spans = context.spans
  real = spans[:, 0] < spans[:, 1]
  shared = np.flatnonzero(real & (spans[:, 1] > characters[0]) & (spans[:, 0] < characters[1]))
  return (int(shared[0]), int(shared[-1])) if len(shared) else None
