"""Questions about pictures with a closed list of answers (VQA, https://arxiv.org/abs/1505.00468)."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Size
from t2x.data import Tokenizer
from t2x.data.sources.subset import spread
from t2x.layers import Tokens
from t2x.models import Inputs, Output
from t2x.models.losses import classification_sums
from t2x.models.ranks import choice
from t2x.tasks.base import Task, example_weights
from t2x.tasks.captions import ImageModality
from t2x.tasks.evaluators import Evaluated, Evaluation, TaskEvaluator
from t2x.tasks.text import TextTask

__all__ = ['PictureAnswers', 'PictureQuestions']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareQuestion:
  """Prepares a picture, tokenises its question and looks up its answer.

  Attributes:
    modality: prepares the picture.
    tokenizer: encodes the question.
    fingerprint: fingerprint of the tokenizer, for the fingerprint of the rows.
    length: tokens of the question.
    answers: the answers in the order of their labels.
    train: whether the picture is augmented.
  """

  modality: ImageModality
  tokenizer: Tokenizer = dataclasses.field(repr=False)
  fingerprint: str
  length: int
  answers: tuple[str, ...]
  train: bool

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns `tokens` and `segments` int32 [length], `image` float32 [height, width, channels],
    `label` int32 and `weight`.

    Raises:
      UserError: the question is too long, or `answers` lacks the answer.
    """
    ids = self.tokenizer.encode_pair(row['question']).ids
    if len(ids) > self.length:
      raise UserError(
        f'the question {row["question"]!r} has {len(ids)} tokens, but PictureQuestions.length = {self.length}: raise it'
      )
    if row['answer'] not in self.answers:
      raise UserError(
        f'the answer {row["answer"]!r} of {row["question"]!r} is none of PictureQuestions.answers: add it'
      )
    tokens = np.full(self.length, self.tokenizer.pad_id, np.int32)
    tokens[: len(ids)] = ids
    return {
      'tokens': tokens,
      'segments': (np.arange(self.length) < len(ids)).astype(np.int32),
      'image': self.modality.prepare(row['image'], rng if self.train else None)['source'],
      'label': np.int32(self.answers.index(row['answer'])),
      'weight': np.float32(1.0),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureQuestions(TextTask):
  """Predicts the answer to a question about a picture, one of a list. Examples have `image`, `question` and `answer`.

  Attributes:
    modality: prepares pictures.
    answers: the answers.
    length: maximum number of tokens of a question, including special tokens.
  """

  modality: ImageModality
  answers: Annotated[Sequence[str], NonEmpty]
  length: Size

  inputs: ClassVar[Inputs] = {'tokens': 'ids', 'image': 'image'}
  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'AnswerClassifier'
  unit: ClassVar[str] = 'examples'
  text_fields: ClassVar[tuple[str, ...]] = ('question',)
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'
  example_metrics: ClassVar[frozenset[str]] = frozenset({'loss', 'accuracy'})

  @property
  def class_names(self):
    return self.answers

  @property
  def plan(self):
    """None: examples are prepared when they are read."""

  def transform(self, *, train):
    """Returns the transform that prepares pictures, questions and answers."""
    return PrepareQuestion(
      modality=self.modality,
      tokenizer=self.fitted,
      fingerprint=self.fitted.fingerprint,
      length=self.length,
      answers=tuple(self.answers),
      train=train,
    )

  def spec(self, batch_size):
    """Returns tokens, segments: int32 [batch, length]; image: float32 [batch, height, width, channels]; label: int32
    and weight: float32 [batch]."""
    ids = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    return {
      'tokens': ids,
      'segments': ids,
      'image': self.modality.spec(batch_size)['source'],
      'label': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def check_model(self, model):
    """Also raises UserError if `pieces` is set, or the head has another number of classes."""
    super().check_model(model)
    if self.pieces is not None:
      raise UserError('PictureQuestions.pieces is not supported: leave it out')
    if model.spec.num_classes != len(self.answers):
      raise UserError(
        f'the model has {model.spec.num_classes} classes, but PictureQuestions has {len(self.answers)} answers: set '
        'AnswerClassifier.num_classes to their number'
      )

  target_weights = example_weights

  def predictions(
    self, model: Callable[..., Output], batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Float[Array, 'batch answers'], Output]:
    """Returns the logits of the answers, and the output of the model."""
    tokens = Tokens.row(self.length, segments=batch['segments'], right_padded=True)
    out = model(batch['tokens'], batch['image'], tokens={'tokens': tokens}, key=key)
    return out.x, out

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the examples with weight 1."""
    logits, out = self.predictions(model, batch, key)
    sums = classification_sums(logits, batch['label'], self.weighted_targets(batch))
    return self.with_auxiliaries(sums, model, out, batch, key)

  def summarise(self, means, info=None):
    """Returns the metrics without perplexity."""
    return Task.summarise(self, means, info)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureAnswers(TaskEvaluator):
  """Computes accuracy beside what is possible without the picture.

  Metrics: accuracy; accuracy_other_picture, with the picture of another example (the one before);
  accuracy_most_frequent, of the most frequent answer of the training split; accuracy_by_question, of the most
  frequent answer to the same question there, or of all if the question does not occur: the best that a model of
  the text can learn.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (PictureQuestions,)

  def __call__(self, evaluated):
    """Returns the metrics, and whether each example is right."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    chosen = [rows[i] for i in indices]
    others = [row | {'image': chosen[i - 1]['image']} for i, row in enumerate(chosen)]
    answers = [row['answer'] for row in chosen]
    right = self._right(evaluated, chosen)
    by_question: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for example in task.source.load(task.train_split):
      by_question[example['question']][example['answer']] += 1
    [(most, _)] = sum(by_question.values(), collections.Counter[str]()).most_common(1)
    guesses = [
      by_question[q].most_common(1)[0][0] if (q := row['question']) in by_question else most
      for row in chosen
    ]
    metrics = {
      'examples': float(len(chosen)),
      'accuracy': float(right.mean()),
      'accuracy_other_picture': float(self._right(evaluated, others).mean()),
      'accuracy_most_frequent': float(np.mean([answer == most for answer in answers])),
      'accuracy_by_question': float(np.mean(np.array(guesses) == np.array(answers))),
    }
    return Evaluation(metrics, examples={'accuracy': right})

  def _right(
    self, evaluated: Evaluated[PictureQuestions], rows: Sequence[Mapping[str, Any]]
  ) -> np.ndarray:
    task = evaluated.task
    outputs = evaluated.predict(
      rows, lambda model, batch: choice(task.predictions(model, batch, None)[0])
    )
    answers = dict(enumerate(task.answers))
    return np.array([answers.get(int(best)) == row['answer'] for row, best in outputs], float)
