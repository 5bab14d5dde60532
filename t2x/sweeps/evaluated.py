"""Checks that all variants of a sweep compute the metric on the same data: examples, tokenizer, compared rows."""

import dataclasses
import hashlib
from collections.abc import Mapping

import numpy as np

from t2x.data.sources.base import Source
from t2x.tasks import Task
from t2x.train import Experiment

# It counts bytes of text, so that it does not depend on the tokenizer.
_BY_BYTES = 'bits_per_byte'


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """Data and tokenizer of a metric.

  Attributes:
    examples: source and split of each task by its name in a mixture; '' without one.
    num_examples: number of examples that are sampled from the splits; None: all.
    tokenized: the task of the run, whose tokenizer counts; None if the metric does not depend on it.
    rows: rows that the metric compares with each other, by task; None if it does not depend on them.
  """

  examples: Mapping[str, tuple[Source, str]]
  num_examples: int | None
  tokenized: Task | None
  rows: Mapping[str, int | None]

  def difference(self, other: 'Evaluated') -> str:
    """Returns how it differs from the data of another variant; '' if it is comparable."""
    if (self.examples.keys(), self.num_examples) != (other.examples.keys(), other.num_examples):
      return 'on other data'
    for name, (source, split) in self.examples.items():
      its, its_split = other.examples[name]
      if (source, split) != (its, its_split) and _digest(source, split) != _digest(its, its_split):
        return f"on other data, the split '{split}' of {source.describe()}"
    for name, count in self.rows.items():
      if count != other.rows.get(name):
        return f'over {count} rows at once, and not over {other.rows.get(name)}'
    mine, its_task = self.tokenized, other.tokenized
    if mine is None or its_task is None or _settings(mine) == _settings(its_task):
      return ''
    fitted, its_fitted = mine.fit_tokenizer(), its_task.fit_tokenizer()
    if fitted is None or its_fitted is None or fitted.fingerprint == its_fitted.fingerprint:
      return ''
    return f'by tokens of another tokenizer ({_BY_BYTES} would be comparable)'


def evaluated(experiment: Experiment, metric: str) -> Evaluated:
  """Returns what a metric of an experiment is computed on ('loss', 'EVALUATION/loss', 'TASK/loss')."""
  name, _, own_name = metric.rpartition('/')
  evaluator = experiment.evaluations.get(name)
  task = experiment.evaluated_task(name if evaluator else None)
  parts = {name: task.parts[name]} if name in task.parts else task.parts
  split = evaluator.split if evaluator and evaluator.split else task.eval_split
  # The metrics of the task, and not those of another evaluator.
  of_task = evaluator is None or evaluator.by_tokens
  by_tokens = own_name != _BY_BYTES and of_task
  # The class of a text has one loss, whatever its tokens are.
  by_tokens = by_tokens and task.tokenizes and task.outputs != 'class logits'
  return Evaluated(
    {key: (part.source, task.split_of(part, split)) for key, part in parts.items()},
    evaluator.num_examples if evaluator else None,
    experiment.task if by_tokens else None,
    {key: part.eval_rows for key, part in parts.items()} if of_task else {},
  )


def _settings(task: Task) -> list[tuple[object, ...]]:
  """Returns what the tokenizer of a task is trained on, and its settings."""
  parts = task.parts.values()
  return [(part.source, part.train_split, getattr(part, 'tokenizer', None)) for part in parts]


def _digest(source: Source, split: str) -> str:
  """Hashes the examples of a split."""
  digest = hashlib.sha256()
  for example in source.load(split):
    for name, value in sorted(example.items()):
      digest.update(name.encode() + _bytes(value))
  return digest.hexdigest()


def _bytes(value: object) -> bytes:
  return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
