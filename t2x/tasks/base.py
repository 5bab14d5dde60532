"""Base class of tasks."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Text
from t2x.data import Batches, Order, Rows, Source, Tokenizer
from t2x.data.batches import SourceRows
from t2x.data.sources.base import NoSource, class_names
from t2x.decode import Greedy, Strategy
from t2x.decode.sampling import SampleSeed
from t2x.layers.marks import Marks
from t2x.models import Inputs, Model
from t2x.models.spec import check_named
from t2x.tasks.distillation import Learner, check_teacher, distilled, teacher_term_weights
from t2x.tasks.former import check_hooks
from t2x.tasks.output import TaskOutput

__all__ = ['Task']

Spec = dict[str, jax.ShapeDtypeStruct]
Means = Mapping[str, tuple[float, float]]
GREEDY: Strategy = Greedy()
# Sums over examples that are no metrics: each example's value is reported under the other name.
OF_EXAMPLES = {'example/label': 'label', 'example/prediction': 'prediction'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
  """A learning problem over one source.

  Attributes:
    source: the raw examples; not needed for generation.
    train_split: the split for training.
    eval_split: the split for evaluation.
  """

  source: Source = NoSource()
  train_split: Text = 'train'
  eval_split: Text = 'validation'

  # The decoding strategy of a task without this setting.
  strategy = GREEDY
  # The arrays of a batch that the model must take, in order, with their kinds, and the outputs that the loss is
  # computed from, by the names of `ModelSpec`.
  inputs: ClassVar[Inputs] = {'tokens': 'ids'}
  outputs: ClassVar[str] = 'token logits'
  # A head with these outputs, for error messages.
  head: ClassVar[str] = 'TiedHead'
  # The unit of throughput: 'tokens' or 'examples'.
  unit: ClassVar[str] = 'tokens'
  # Whether the processes of a run may call `rows` at the same time; they then share the work.
  shares_preparation: ClassVar[bool] = False
  # Whether `generate` is implemented.
  answers_prompts: ClassVar[bool] = False
  # What its prompts are: texts, or paths of files.
  prompts: ClassVar[Literal['texts', 'files']] = 'texts'
  # Whether the model's inputs are the row's `tokens` shifted right, so that hidden vector i predicts token i.
  predicts_next: ClassVar[bool] = False
  # Whether the rows are token ids of a tokenizer.
  tokenizes: ClassVar[bool] = False
  # Settings in which the tasks of a mixture may differ, because they change only the rows.
  data_fields: ClassVar[frozenset[str]] = frozenset({'source', 'train_split', 'eval_split'})
  # Whether the main loss of a row depends on the other rows of the batch, so that it cannot be split.
  whole_batch: ClassVar[bool] = False
  # Whether the task has a setting `distillation` and computes `predictions`, so that it can learn from a teacher.
  learns_from_teacher: ClassVar[bool] = False
  # The metric that selects the best checkpoint, and whether to minimise or maximise it.
  best_metric: ClassVar[str] = 'loss'
  best_mode: ClassVar[Literal['min', 'max']] = 'min'
  # The metrics that are means over independent examples in evaluation: each example is a row with a total target
  # weight of 1, and the sum in `sums` is linear in `weighted_targets`.
  example_metrics: ClassVar[frozenset[str]] = frozenset()

  def __init_subclass__(cls, **settings: object) -> None:
    super().__init_subclass__(**settings)
    check_hooks(cls)

  @property
  def learner(self) -> Learner | None:
    """The task, if it can learn from a teacher; else None."""
    if not self.learns_from_teacher:
      return None
    if not isinstance(self, Learner):
      raise TypeError(
        f'{type(self).__name__} learns from a teacher: define distillation and predictions'
      )
    return self

  @property
  def default_strategy(self) -> Strategy:
    """The decoding strategy of `generate` if the caller sets none: the setting `strategy`, if the task has one."""
    return self.strategy

  @property
  def vocab_size(self) -> int | None:
    """Minimum number of rows of the token embedding; None without text or before fitting the tokenizer."""
    return None

  @property
  def class_names(self) -> Sequence[str]:
    """Names of the classes that a model of the task predicts; empty if they have none."""
    return ()

  @property
  def token_marks(self) -> Marks:
    """The marks of token ids that the task sets for patterns of the model."""
    return Marks()

  @property
  def row_lengths(self) -> Sequence[int]:
    """The lengths of rows in training, if batches differ in length; else empty."""
    return ()

  @property
  def eval_rows(self) -> int | None:
    """Rows per batch in evaluation, if the metrics depend on it; None: those of a training batch."""
    return None

  @property
  def parts(self) -> 'Mapping[str, Task]':
    """The tasks to evaluate by name: those of a mixture, else this task with the name ''."""
    return {'': self}

  def split_of(self, part: 'Task', split: str) -> str:
    """Returns the split of a part that stands for a split of this task."""
    return split

  def is_fitted(self) -> bool:
    """Returns whether the tokenizer is known or cached; True for tasks without text."""
    return True

  def fit_tokenizer(self) -> Tokenizer | None:
    """Returns the tokenizer, trained on the source at first use; None for tasks without text."""
    return None

  def bound(self, tokenizer: Tokenizer | None) -> 'Task':
    """Returns the task with a fitted tokenizer, which `rows`, `transform` and `generate` need."""
    return self

  def check_split(self, split: str) -> None:
    """Raises UserError if the source does not have the split."""
    if isinstance(self.source, NoSource):
      raise UserError(f'{type(self).__name__}.source is not set: set it to a source of examples')
    splits = self.source.splits()
    if split not in splits:
      names = [name for name in ('train_split', 'eval_split') if getattr(self, name) == split]
      setting = f'; set {type(self).__name__}.{names[0]}' if names else ''
      available = ', '.join(splits) or 'none'
      raise UserError(f"no split '{split}' in {self.source}: it has {available}{setting}")

  def check_rows(self, split: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError if a split is empty or its labels are invalid; checks labels only if that is fast."""
    if not len(rows):
      info = rows.info if isinstance(rows, Rows) else {}
      dropped = info.get('dropped')
      reason = f': all of its {dropped} examples are longer than a row' if dropped else ''
      raise UserError(f"the split '{split}' of {self.source} is empty{reason}")

  def note_rows(self, split: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a warning about the rows of a split; '' without one."""
    return ''

  def rows(self, split: str) -> Sequence[dict[str, Any]]:
    """Returns the rows of a split for `transform`: the source's examples, unless a task prepares and caches rows."""
    self.check_split(split)
    return SourceRows(self.source, split)

  def order(self, rows: Sequence[Mapping[str, Any]], batch_size: int, seed: int) -> Order | None:
    """Returns the order in which training reads rows; None: shuffled."""
    return None

  def batches(
    self,
    rows: Sequence[Mapping[str, Any]],
    *,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
  ) -> Batches:
    """Returns the train batches of rows; `batches[step]` depends only on the seed and the step."""
    return Batches(
      rows,
      self.transform(train=True),
      batch_size=batch_size,
      seed=seed,
      order=self.order(rows, batch_size, seed),
      process_index=process_index,
      process_count=process_count,
    )

  def describe_rows(
    self, rows: Sequence[Mapping[str, Any]], num_steps: int, batch_size: int
  ) -> str:
    """Returns a line about the rows of the train split.

    Args:
      rows: the rows.
      num_steps: number of training steps.
      batch_size: rows per step.
    """
    info = getattr(rows, 'info', None) or {}
    sizes = [f'{info[name]:,} {name}' for name in ('examples', 'tokens') if name in info]
    source = str(self.source)
    source = source if len(source) <= 60 else f'{source[:57]}...'
    counts = ', '.join([*sizes, f'{len(rows):,} rows'])
    return f'{counts}, {self.train_split} split of {source}'

  def transform(self, *, train: bool) -> Callable[..., dict] | None:
    """Returns a picklable `(row, rng) -> example`, called with a new rng in each epoch; None: identity."""
    return None

  @abc.abstractmethod
  def spec(self, batch_size: int) -> Spec:
    """Returns the shapes and dtypes of a batch by name."""

  def check_model(self, model: Model) -> None:
    """Raises UserError if the model does not fit the task (inputs, outputs, vocabulary, classes).

    Args:
      model: the model's shapes.
    """
    spec = model.spec
    self._check_inputs(model)
    if self.outputs not in spec.outputs:
      raise UserError(
        f'{type(self).__name__} needs {self.outputs}, but the head of @{type(model).__name__} '
        f'computes {", ".join(sorted(spec.outputs))}: bind another head, such as @{self.head}'
      )

  def _check_inputs(self, model: Model) -> None:
    """Raises UserError if the model takes other arrays than those of a batch."""
    name, spec = type(self).__name__, model.spec
    check_named(self.inputs, f'{name}.inputs', "'{kind}'")
    if list(spec.kinds.items()) != list(self.inputs.items()):
      raise UserError(
        f'{name} needs a model that takes {_listed(self.inputs)}, but Experiment.model = '
        f'@{type(model).__name__} takes {_listed(spec.kinds)}: set another model'
      )
    batch = self.spec(1)
    for column, item in spec.inputs.items():
      shape = batch[column].shape[1:]
      fits = len(shape) == len(item.shape) and all(
        size in (None, own) for own, size in zip(shape, item.shape, strict=True)
      )
      if not fits:
        sizes = ', '.join('any' if size is None else str(size) for size in item.shape)
        raise UserError(
          f"{name} has examples with '{column}' of shape {shape}, but @{type(model).__name__} reads the shape "
          f'({sizes}): change the settings of the task or of the embedding'
        )

  def check_teacher(self, model: Any, teacher: Any) -> None:
    """Raises UserError if the teacher does not fit the task, or is missing.

    Args:
      model: the model's shapes.
      teacher: the shapes of `Experiment.teacher`, or None.
    """
    learner = self.learner
    if learner is not None:
      if learner.distillation is not None or teacher is not None:
        check_teacher(learner, model, teacher)
    elif teacher is not None:
      raise UserError(
        f'Experiment.teacher is set, but {type(self).__name__} does not support distillation: remove it'
      )

  def batch(self, batch: Mapping[str, jax.Array], key: jax.Array) -> Mapping[str, jax.Array]:
    """Returns the batch to train on, with augmentations that combine rows (MixUp).

    The train step calls it with the full batch, before `weights` and the split into micro-batches. Arrays that
    it adds are [batch, ...]. Evaluation does not call it.

    Args:
      batch: arrays as in `spec`.
      key: random key of the step. Derive others with `named_key(key, 'task.NAME')`: the names of the model's parts
        have no such prefix.
    """
    return batch

  @abc.abstractmethod
  def target_weights(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weight of each target in the main loss term: float32 [batch, ...], 0 for padding.

    `sums` uses `weighted_targets`, which contains the loss weights of a mixture.
    """

  def weighted_targets(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the `target_weights` times the loss weights of the rows in batches of a mixture."""
    weights = self.target_weights(batch)
    rows = batch.get('loss_weight')
    return weights if rows is None else weights * rows.reshape(-1, *[1] * (weights.ndim - 1))

  def weights(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the weight of each loss term of `sums` by name, before the forward pass.

    The train step calls it with the full batch of `batch`, and `sums` with each micro-batch.
    """
    weights, learner = {'loss': self.weighted_targets(batch).sum()}, self.learner
    if learner is None or learner.distillation is None:
      return weights
    return weights | teacher_term_weights(learner, learner.distillation, batch)

  @abc.abstractmethod
  def sums(
    self, model: nnx.Module, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> TaskOutput:
    """Returns the metrics and the sums of the loss terms over a batch or a micro-batch.

    Args:
      model: the model.
      batch: arrays as in `spec`; in training those of `batch`.
      key: random keys of the rows in this step, [batch]; None in evaluation, without dropout and label smoothing.

    A task that learns from a teacher also gets the frozen model of `Experiment.teacher`, in training only.
    """

  def token_weights(self, batch: Mapping[str, jax.Array]) -> jax.Array | None:
    """Returns the weights [batch, length] of the hidden vectors of `predictions`, 0 for padding; None if there are no
    hidden vectors."""
    return None

  def teacher_weights(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weights of the targets in the teacher's term of the logits, by default those of the main term."""
    return self.weighted_targets(batch)

  def distilled(
    self,
    output: TaskOutput,
    logits: jax.Array,
    x: jax.Array,
    teacher: Any,
    batch: Mapping[str, jax.Array],
  ) -> TaskOutput:
    """Returns `output` with the terms of the teacher, if there is one; see `t2x.tasks.distillation.distilled`."""
    return distilled(self.learner, output, logits, x, teacher, batch)

  def count(self, batch: Mapping[str, np.ndarray]) -> int:
    """Returns the number of units (tokens or examples) of a batch that are not padding."""
    names = ['weight'] if self.unit == 'examples' else [n for n in batch if n.endswith('segments')]
    return int(sum(np.count_nonzero(batch[name]) for name in names))

  def summarise(self, means: Means, info: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Returns the metrics of a split; NaN for an empty split (the weight of the loss is 0).

    Args:
      means: name -> (sum, weight), totals over the batches.
      info: statistics of the full split, if the batches cover it.
    """
    default = math.nan if means['loss'][1] == 0 else 0.0
    return {
      name: total / weight if weight else default
      for name, (total, weight) in means.items()
      if name not in OF_EXAMPLES
    }

  def of_examples(
    self, examples: Mapping[str, np.ndarray]
  ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Returns metrics of a split that are no means over examples, and the values to report by example.

    Args:
      examples: values of all examples by metric, [examples]; those of `example_metrics`.
    """
    return {}, {OF_EXAMPLES.get(name, name): values for name, values in examples.items()}

  def combine(self, metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Returns the metrics of an evaluation from those of the `parts` by name."""
    return dict(metrics[''])

  def check_prompt(self, prompt: str) -> None:  # noqa: B027
    """Raises UserError if the prompt is invalid."""

  def generate(
    self,
    model: object,
    prompts: Sequence[str],
    *,
    strategy: Strategy,
    max_new_tokens: int,
    num_return: int = 1,
    seed: SampleSeed = 0,
  ) -> list[list[dict[str, Any]]]:
    """Generates answers to prompts.

    Args:
      model: the model with its parameters.
      prompts: the prompts.
      strategy: decoding strategy.
      max_new_tokens: maximum number of tokens per answer.
      num_return: answers per prompt.
      seed: random seed of sampling.

    Returns:
      For each prompt `num_return` dicts with text, tokens, log_probs and score.
    """
    raise UserError(f'{type(self).__name__} does not generate text: pass a split to `t2x eval`')


def _source_classes(task: 'Task') -> Sequence[str]:
  return class_names(task.source)


# The `class_names` of tasks whose source names the classes.
SOURCE_CLASSES = property(_source_classes)


def example_weights(task: object, batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns the weights of examples, float32 [batch]: the `target_weights` of tasks with one target per example."""
  return batch['weight'].astype(jnp.float32)


def _listed(inputs: Inputs) -> str:
  """Returns inputs as 'source (image) and target (ids)'."""
  return ' and '.join(f'{name} ({kind})' for name, kind in inputs.items())
