"""Extractive question answering: prediction of the start and the end of the answer in a context (BERT,
https://arxiv.org/abs/1810.04805, sections 4.2 and 4.3; SQuAD, https://arxiv.org/abs/1606.05250 and
https://arxiv.org/abs/1806.03822)."""

import bisect
import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Finite, Size
from t2x.data import SpanWindows
from t2x.data.sources.subset import spread
from t2x.layers.marks import Marks
from t2x.models import TextModel
from t2x.models.losses import Sums, cross_entropy
from t2x.models.ranks import choice
from t2x.tasks.base import Task
from t2x.tasks.evaluators import NUM_SAMPLES, Evaluation, TaskEvaluator
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.prediction import predict
from t2x.tasks.squad import exact_match, word_f1
from t2x.tasks.text import encoded_spec, hidden_of

__all__ = ['Answers', 'SpanPrediction']

# The logit of tokens outside of the context.
MASKED = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanPrediction(LabelledTask):
  """Finds the answer to a question in a context; long contexts are split into overlapping windows.

  Start and end of the answer are predicted by one softmax each over the tokens of the context and the class
  token. The class token is the target of windows that do not contain the answer. The score of a span is
  the sum of its two logits, and the answer is the span with the best score in all windows of the context.
  As in BERT for SQuAD 2.0, the answer is empty if the smallest score of the class token over the windows
  exceeds the best score by more than `null_threshold`.

  Metrics: loss; span_accuracy, the fraction of windows with correct start and end. `Answers` evaluates the
  texts of the answers.

  Attributes:
    stride: distance in tokens between the starts of consecutive windows.
    question_length: maximum number of tokens of a question; longer questions are truncated.
    answer_length: maximum number of tokens of an answer.
    null_threshold: larger values give fewer empty answers; None: no answer is empty (SQuAD 1.1).
    eval_batch_size: windows per batch in evaluation.
  """

  stride: Size
  question_length: Size = 64
  answer_length: Size = 30
  null_threshold: Finite | None = 0.0
  eval_batch_size: Size = 64

  outputs: ClassVar[str] = 'classes per token'
  head: ClassVar[str] = 'TokenClassifier'
  text_fields: ClassVar[tuple[str, ...]] = ('question', 'context')

  @property
  def num_classes(self):
    """Number of logits per token: start and end."""
    return 2

  @property
  def plan(self):
    """One window per row."""
    return SpanWindows(length=self.length, stride=self.stride, question_length=self.question_length)

  def transform(self, *, train):
    """Returns the transform that removes the columns that the model does not need."""
    return drop_text_columns

  def spec(self, batch_size):
    """Returns tokens, types, segments, context: int32 [batch, length]; start, end, weight: int32 [batch]."""
    scalar = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    by_window = {'start': scalar, 'end': scalar, 'weight': scalar}
    return encoded_spec(batch_size, self.length, 'context') | by_window

  def sums(self, model, batch, key):
    """Returns the mean loss of start and end, and the fraction of windows with both correct."""
    out = hidden_of(model, batch, key, self.token_marks)
    both = _logits(model, out.x, batch)
    weights = self.weighted_targets(batch)
    labels = (batch['start'], batch['end'])
    losses = [cross_entropy(logits, label) for logits, label in zip(both, labels, strict=True)]
    hits = [choice(logits) == label for logits, label in zip(both, labels, strict=True)]
    total = weights.sum()
    sums: Sums = {
      'loss': (((losses[0] + losses[1]) / 2 * weights).sum(), total),
      'span_accuracy': ((hits[0] & hits[1] & (weights > 0)).astype(jnp.float32).sum(), total),
    }
    return self.with_auxiliaries(sums, model, out, batch, key)

  def answers(
    self,
    predict: Callable[..., Iterator[tuple[Mapping[str, Any], Any]]],
    rows: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    indices: Sequence[int],
  ) -> dict[int, str | None]:
    """Answers questions.

    Args:
      predict: `(rows, function, batch_size)` yields each row with its output; see `Evaluated.predict`.
      rows: the windows of the examples, in the order of the examples.
      examples: the examples of the source.
      indices: indices of the examples to answer.

    Returns:
      Index of the example -> answer; None if several spans of a window have the best score, or a score is NaN.
    """

    def first_row(example: int) -> int:
      return bisect.bisect_left(range(len(rows)), example, key=lambda i: int(rows[i]['example']))

    windows = [rows[i] for index in indices for i in range(first_row(index), first_row(index + 1))]
    best_spans = functools.partial(_best_spans, longest=self.answer_length, marks=self.token_marks)
    best: dict[int, tuple[float, str | None]] = {}
    empty: dict[int, float] = {}
    for row, (start, end, score, null) in predict(windows, best_spans, self.eval_batch_size):
      number = int(row['example'])
      # NaN of a window is that of the example.
      empty[number] = float(np.minimum(null, empty.get(number, math.inf)))
      if number not in best or np.isnan(score) or score > best[number][0]:
        span = slice(row['char_starts'][start], row['char_ends'][end])
        best[number] = float(score), examples[number]['context'][span] if start >= 0 else None
    return {number: self._choose(*best[number], empty[number]) for number in indices}

  def _choose(self, score: float, text: str | None, null: float) -> str | None:
    """Returns the text of the best span, or the empty answer."""
    if math.isnan(null - score):
      return None
    return '' if self.null_threshold is not None and null - score > self.null_threshold else text

  def check_prompt(self, prompt):
    """Raises UserError if the prompt has no context."""
    if not prompt.partition('\t')[2].strip():
      raise UserError('a prompt must be a question, a tab and the context that contains the answer')

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Answers prompts, each of which is a question, a tab and a context."""
    for prompt in prompts:
      self.check_prompt(prompt)
    pairs = [prompt.partition('\t') for prompt in prompts]
    no_labels: dict[str, Any] = {'answers': [], 'starts': []}
    examples = [{'question': question, 'context': text} | no_labels for question, _, text in pairs]
    rows = list(self.plan.rows(examples, self.fitted, collections.Counter()))

    def predicted(rows, function, batch_size):
      return predict(model, rows, drop_text_columns, function, batch_size)

    texts = self.answers(predicted, rows, examples, range(len(examples)))
    return [
      [{'text': texts[i] or '', 'tokens': [], 'log_probs': [], 'score': 0.0}]
      for i in range(len(texts))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers(TaskEvaluator):
  """Computes exact match and F1 of answers to questions as SQuAD's script does, as fractions.

  Questions of which several spans, or NaN, have the best score are wrong.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (SpanPrediction,)

  def __call__(self, evaluated):
    """Answers the questions of the split and returns the metrics."""
    task = evaluated.task
    split = self._split(task)
    examples = task.source.load(split)
    count = min(len(examples), self.num_examples or len(examples))
    indices = spread(count, len(examples))
    answers = task.answers(evaluated.predict, evaluated.rows(split), examples, indices)
    pairs = [(answers[i], list(examples[i]['answers'])) for i in indices]
    scores = {
      # None is no answer, not the empty one.
      name: np.array([0 if a is None else score(a, gold) for a, gold in pairs], float)
      for name, score in (('exact_match', exact_match), ('f1', word_f1))
    }
    metrics = {'examples': float(len(pairs))}
    metrics |= {name: float(np.mean(values)) for name, values in scores.items()}
    samples = [
      {'question': examples[i]['question'], 'answers': ' | '.join(gold), 'output': answer or ''}
      for i, (answer, gold) in zip(indices[:NUM_SAMPLES], pairs, strict=False)
    ]
    return Evaluation(metrics, samples, examples=scores)


def drop_text_columns(row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
  """Removes the columns that map tokens to the text of the context."""
  return {
    name: value
    for name, value in row.items()
    if name not in ('example', 'char_starts', 'char_ends')
  }


def _logits(
  model: TextModel, x: Float[Array, 'batch length d_model'], batch: Mapping[str, jax.Array]
) -> tuple[Float[Array, 'batch length'], Float[Array, 'batch length']]:
  """Returns the logits of start and end in float32, masked except for the context and the class token."""
  logits = model.logits(x).astype(jnp.float32)
  allowed = (batch['context'] != 0).at[:, 0].set(True)
  start, end = jnp.moveaxis(jnp.where(allowed[..., None], logits, MASKED), -1, 0)
  return start, end


def _best_spans(
  model: TextModel, batch: Mapping[str, jax.Array], longest: int, marks: Marks
) -> tuple[Array, Array, Array, Array]:
  """Returns start, end and score of the best span of each row, and the score of the class token: [batch].

  The start is -1 if several spans have the best score, or one is NaN.
  """
  start, end = _logits(model, hidden_of(model, batch, None, marks).x, batch)
  null = start[:, 0] + end[:, 0]
  inside = batch['context'] != 0
  start, end = (jnp.where(inside, logits, MASKED) for logits in (start, end))
  length = start.shape[1]
  distance = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
  allowed = (distance >= 0) & (distance < longest)
  scores = jnp.where(allowed, start[:, :, None] + end[:, None, :], 3 * MASKED)
  scores = scores.reshape(len(scores), -1)
  best = choice(scores)
  # The maximum alone may ignore NaN.
  score = jnp.where(jnp.isnan(scores).any(axis=1), jnp.nan, scores.max(axis=1))
  return best // length, best % length, score, null
