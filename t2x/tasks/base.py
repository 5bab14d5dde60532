"""What a task is: raw examples -> model inputs, a loss, metrics, and a way to evaluate."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from flax import nnx

from t2x.data import Rows, SampledPieces, Source, Tokenizer, TokenizerConfig, token_rows
from t2x.data.sources.base import NoSource
from t2x.data.tokenizers.base import Fitted, NoTokenizer
from t2x.decode import Greedy, Strategy
from t2x.errors import UserError
from t2x.hyperparameters import Tunable
from t2x.layers import NO_AUX, Aux, Causal
from t2x.models import Inputs, Model, OutputKind, TextModel
from t2x.models.losses import Sums
from t2x.ranges import Text, TunableNonNegative

Spec = dict[str, jax.ShapeDtypeStruct]
Means = Mapping[str, tuple[float, float]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TaskOutput:
  """Metrics and loss terms of a batch or of a micro-batch.

  Attributes:
    metrics: (sum, weight) by name. 'loss' is the main loss term.
    aux: auxiliary losses and metrics of the model, from `Output.aux`.
    further: the sum of each loss term besides the main one by name, coefficients included.
    coefficient: factor of the main loss term; the metric 'loss' is without it.
  """

  metrics: Sums
  aux: Aux = NO_AUX
  further: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
  coefficient: float | jax.Array = 1.0

  @property
  def terms(self) -> dict[str, jax.Array]:
    """The sum of each loss term by name.

    The train step divides each by its weight in `Task.weights` of the whole batch and minimises their
    total.
    """
    return {'loss': self.coefficient * self.metrics['loss'][0]} | self.further

  @property
  def reported(self) -> Sums:
    """The metrics of the task and those of the parts of the model."""
    return {**self.metrics, **self.aux.metrics}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
  """A learning problem over one source.

  Attributes:
    source: where raw examples come from; a task that only generates needs none.
    train_split: the split that batches are drawn from.
    eval_split: the split that evaluations read.
  """

  source: Source = NoSource()
  train_split: Text = 'train'
  eval_split: Text = 'validation'

  # What a model of this task reads, and the kind of outputs that the loss is computed from.
  inputs: ClassVar[Inputs] = 'a text'
  outputs: ClassVar[OutputKind] = 'token logits'
  # A head that computes them, for messages.
  head: ClassVar[str] = 'TiedHead'
  # What throughput counts: 'tokens' or 'examples'.
  unit: ClassVar[str] = 'tokens'
  # Whether `generate` answers prompts.
  answers_prompts: ClassVar[bool] = False
  # The metric that says which checkpoint is best, and whether more of it is better.
  best_metric: ClassVar[str] = 'loss'
  best_mode: ClassVar[Literal['min', 'max']] = 'min'

  @property
  def default_strategy(self) -> Strategy:
    """How `generate` chooses tokens unless the caller says."""
    return Greedy()

  @property
  def one_segment(self) -> bool:
    """Whether every row is one segment without padding, so that models are given no segments."""
    return False

  def fit_tokenizer(self) -> Tokenizer | None:
    """The tokenizer, trained on the source at first use; None for tasks without text."""
    return None

  def bound(self, tokenizer: Tokenizer | None) -> 'Task':
    """The task with the fitted tokenizer, which `rows`, `transform` and `generate` need."""
    return self

  def check_split(self, split: str) -> None:
    """Raises UserError unless the source has the split."""
    if isinstance(self.source, NoSource):
      raise UserError(f'{type(self).__name__}.source is not set: there are no examples')
    splits = self.source.splits()
    if split not in splits:
      names = [name for name in ('train_split', 'eval_split') if getattr(self, name) == split]
      setting = f'; set {type(self).__name__}.{names[0]}' if names else ''
      known = ', '.join(splits) or 'none'
      raise UserError(f"no split '{split}' in {self.source}: it has {known}{setting}")

  def check_rows(self, split: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError when the rows of a split cannot be used: there are none, or their labels do
    not fit. Reads no more of them than is quick."""
    if not len(rows):
      known = rows.info if isinstance(rows, Rows) else {}
      dropped = known.get('dropped')
      why = f': all of its {dropped} examples are longer than a row' if dropped else ''
      raise UserError(f"the split '{split}' of {self.source} is empty{why}")

  @abc.abstractmethod
  def rows(self, split: str) -> Sequence[dict[str, Any]]:
    """The model-ready rows of a split, prepared at first use and cached."""

  def transform(self, *, train: bool) -> Callable[..., dict] | None:
    """A picklable `(row, rng) -> example`, drawn anew for each epoch and example; None: as it is."""
    return None

  @abc.abstractmethod
  def spec(self, batch_size: int) -> Spec:
    """Shapes and dtypes of a batch, known without data."""

  def check_model(self, model: Model) -> None:
    """Raises UserError when the model cannot learn this task (inputs, outputs, vocabulary, classes).

    Args:
      model: its shapes.
    """
    spec = model.spec
    if spec.inputs != self.inputs:
      raise UserError(
        f'{type(self).__name__} gives {self.inputs}, but Experiment.model = '
        f'@{type(model).__name__} reads {spec.inputs}'
      )
    if self.outputs not in spec.outputs:
      raise UserError(
        f'{type(self).__name__} needs {self.outputs}, but the head of @{type(model).__name__} '
        f'computes {", ".join(sorted(spec.outputs))}: bind another head, such as @{self.head}'
      )

  def check_teacher(self, model: Any, teacher: Any) -> None:
    """Raises UserError if there is a teacher that the task does not use, or none that it needs.

    Args:
      model: its shapes.
      teacher: the shapes of `Experiment.teacher`, or None.
    """
    if teacher is not None:
      raise UserError(
        f'Experiment.teacher is set and {type(self).__name__} does not learn from a teacher: remove it'
      )

  @abc.abstractmethod
  def target_weights(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weight of each target of a batch in the main loss term: float32 [batch, ...], 0
    for padding."""

  def weights(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the weight of each loss term of `sums` by name, before the forward pass.

    The train step calls it with the whole batch, `sums` with each micro-batch.
    """
    return {'loss': self.target_weights(batch).sum()}

  @abc.abstractmethod
  def sums(
    self, model: nnx.Module, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> TaskOutput:
    """Returns the metrics and the sums of the loss terms over a batch or a micro-batch.

    `key` None is evaluation: no dropout, no label smoothing.
    """

  def count(self, batch: Mapping[str, np.ndarray]) -> int:
    """How many units (tokens, examples) of a batch are not padding."""
    return int(sum(np.count_nonzero(batch[name]) for name in batch if name.endswith('segments')))

  def summarise(self, means: Means, info: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Metrics from summed sums and weights; `info` is what is known of a whole split.

    Where nothing was counted (the weight of the loss is 0), a mean is NaN.
    """
    of_nothing = math.nan if means['loss'][1] == 0 else 0.0
    return {
      name: total / weight if weight else of_nothing for name, (total, weight) in means.items()
    }

  def check_prompt(self, prompt: str) -> None:  # noqa: B027
    """Raises UserError for a prompt that `generate` cannot answer."""

  def generate(
    self,
    model: nnx.Module,
    prompts: Sequence[str],
    *,
    strategy: Strategy,
    max_new_tokens: int,
    num_return: int = 1,
    seed: int = 0,
  ) -> list[list[dict[str, Any]]]:
    """For each prompt `num_return` answers: text, tokens, log_probs, score."""
    raise UserError(f'{type(self).__name__} does not generate text')


def check_causal(model: Model, length: int, task: str) -> None:
  """Raises UserError when a block lets a query see later tokens, which are what `task` predicts.

  Args:
    model: the model or its shapes.
    length: tokens in a row of what is predicted.
    task: its name, for the message.
  """
  for pattern in model.spec.patterns:
    if not pattern.is_causal(length):
      raise UserError(
        f'{task} predicts each next token, but the attention pattern {pattern} shows later tokens: '
        f'use {Causal() & pattern} (Decoder.pattern = @Causal() with Block.pattern for the rest)'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
  """A task over token rows.

  Attributes:
    tokenizer: how text becomes tokens; a task that only generates takes that of its run folder.
    pieces: draws other pieces of the training text each time it is seen; None: always the same.
  """

  tokenizer: TokenizerConfig = NoTokenizer()
  pieces: SampledPieces | None = None

  @property
  def vocab_size(self) -> int | None:
    """Rows that a model's table of tokens needs; None: not known before the tokenizer is fitted."""
    return self.tokenizer.vocab_size

  def is_fitted(self) -> bool:
    """Whether `fit_tokenizer` needs no training."""
    return self.tokenizer.is_fitted(self.source.fingerprint())

  def fit_tokenizer(self) -> Tokenizer:
    """Trained on the train split at first use and cached by fingerprint."""
    return self.tokenizer.fit(self._texts, source_fingerprint=self.source.fingerprint())

  def bound(self, tokenizer):
    """No longer needs what the config's tokenizer was read from."""
    return dataclasses.replace(self, tokenizer=Fitted(tokenizer))

  @property
  def fitted(self) -> Tokenizer:
    """The tokenizer that the task is bound to."""
    if not isinstance(self.tokenizer, Fitted):
      raise RuntimeError(f'{type(self).__name__} is not bound to a tokenizer: use task.bound(...)')
    return self.tokenizer.tokenizer

  def _texts(self):
    for example in self.source.load(self.train_split):
      yield from self.texts_of(example)

  def texts_of(self, example: Mapping[str, Any]) -> Sequence[str]:
    """The texts of an example that the tokenizer is trained on."""
    return [example[name] for name in self.text_fields if name in example]

  text_fields: ClassVar[tuple[str, ...]] = ('text',)

  @property
  @abc.abstractmethod
  def plan(self) -> Any:
    """How tokenised examples become rows of one shape."""

  def planned(self, length: int) -> int:
    """How much of a row is filled when it is cached: all of it, but where pieces are drawn."""
    return length if self.pieces is None else self.pieces.planned(length)

  def resegment(self, lengths: Mapping[str, int], train: bool) -> Callable[..., dict] | None:
    """What makes cached rows rows of these lengths by column; None: they are."""
    if self.pieces is None:
      return None
    return self.pieces.transform(self.fitted, lengths, train)

  def rows(self, split):
    """Rows from the token cache; without room for other pieces where none are drawn."""
    self.check_split(split)
    task = self if split == self.train_split else dataclasses.replace(self, pieces=None)
    return token_rows(self.source, split, self.fitted, task.plan)

  def check_model(self, model):
    """The model needs a row of its table for each token."""
    super().check_model(model)
    size, tokens = model.spec.vocab_size, self.tokenizer.vocab_size
    if tokens is not None and (size is None or size < tokens):
      raise UserError(
        f'the model has {size} rows in its token embedding, the tokenizer {tokens} tokens: '
        f'set TokenEmbedding.vocab_size to at least {tokens}, or leave it out'
      )

  def summarise(self, means, info=None):
    """Adds perplexity, and bits per byte where every byte of the split was counted."""
    metrics = super().summarise(means, info)
    metrics['perplexity'] = math.exp(min(metrics['loss'], 700.0))
    return metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenTask(TextTask):
  """A task that predicts tokens of the vocabulary.

  Attributes:
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only (PaLM,
      https://arxiv.org/abs/2204.02311, uses 1e-4).
  """

  z_loss: TunableNonNegative = 0.0

  def token_sums(
    self,
    model: TextModel,
    x: jax.Array,
    labels: jax.Array,
    batch: Mapping[str, jax.Array],
    key: jax.Array | None,
    smoothing: Tunable = 0.0,
    length_axis: str | None = 'length',
  ) -> Sums:
    """Returns the sums of the loss and of correct predictions.

    Args:
      model: computes the logits.
      x: hidden vectors [batch, length, d_model].
      labels: the tokens to predict, [batch, length].
      batch: for `target_weights`.
      key: None is evaluation: no label smoothing, no z-loss.
      smoothing: label smoothing in training.
      length_axis: the logical axis of the second dimension.
    """
    return model.cross_entropy(
      x,
      labels,
      self.target_weights(batch),
      smoothing=0.0 if key is None else smoothing,
      z_loss=0.0 if key is None else self.z_loss,
      axes=('batch', length_axis),
    )
