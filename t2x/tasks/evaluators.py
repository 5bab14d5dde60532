"""Evaluators: additional metrics of a run, on other data or on generated text.

`Experiment.evaluations` holds evaluators by name; their metrics are NAME/METRIC.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.packages import require
from t2x.base.ranges import Count, Natural, Text
from t2x.data.sources.subset import Spread
from t2x.models import Model
from t2x.tasks.base import Task
from t2x.tasks.prediction import Watched, predict

__all__ = ['Evaluator', 'Losses']

# Number of generated texts stored per evaluation.
NUM_SAMPLES = 10

# The class of tasks that an evaluator supports.
T = TypeVar('T', bound=Task)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The result of an evaluator.

  Attributes:
    metrics: numbers by name, and texts that describe how they were computed.
    samples: generated texts, as dicts of texts.
    images: pictures by name, uint8 [height, width, 3], which TensorBoard shows.
    examples: values of each example by metric, [examples]; only of metrics that are their means.
  """

  metrics: Mapping[str, float | str]
  samples: Sequence[Mapping[str, str]] = ()
  images: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  examples: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated(Generic[T]):
  """The argument of an evaluator: a trained model with its task, of a class that the evaluator supports.

  Attributes:
    task: the evaluator's task, bound to the run's tokenizer.
    watched: wraps the iterables of slow loops, so that a stalled device is detected.
    model: returns the model with its parameters.
    rows: returns the preprocessed rows of a split of the task.
    evaluation: computes the task's metrics over a number of rows sampled evenly from a split; None: all rows.
    batch_size: rows per batch of an evaluation of the run.
  """

  task: T
  watched: Watched
  model: Callable[[], Any]
  rows: Callable[[str], Any]
  evaluation: Callable[[str, int | None], Evaluation]
  batch_size: int

  def predict(
    self,
    rows: Sequence[Mapping[str, Any]],
    function: Callable[[Any, Mapping[str, Any]], Any],
    batch_size: int | None = None,
  ) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yields each row with its output of the model; pads batches, and splits them over the devices.

    Args:
      rows: `rows(split)`, or some of them.
      function: `(model, batch) -> outputs` with arrays [batch, ...]; the batch has the arrays of `task.spec`.
      batch_size: rows per batch; None: those of the run.
    """
    size, transform = batch_size or self.batch_size, self.task.transform(train=False)
    yield from predict(self.model(), rows, transform, function, size, self.watched)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(abc.ABC):
  """Evaluates a model during and after training.

  Attributes:
    task: the task to evaluate; None: the experiment's task.
    split: split of the task's source; None: the task's `eval_split`.
    every: runs in each n-th evaluation of the run and in the last one; 0: only in the last one.
    num_examples: number of examples, sampled evenly from the split; None: all.
  """

  task: Task | None = None
  split: Text | None = None
  every: Natural = 1
  num_examples: Count | None = None

  # Whether the metrics are means over tokens, which are not comparable between tokenizers.
  by_tokens: ClassVar[bool] = False

  @property
  def fixed(self) -> frozenset[str]:
    """Settings that `replaced` does not change, because the evaluator does not read them or sets them itself."""
    return frozenset()

  def replaced(self, **settings: Any) -> 'Evaluator':
    """Returns a copy with other settings, except those in `fixed`."""
    changed = {name: value for name, value in settings.items() if name not in self.fixed}
    return dataclasses.replace(self, **changed)

  def check(self, task: Task, model: Model) -> None:  # noqa: B027
    """Raises UserError if the evaluator does not support the task or the model.

    Args:
      task: the task, bound to the tokenizer.
      model: the model's shapes.
    """

  @abc.abstractmethod
  def __call__(self, evaluated: Evaluated[Any]) -> Evaluation:
    """Evaluates the model."""

  def _split(self, task: Task) -> str:
    return self.split or task.eval_split

  def _examples(self, task: Task) -> Sequence[Mapping[str, Any]]:
    """Returns `num_examples` examples of the split."""
    examples = task.source.load(self._split(task))
    if self.num_examples is None or self.num_examples >= len(examples):
      return examples
    return Spread(examples, self.num_examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses(Evaluator):
  """Computes the metrics of a task without generation, e.g. on other data or with longer rows."""

  by_tokens: ClassVar[bool] = True

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    return evaluated.evaluation(self._split(evaluated.task), self.num_examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEvaluator(Evaluator):
  """Evaluates tasks of some classes.

  Attributes:
    kinds: the classes.
    names: the parts of these classes in errors; '': the names of the classes.
    packages: packages that the evaluator imports.
  """

  kinds: ClassVar[tuple[type, ...]]
  names: ClassVar[str] = ''
  packages: ClassVar[tuple[str, ...]] = ()

  def fits(self, task: Task) -> bool:
    """Returns whether the evaluator evaluates a task."""
    return isinstance(task, self.kinds)

  def check(self, task: Task, model: Model) -> None:
    """Raises UserError if the task is of another class, or a package is not installed."""
    if not self.fits(task):
      names = self.names or ' and '.join(f'@{kind.__name__}' for kind in self.kinds)
      raise UserError(f'{type(self).__name__} evaluates {names}, not @{type(task).__name__}')
    require({package: [type(self).__name__] for package in self.packages})


def text_of(answer: Mapping[str, Any]) -> str:
  """Returns the generated text of an answer; '' if its score is NaN."""
  return '' if np.isnan(answer['score']) else answer['text']
