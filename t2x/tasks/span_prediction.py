"""Answers that are a span of a context: where it starts and where it ends (BERT,
https://arxiv.org/abs/1810.04805, sections 4.2 and 4.3; SQuAD, https://arxiv.org/abs/1606.05250 and
https://arxiv.org/abs/1806.03822)."""

import bisect
import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.data import SpanWindows, evaluation_batches
from t2x.decode.generate import spread_over
from t2x.errors import UserError
from t2x.models import OutputKind, TextModel
from t2x.models.losses import Sums, cross_entropy
from t2x.ranges import Finite, Size
from t2x.tasks.base import TaskOutput
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.text import encoded_spec, hidden_of

# What keeps tokens outside of the context out of a softmax.
NEVER = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanPrediction(LabelledTask):
  """Finds the answer to a question in a context; long contexts are read in windows.

  The first and the last token are predicted by a softmax each over the tokens of the context and
  the class token, which stands for an answer that this window does not hold, or that there is none.
  A span's score is the sum of its two logits. The answer is the best span of a context, in any of
  its windows. It is empty where the score of the class token as start and end, the smallest over the
  windows, exceeds the best span's by more than `null_threshold`, as in BERT for SQuAD 2.0.

  Metrics: loss; span_accuracy, the windows whose start and end both are right. `Answers` evaluates the
  answers themselves.

  Attributes:
    stride: tokens from the start of a window to that of the next.
    question_length: tokens of a question that are kept.
    answer_length: most tokens of an answer.
    null_threshold: larger values give fewer empty answers; None: every question has an answer, and
      none is empty (SQuAD 1.1).
    eval_batch_size: windows that are answered at once.
  """

  stride: Size
  question_length: Size = 64
  answer_length: Size = 30
  null_threshold: Finite | None = 0.0
  eval_batch_size: Size = 64

  outputs: ClassVar[OutputKind] = 'classes per token'
  head: ClassVar[str] = 'TokenClassifier'
  text_fields: ClassVar[tuple[str, ...]] = ('question', 'context')

  @property
  def num_classes(self):
    """Start and end."""
    return 2

  @property
  def plan(self):
    """A window a row."""
    return SpanWindows(length=self.length, stride=self.stride, question_length=self.question_length)

  def transform(self, *, train):
    """Leaves out what only whoever reads the answers needs."""
    return for_model

  def spec(self, batch_size):
    """tokens, types, segments, context: int32 [batch, length]; start, end, weight: int32 [batch]."""
    one = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    by_window = {'start': one, 'end': one, 'weight': one}
    return encoded_spec(batch_size, self.length, 'context') | by_window

  def target_weights(self, batch):
    """The weight of each window."""
    return batch['weight'].astype(jnp.float32)

  def sums(self, model, batch, key):
    """The mean of the losses of start and end, and how often both are right."""
    out = hidden_of(model, batch, key)
    ends = _logits(model, out.x, batch)
    weights = self.target_weights(batch)
    true = (batch['start'], batch['end'])
    losses = [cross_entropy(logits, place) for logits, place in zip(ends, true, strict=True)]
    hits = [jnp.argmax(logits, axis=-1) == place for logits, place in zip(ends, true, strict=True)]
    total = weights.sum()
    sums: Sums = {
      'loss': (((losses[0] + losses[1]) / 2 * weights).sum(), total),
      'span_accuracy': ((hits[0] & hits[1] & (weights > 0)).astype(jnp.float32).sum(), total),
    }
    return TaskOutput(sums, out.aux)

  def answers(
    self,
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    wanted: Sequence[int],
    watched: Callable[[Iterable], Iterable] = iter,
  ) -> dict[int, str]:
    """Answers questions.

    Args:
      model: with its parameters.
      rows: the windows of the examples, in the order of the examples.
      examples: of the source.
      wanted: indices of the examples that are answered.
      watched: each batch is one item of an iterable that goes through it.

    Returns:
      The answers by index.
    """

    def first_row(example: int) -> int:
      return bisect.bisect_left(range(len(rows)), example, key=lambda i: int(rows[i]['example']))

    windows = [rows[i] for one in wanted for i in range(first_row(one), first_row(one + 1))]
    batches = evaluation_batches(windows, for_model, self.eval_batch_size)
    spread, gathered = spread_over(model, self.eval_batch_size)
    spans: list[Any] = []
    for batch in watched(batches):
      arrays = {name: spread(array) for name, array in batch.items()}
      found = jax.device_get(gathered(_best_spans(model, arrays, self.answer_length)))
      spans += zip(*found, strict=True)
    best: dict[int, tuple[float, str]] = {}
    empty: dict[int, float] = {}
    for row, (start, end, score, null) in zip(windows, spans, strict=False):
      number = int(row['example'])
      empty[number] = min(float(null), empty.get(number, math.inf))
      if number not in best or score > best[number][0]:
        context = examples[number]['context']
        best[number] = float(score), context[row['char_starts'][start] : row['char_ends'][end]]
    return {number: self._chosen(*best[number], empty[number]) for number in wanted}

  def _chosen(self, score: float, text: str, null: float) -> str:
    """The best span's text, or the empty answer."""
    return '' if self.null_threshold is not None and null - score > self.null_threshold else text

  def check_prompt(self, prompt):
    """It needs a context."""
    if not prompt.partition('\t')[2].strip():
      raise UserError('a prompt is a question, a tab and the context that holds the answer')

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """The answer to each prompt: a question, a tab, the context."""
    for prompt in prompts:
      self.check_prompt(prompt)
    pairs = [prompt.partition('\t') for prompt in prompts]
    none: dict[str, Any] = {'answers': [], 'starts': []}
    examples = [{'question': question, 'context': text} | none for question, _, text in pairs]
    rows = list(self.plan.rows(examples, self.fitted, collections.Counter()))
    found = self.answers(model, rows, examples, range(len(examples)))
    return [
      [{'text': found[i], 'tokens': [], 'log_probs': [], 'score': 0.0}] for i in range(len(found))
    ]


def for_model(row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
  """A row without the numbers that turn places into text."""
  return {
    name: value
    for name, value in row.items()
    if name not in ('example', 'char_starts', 'char_ends')
  }


def _logits(
  model: TextModel, x: Float[Array, 'batch length d_model'], batch: Mapping[str, jax.Array]
) -> tuple[Float[Array, 'batch length'], Float[Array, 'batch length']]:
  """Logits of start and end in float32, those of other tokens than the context's and the first out
  of reach."""
  logits = model.logits(x).astype(jnp.float32)
  possible = (batch['context'] != 0).at[:, 0].set(True)
  start, end = jnp.moveaxis(jnp.where(possible[..., None], logits, NEVER), -1, 0)
  return start, end


@functools.partial(jax.jit, static_argnames='longest')
def _best_spans(
  model: TextModel, batch: Mapping[str, jax.Array], longest: int
) -> tuple[Array, Array, Array, Array]:
  """Start, end and score of the best span of the context in each row, and the score of the class
  token: [batch]."""
  start, end = _logits(model, hidden_of(model, batch, None).x, batch)
  null = start[:, 0] + end[:, 0]
  inside = batch['context'] != 0
  start, end = (jnp.where(inside, logits, NEVER) for logits in (start, end))
  length = start.shape[1]
  after = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
  allowed = (after >= 0) & (after < longest)
  scores = jnp.where(allowed, start[:, :, None] + end[:, None, :], 3 * NEVER)
  best = scores.reshape(len(scores), -1).argmax(axis=1)
  return best // length, best % length, scores.reshape(len(scores), -1).max(axis=1), null
