"""Checks of an experiment: its shapes (without weights, data or devices) and its data.

Shapes and data are checked before the first step, so that errors in an evaluation do not end a run hours later.
"""

import contextlib
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from t2x.base.errors import UserError
from t2x.data import Batches
from t2x.models import Model
from t2x.parallel import MESH_AXES, mesh_text, sharding_table
from t2x.tasks import Task
from t2x.train.experiment import Experiment, Teacher
from t2x.train.mup import check_same
from t2x.train.program import Program
from t2x.train.run import TrainingRun

log = logging.getLogger('t2x')

__all__ = ['check_experiment', 'layout_report']


def check_experiment(
  experiment: Experiment, num_devices: int | None = None, hyperparameters: Collection[str] = ()
) -> str:
  """Traces the constructor, the train step and the evaluation steps with `jax.eval_shape`.

  Args:
    experiment: may lack a task, a trainer or both; their checks are then omitted.
    num_devices: size of the mesh; None for the product of its configured axes, with -1 counted as 1.
    hyperparameters: names of the hyperparameters that are inputs of a step.

  Returns:
    A line with the numbers of parameters and bytes, then the table of `Trainer.groups` if there are any.

  Raises:
    UserError: parts of the experiment do not fit each other.
  """
  check_vocabulary(experiment.task)
  if experiment.model is None:
    return 'Experiment.model is not set: no shapes checked'
  values, mesh = dict.fromkeys(hyperparameters, 0.0), experiment.mesh.abstract(num_devices)
  program = Program(experiment.with_trainer(mesh.size), values, mesh)
  state = jax.tree.leaves((program.abstract, program.frozen))
  report = f'{program.blueprint.size:,} parameters'
  if experiment.teacher is not None:
    report += f'; {_check_teacher(experiment.teacher, program)}'
  if experiment.init_from is not None:
    report += f'; {_check_init_from(experiment, program)}'
  if experiment.task is None or experiment.trainer is None:
    return report
  scalars = dict.fromkeys(hyperparameters, jax.ShapeDtypeStruct((), np.float32))
  jax.eval_shape(program.step(), program.abstract, program.frozen, program.batch(), scalars)
  check_evaluations(program)
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in state)
  report += f', train state {size / 2**30:.2f} GiB'
  if experiment.trainer.groups:
    report += f'\n{program.groups.table()}'
  if (scaling := program.experiment.scaling()) is not None:
    report += f'\n{scaling.table()}'
  return report


def check_vocabulary(task: Task | None) -> None:
  """Raises UserError if the vocabulary size of a task is unknown until its tokenizer is fitted."""
  if task is not None and task.tokenizes and task.vocab_size is None and not task.is_fitted():
    raise UserError(
      'the vocabulary size is unknown until the tokenizer is fitted: run `t2x data tokenizer` with this '
      'config first, or set the vocab_size of the tokenizer'
    )


def check_evaluations(program: Program) -> None:
  """Traces the evaluation step of the task and of each of `Experiment.evaluations`, without running it.

  Raises:
    UserError: the model does not support an evaluation, for example because its rows are too long.
  """
  params = program.params_abstract()
  for name in (None, *program.experiment.evaluations):
    task = program.experiment.evaluated_task(name)
    with _evaluation_in_errors(name):
      program.check_fit(task)
      (part, *_) = task.parts.values()
      jax.eval_shape(program.eval_step(name), params, program.batch(part, part.eval_rows))


@contextlib.contextmanager
def _evaluation_in_errors(name: str | None) -> Iterator[None]:
  """Prefixes errors in the context with the name in `Experiment.evaluations`; None adds no prefix."""
  try:
    yield
  except UserError as error:
    if name is None:
      raise
    message = f"Experiment.evaluations['{name}']: {error}"
    raise UserError(message, error.exit_code) from error


def _check_teacher(teacher: Teacher, program: Program) -> str:
  """Describes the teacher: number of parameters, and the run that they come from, which may not exist yet."""
  assert program.teacher is not None
  size, run = f'teacher with {program.teacher.size:,} parameters', teacher.init_from.run
  if not Path(run).is_dir():
    return f'{size} (its run {run} does not exist yet)'
  _, source = teacher.plan(program.frozen)
  return f'{size}, {source}'


def _check_init_from(experiment: Experiment, program: Program) -> str:
  """Describes the parameters that would be loaded from the source run, which may not exist yet."""
  init_from = experiment.init_from
  assert init_from is not None
  if not Path(init_from.run).is_dir():
    return f'InitFrom.run {init_from.run} does not exist yet'
  check_same(Path(init_from.run), experiment.mup)
  _, table = init_from.plan(program.params_abstract(), infos=program.blueprint.infos)
  return table.splitlines()[0]


def layout_report(experiment: Experiment, num_devices: int | None = None) -> str:
  """Returns the table of `t2x show --sharding`: parameters, optimizer state, average, batch, totals.

  Args:
    experiment: needs a model; without a trainer it has the default optimizer, without a task no batch.
    num_devices: number of devices, which this machine need not have; None for the number that the mesh
      requires, or that of this machine.

  Raises:
    UserError: the mesh does not divide a dimension.
  """
  settings = experiment.mesh
  mesh = settings.abstract(num_devices or settings.num_devices or _default_devices(experiment))
  program = Program(experiment.with_trainer(mesh.size), mesh=mesh)
  state = program.abstract
  parts: dict[str, Any] = {'parameters': state.params, 'optimizer state': state.opt_state}
  if program.frozen:
    parts['frozen'] = program.frozen
  if state.ema is not None:
    parts['average'] = state.ema
  if experiment.task is not None:
    parts['batch'] = program.batch()
  sizes, split = mesh_text(mesh, settings.activation_rules)
  title = f'{mesh.size} devices: {sizes}; activations: {split or "not sharded"}'
  return sharding_table(title if sizes else '1 device', parts)


def _default_devices(experiment: Experiment) -> int | None:
  """Returns the number of local devices if the size of a mesh axis is -1; else None."""
  free = -1 in (getattr(experiment.mesh, axis) for axis in MESH_AXES)
  return jax.device_count() if free else None


def check_splits(run: TrainingRun) -> None:
  """Raises UserError if a source lacks a split of the task or of `Experiment.evaluations`."""
  # A source may download its data to list its splits.
  with run.processes.process_zero_first():
    run.task.check_split(run.task.train_split)
    for name, task, split in _eval_splits(run):
      with _evaluation_in_errors(name):
        task.check_split(split)


def check_data(run: TrainingRun, rows: Sequence[Mapping[str, Any]], batches: Batches) -> None:
  """Checks the data of training and of all evaluations, and prepares the evaluation splits.

  Checks labels, one batch of each split, and the arguments of generation; steps are traced, not run.

  Args:
    run: the run.
    rows: rows of the train split.
    batches: batches of these rows.

  Raises:
    UserError: a split is empty, or does not fit the task or the model.
  """
  task, model = run.task, cast(Model, run.program.blueprint.shapes)
  task.check_rows(task.train_split, rows)
  _note(run, task, task.train_split, rows)
  _check_batch(task, batches[0], len(batches.part), task.train_split)
  check_evaluations(run.program)
  for name, task, split in _eval_splits(run):
    with _evaluation_in_errors(name):
      for part in task.parts.values():
        part_split = task.split_of(part, split)
        rows = run.rows(part_split, part)
        part.check_rows(part_split, rows)
        _note(run, part, part_split, rows)
        batch = run.evaluation_batches(rows, part)[0]
        size = len(batches.part) if part.eval_rows is None else part.eval_rows // run.part[1]
        _check_batch(part, batch, size, part_split)
      if name is not None:
        run.experiment.evaluations[name].check(task, model)


def _note(run: TrainingRun, task: Task, split: str, rows: Sequence[Mapping[str, Any]]) -> None:
  """Prints a warning about the rows of a split."""
  if (note := task.note_rows(split, rows)) and run.processes.first:
    log.warning('warning: %s', note)


def _eval_splits(run: TrainingRun) -> Iterator[tuple[str | None, Task, str]]:
  """Yields (name, task, split) of each evaluation; the name is None for the task of the run."""
  yield None, run.task, run.task.eval_split
  for name, evaluator in run.experiment.evaluations.items():
    task = run.experiment.evaluated_task(name)
    yield name, task, evaluator.split or task.eval_split


def _check_batch(task: Task, batch: Mapping[str, np.ndarray], batch_size: int, split: str) -> None:
  """Raises UserError if a batch does not have the shapes and dtypes of `task.spec(batch_size)`."""
  spec = {name: (field.dtype, field.shape) for name, field in task.spec(batch_size).items()}
  actual = {name: (array.dtype, array.shape) for name, array in batch.items()}
  for name, (dtype, shape) in actual.items() if split == task.train_split else ():
    # A batch of a bucket is shorter.
    if len(shape) > 1 and shape[1] in task.row_lengths:
      actual[name] = dtype, (shape[0], spec[name][1][1], *shape[2:])
  for name in sorted({*spec, *actual}):
    if actual.get(name) != spec.get(name):
      raise UserError(
        f"in a batch of the split '{split}', '{name}' is {_array_text(actual.get(name))}, but "
        f'{type(task).__name__} expects {_array_text(spec.get(name))}: set its lengths, shapes or '
        'classes to those of the data'
      )


def _array_text(array: tuple[Any, tuple[int, ...]] | None) -> str:
  return 'missing' if array is None else f'{array[0]}{list(array[1])}'
