"""What a run needs of its data, checked before the first step: nothing is trained for an evaluation
that then cannot be done."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from t2x.data import Batches
from t2x.errors import UserError
from t2x.tasks import Task
from t2x.train.run import Run

__all__ = ['check_data', 'check_splits']


def check_splits(run: Run) -> None:
  """Raises UserError unless the sources have the splits of the task and of `Experiment.evaluations`."""
  # To say which splits there are a source may have to be downloaded.
  with run.processes.first_alone():
    run.task.check_split(run.task.train_split)
    for name, task in _evaluations(run):
      with _named(name):
        task.check_split(task.eval_split)


def check_data(run: Run, rows: Any, batches: Batches) -> None:
  """Checks the train rows, and all that evaluations read; prepares their splits.

  Looks at labels, a batch of each, the evaluation step and generation; the steps are shaped, not run.

  Args:
    run: the run.
    rows: of the train split.
    batches: made of them.

  Raises:
    UserError: a split without rows, or one that does not fit the task or the model.
  """
  task, model = run.task, run.abstract.evaluated
  task.check_rows(task.train_split, rows)
  _check_batch(task, batches[0], len(batches.part), task.train_split)
  for name, task in _evaluations(run):
    with _named(name):
      rows = run.rows(task.eval_split, task)
      task.check_rows(task.eval_split, rows)
      batch = run.evaluation_batches(rows, task)[0]
      _check_batch(task, batch, len(batches.part), task.eval_split)
      if name is None:  # The others' steps were shaped with the program.
        jax.eval_shape(run.eval_step, model, task.spec(run.trainer.batch_size))
      _check_generation(task, model, run.tokenizer)


def _evaluations(run: Run) -> list[tuple[str | None, Task]]:
  """The run's own task, without a name, and those of `Experiment.evaluations`."""
  return [(None, run.task), *run.experiment.evaluations.items()]


@contextlib.contextmanager
def _named(evaluation: str | None) -> Iterator[None]:
  """Errors inside say which of `Experiment.evaluations` they are about."""
  try:
    yield
  except UserError as error:
    if evaluation is None:
      raise
    told = f"Experiment.evaluations['{evaluation}']: {error}"
    raise UserError(told, error.exit_code) from error


def _check_batch(task: Task, batch: Mapping[str, np.ndarray], batch_size: int, split: str) -> None:
  """Raises UserError unless a batch of so many rows has the shapes and dtypes of the task's spec."""
  spec = {name: (one.dtype, one.shape) for name, one in task.spec(batch_size).items()}
  found = {name: (value.dtype, value.shape) for name, value in batch.items()}
  for name in sorted({*spec, *found}):
    if found.get(name) != spec.get(name):
      raise UserError(
        f"a batch of the split '{split}' has {_told(found.get(name))} as '{name}', and "
        f'{type(task).__name__} expects {_told(spec.get(name))}: set its lengths, shapes or classes '
        'to those of the data'
      )


def _check_generation(task: Task, model: Any, tokenizer: Any) -> None:
  try:
    task.check_generation(model, tokenizer)
  except UserError as error:
    told = f'{type(task).__name__} cannot generate text for its evaluation: {error}'
    raise UserError(told, error.exit_code) from error


def _told(what: tuple[Any, tuple[int, ...]] | None) -> str:
  return 'nothing' if what is None else f'{what[0]}{list(what[1])}'
