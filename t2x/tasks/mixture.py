"""Mixtures of tasks or of sources, with one model (T5, https://arxiv.org/abs/1910.10683, section 3.5.2)."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Positive, Text
from t2x.data import Interleaved, MixtureRows, MixtureTransform, MixtureWeights, ProportionalWeights
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import NoSource
from t2x.tasks.base import Task

__all__ = ['Mixture']


def _of_first(name: str) -> Any:
  """Returns the property of a mixture that is an attribute of its first task."""
  return property(operator.attrgetter(f'first.{name}'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture(Task):
  """Draws the rows of each batch from several tasks, in proportion to weights.

  All tasks are of one class and have the same loss and shapes; they may differ in the settings in
  `data_fields` of their class, such as the source, the masks or the corruption. Each has its own epochs. The
  metrics of each are reported as NAME/METRIC in evaluation; `loss` and all metrics without a name are
  unweighted means over the tasks, so that they are comparable between weights.

  Prompts of `generate` are those of the tasks with their prefix, as in training.

  Attributes:
    tasks: the tasks by name.
    sampling: the weights with which rows are drawn, by number of rows or by name.
    loss_weights: name -> factor of the loss in training; 1 for names that are left out.

  Raises:
    UserError: the tasks do not fit each other.
  """

  tasks: Annotated[Mapping[Text, Task], NonEmpty]
  sampling: MixtureWeights = ProportionalWeights()
  loss_weights: Mapping[Text, Positive] = dataclasses.field(default_factory=dict)

  # The facts about a task, which are those of the tasks in the mixture.
  inputs, outputs, head, unit = map(_of_first, ('inputs', 'outputs', 'head', 'unit'))
  tokenizes, predicts_next, whole_batch = map(
    _of_first, ('tokenizes', 'predicts_next', 'whole_batch')
  )
  answers_prompts, prompts = map(_of_first, ('answers_prompts', 'prompts'))
  best_metric, best_mode = map(_of_first, ('best_metric', 'best_mode'))
  shares_preparation = _of_first('shares_preparation')

  def __post_init__(self):
    own = {'source': NoSource(), 'train_split': 'train', 'eval_split': 'validation'}
    for name, default in own.items():
      if getattr(self, name) != default:
        raise UserError(f'Mixture.{name} is set: set {name} of the tasks instead')
    unknown = sorted(set(self.loss_weights) - set(self.tasks))
    if unknown:
      raise UserError(
        f"Mixture.loss_weights has '{unknown[0]}', but the tasks are {', '.join(self.tasks)}"
      )
    for name, task in self.tasks.items():
      if '/' in name:
        raise UserError(f"Mixture.tasks: the name '{name}' must not contain '/'")
      self._check_equal(name, task)

  def _check_equal(self, name: str, task: Task) -> None:
    """Raises UserError if the loss or the shapes of a task are not those of the first task."""
    first, first_name = self.first, next(iter(self.tasks))
    if isinstance(task, Mixture):
      raise UserError(f"Mixture.tasks['{name}'] is a mixture: list its tasks instead")
    if task.row_lengths:
      raise UserError(
        f"Mixture.tasks['{name}'] has length buckets: rows of a mixture have one length"
      )
    if type(task) is not type(first):
      raise UserError(
        f"Mixture.tasks['{name}'] is @{type(task).__name__}, but '{first_name}' is "
        f'@{type(first).__name__}: the tasks of a mixture have one class'
      )
    own = {field.name for field in dataclasses.fields(task)} - task.data_fields
    for field in sorted(own):
      values = [repr(getattr(t, field)) for t in (task, first)]
      if values[0] != values[1]:
        raise UserError(
          f"Mixture.tasks['{name}'] has {field} = {values[0]}, but '{first_name}' has {values[1]}: "
          f'tasks of a mixture may differ only in {", ".join(sorted(task.data_fields))}'
        )
    shapes = [{n: (s.shape, str(s.dtype)) for n, s in t.spec(1).items()} for t in (task, first)]
    for array in sorted({*shapes[0], *shapes[1]}):
      if shapes[0].get(array) != shapes[1].get(array):
        raise UserError(
          f"Mixture.tasks['{name}'] has rows with '{array}' {shapes[0].get(array)}, but '{first_name}' "
          f'has {shapes[1].get(array)}: give all tasks rows of one shape'
        )

  @property
  def first(self) -> Task:
    """The first task, which computes the loss of all."""
    return next(iter(self.tasks.values()))

  @property
  def parts(self):
    return self.tasks

  def split_of(self, part, split):
    """Returns the split of a task: its own splits for training and evaluation, other splits unchanged."""
    return {'train': part.train_split, 'validation': part.eval_split}.get(split, split)

  @property
  def default_strategy(self):
    return self.first.default_strategy

  @property
  def vocab_size(self):
    sizes = [task.vocab_size for task in self.tasks.values()]
    return None if None in sizes else max(size for size in sizes if size is not None)

  @property
  def tokenizer(self) -> Any:
    """The tokenizer of all tasks."""
    return getattr(self.first, 'tokenizer', None)

  @property
  def _source_fingerprint(self) -> str:
    return fingerprint('mixture', *(task.source.fingerprint() for task in self.tasks.values()))

  def is_fitted(self):
    return self.tokenizer is None or self.tokenizer.is_fitted(self._source_fingerprint)

  def fit_tokenizer(self):
    """Returns the tokenizer, trained on the train splits of all sources in turns."""
    if self.tokenizer is None:
      return None
    return self.tokenizer.fit(self.tokenizer_texts, source_fingerprint=self._source_fingerprint)

  def tokenizer_texts(self) -> Iterator[str]:
    """Yields the texts of all sources in turns."""
    texts: list[Iterable[str]] = [task.tokenizer_texts() for task in self.tasks.values()]  # type: ignore[attr-defined]
    return (text for group in itertools.zip_longest(*texts) for text in group if text is not None)

  def bound(self, tokenizer):
    tasks = {name: task.bound(tokenizer) for name, task in self.tasks.items()}
    return dataclasses.replace(self, tasks=tasks)

  def check_split(self, split):
    self._for_each(lambda task: task.check_split(self.split_of(task, split)))

  def rows(self, split):
    rows: list[Any] = []
    self._for_each(lambda task: rows.append(task.rows(self.split_of(task, split))))
    return MixtureRows(dict(zip(self.tasks, rows, strict=True)))

  def check_rows(self, split, rows):
    parts = iter(rows.sources.values())
    self._for_each(lambda task: task.check_rows(self.split_of(task, split), next(parts)))

  def note_rows(self, split, rows):
    parts, notes = iter(rows.sources.values()), list[str]()
    self._for_each(
      lambda task: notes.append(task.note_rows(self.split_of(task, split), next(parts)))
    )
    return '; '.join(filter(None, notes))

  def check_model(self, model):
    self._for_each(lambda task: task.check_model(model))

  def check_teacher(self, model, teacher):
    self.first.check_teacher(model, teacher)

  def _for_each(self, call) -> None:
    for name, task in self.tasks.items():
      try:
        call(task)
      except UserError as error:
        raise UserError(f"Mixture.tasks['{name}']: {error}", error.exit_code) from error

  def order(self, rows, batch_size, seed):
    stages = self.sampling.stages({name: len(part) for name, part in rows.sources.items()})
    return Interleaved(rows, stages, batch_size, seed)

  def describe_rows(self, rows, num_steps, batch_size):
    """Returns the number of rows, the share and the epochs of each task."""
    order, num_read = self.order(rows, batch_size, 0), num_steps * batch_size
    counts = order.counts(num_read)
    lines = [
      f'{name} {size:,} rows, {count / num_read:.2%} of the rows read, {count / size:.3g} epochs'
      for name, size, count in zip(self.tasks, order.sizes, counts, strict=True)
    ]
    return f'mixture of {"; ".join(lines)}'

  def transform(self, *, train):
    """Returns the transform that adds `task` and `loss_weight` to the rows."""
    transforms = tuple(task.transform(train=train) for task in self.tasks.values())
    weights = tuple(float(self.loss_weights.get(name, 1.0)) for name in self.tasks)
    return MixtureTransform(transforms, weights)

  def spec(self, batch_size):
    """Returns the shapes of the tasks' batches, `task`: int32 [batch] and `loss_weight`: float32 [batch]."""
    return {
      **self.first.spec(batch_size),
      'task': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      'loss_weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def target_weights(self, batch):
    return self.first.target_weights(batch)

  def batch(self, batch, key):
    """Returns the batch of the first task: settings that mix rows are those of all tasks."""
    return self.first.batch(batch, key)

  def weights(self, batch):
    return self.first.weights(batch)

  def sums(self, model, batch, key, *teacher):
    sums: Any = self.first.sums
    return sums(model, batch, key, *teacher)

  def count(self, batch):
    return self.first.count(batch)

  def summarise(self, means, info=None):
    return self.first.summarise(means, info)

  def combine(self, metrics):
    """Returns NAME/METRIC of each task, and the unweighted means of the metrics that all tasks have."""
    combined = {f'{name}/{key}': v for name, part in metrics.items() for key, v in part.items()}
    common = functools.reduce(lambda a, b: [k for k in a if k in b], map(list, metrics.values()))
    for key in common:
      values = [part[key] for part in metrics.values()]
      combined[key] = math.fsum(values) / (1 if key.startswith('eval_') else len(values))
    if 'perplexity' in common:
      combined['perplexity'] = math.exp(min(combined['loss'], 700.0))
    return combined

  def check_prompt(self, prompt):
    self.first.check_prompt(prompt)

  def generate(self, model, prompts: Sequence[str], **settings: Any):
    """Generates answers with the first task; prompts begin with the prefix of their task, if it has one."""
    return self.first.generate(model, prompts, **settings)
