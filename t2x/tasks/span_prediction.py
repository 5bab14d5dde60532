"""Answers that are a span of a context: where it starts and where it ends (BERT,
https://arxiv.org/abs/1810.04805, section 4.2; SQuAD, https://arxiv.org/abs/1606.05250)."""

import bisect
import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.data import SpanWindows, evaluation_batches
from t2x.decode.generate import spread_over
from t2x.errors import UserError
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.losses import Sums, cross_entropy
from t2x.tasks.squad import exact_match, word_f1
from t2x.tasks.text import encoded_spec, hidden_of

__all__ = ['SpanPrediction']

# What keeps tokens outside of the context out of a softmax.
NEVER = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanPrediction(LabelledTask):
  """Finds the answer to a question in a context; long contexts are read in windows.

  The first and the last token are predicted by a softmax each over the tokens of the context and
  the class token, which stands for an answer that this window does not hold. Of all spans of a
  context, in any of its windows, the one with the largest sum of the two logits is the answer.

  Metrics: loss; span_accuracy, the windows whose start and end both are right; exact_match and f1
  over the first `eval_examples` examples as SQuAD's script computes them, as fractions.

  Attributes:
    stride: tokens from the start of a window to that of the next.
    question_length: tokens of a question that are kept.
    answer_length: most tokens of an answer.
    eval_batch_size: windows that are answered at once.
  """

  stride: int
  question_length: int = 64
  answer_length: int = 30
  eval_batch_size: int = 64

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

  def transform(self, tokenizer, *, train):
    """Leaves out what only whoever reads the answers needs."""
    return for_model

  def spec(self, batch_size):
    """tokens, types, segments, context: int32 [batch, length]; start, end, weight: int32 [batch]."""
    one = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    by_window = {'start': one, 'end': one, 'weight': one}
    return encoded_spec(batch_size, self.length, 'context') | by_window

  def sums(self, model, batch, key):
    """The mean of the losses of start and end, and how often both are right."""
    out = hidden_of(model, batch, key)
    ends = _logits(model, out.x, batch)
    weights = batch['weight'].astype(jnp.float32)
    true = (batch['start'], batch['end'])
    losses = [cross_entropy(logits, place) for logits, place in zip(ends, true, strict=True)]
    hits = [jnp.argmax(logits, axis=-1) == place for logits, place in zip(ends, true, strict=True)]
    total = weights.sum()
    sums: Sums = {
      'loss': (((losses[0] + losses[1]) / 2 * weights).sum(), total),
      'span_accuracy': ((hits[0] & hits[1] & (weights > 0)).astype(jnp.float32).sum(), total),
    }
    return sums, out.aux

  def generation_metrics(self, model, tokenizer, split, limit):
    """exact_match and f1 over the first `limit` examples, and ten answers."""
    examples = self.source.load(split)
    wanted = examples if limit is None else examples[:limit]
    if not wanted:
      return {}, []
    told = self.answers(model, self.rows(split, tokenizer), wanted)
    pairs = list(zip(told, [list(example['answers']) for example in wanted], strict=True))
    metrics = {
      'generated_examples': float(len(pairs)),
      'exact_match': float(np.mean([exact_match(answer, gold) for answer, gold in pairs])),
      'f1': float(np.mean([word_f1(answer, gold) for answer, gold in pairs])),
    }
    samples = [
      {'question': example['question'], 'answers': ' | '.join(gold), 'output': answer}
      for example, (answer, gold) in zip(wanted[:10], pairs, strict=False)
    ]
    return metrics, samples

  def answers(
    self, model: Any, rows: Sequence[Mapping[str, Any]], examples: Sequence[Mapping[str, Any]]
  ) -> list[str]:
    """The answer to each of the examples, with which `rows` begin."""
    best: dict[int, tuple[float, str]] = {}
    # Rows stand in the order of their examples.
    count = bisect.bisect_left(
      range(len(rows)), len(examples), key=lambda i: int(rows[i]['example'])
    )
    windows = [rows[i] for i in range(count)]
    batches = evaluation_batches(windows, for_model, self.eval_batch_size)
    spread, gathered = spread_over(model, self.eval_batch_size)
    spans: list[Any] = []
    for batch in batches:
      arrays = {name: spread(array) for name, array in batch.items()}
      found = jax.device_get(gathered(_best_spans(model, arrays, self.answer_length)))
      spans += zip(*found, strict=True)
    for row, (start, end, score) in zip(windows, spans, strict=False):
      number = int(row['example'])
      if number not in best or score > best[number][0]:
        context = examples[number]['context']
        best[number] = score, context[row['char_starts'][start] : row['char_ends'][end]]
    return [best[number][1] for number in range(len(examples))]

  def generate(self, model, tokenizer, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """The answer to each prompt: a question, a tab, the context."""
    pairs = [prompt.partition('\t') for prompt in prompts]
    if not all(text.strip() for _, _, text in pairs):
      raise UserError('a prompt is a question, a tab and the context that holds the answer')
    none: dict[str, Any] = {'answers': [], 'starts': []}
    examples = [{'question': question, 'context': text} | none for question, _, text in pairs]
    rows = list(self.plan.rows(examples, tokenizer, collections.Counter()))
    found = self.answers(model, rows, examples)
    return [[{'text': text, 'tokens': [], 'log_probs': [], 'score': 0.0}] for text in found]


def for_model(row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
  """A row without the numbers that turn places into text."""
  return {
    name: value
    for name, value in row.items()
    if name not in ('example', 'char_starts', 'char_ends')
  }


def _logits(
  model: Any, x: Float[Array, 'batch length d_model'], batch: Mapping[str, jax.Array]
) -> tuple[Float[Array, 'batch length'], Float[Array, 'batch length']]:
  """Logits of start and end in float32, those of other tokens than the context's and the first out
  of reach."""
  logits = model.logits(x).astype(jnp.float32)
  possible = (batch['context'] != 0).at[:, 0].set(True)
  start, end = jnp.moveaxis(jnp.where(possible[..., None], logits, NEVER), -1, 0)
  return start, end


@functools.partial(jax.jit, static_argnames='longest')
def _best_spans(
  model: Any, batch: Mapping[str, jax.Array], longest: int
) -> tuple[Array, Array, Array]:
  """Start, end and score of the best span of the context in each row: [batch]."""
  start, end = _logits(model, hidden_of(model, batch, None).x, batch)
  inside = batch['context'] != 0
  start, end = (jnp.where(inside, logits, NEVER) for logits in (start, end))
  length = start.shape[1]
  after = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
  allowed = (after >= 0) & (after < longest)
  scores = jnp.where(allowed, start[:, :, None] + end[:, None, :], 3 * NEVER)
  best = scores.reshape(len(scores), -1).argmax(axis=1)
  return best // length, best % length, scores.reshape(len(scores), -1).max(axis=1)
