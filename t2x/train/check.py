"""Whether an experiment works: its shapes, without weights, data or devices; and its data, before the
first step, so that nothing is trained for an evaluation that then cannot be done."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from t2x.data import Batches
from t2x.errors import UserError
from t2x.layers import Pattern
from t2x.layers.pattern_image import draw
from t2x.models import Decoder, Encoder
from t2x.parallel import MESH_AXES, as_tuple, sharding_table
from t2x.tasks import Task, TextTask
from t2x.train.program import TrainProgram, about_evaluation
from t2x.train.teacher import FrozenTeacher

if TYPE_CHECKING:
  from t2x.train.experiment import Experiment
  from t2x.train.init_from import InitFrom
  from t2x.train.run import TrainingRun


def check_experiment(
  experiment: 'Experiment', num_devices: int | None = None, hyperparameters: Collection[str] = ()
) -> str:
  """Runs constructor, train step and evaluation steps under `jax.eval_shape`.

  Args:
    experiment: it may lack a task, a trainer or both.
    num_devices: the size of the mesh; None: what its sizes say, the one that is free being 1.
    hyperparameters: names of the parameters that are inputs of a step.

  Returns:
    A line with the numbers of parameters and bytes, then the table of `Trainer.groups` if there are any.

  Raises:
    UserError: parts that do not fit each other.
  """
  task = experiment.task
  if isinstance(task, TextTask) and task.vocab_size is None and not task.is_fitted():
    raise UserError(
      'the size of the vocabulary is not known before the tokenizer is fitted: run `t2x data '
      f'tokenizer` with this config first, or set {type(task.tokenizer).__name__}.vocab_size'
    )
  if experiment.model is None:
    return 'no model to shape'
  values, mesh = dict.fromkeys(hyperparameters, 0.0), experiment.mesh.abstract(num_devices)
  program = TrainProgram(experiment.with_trainer(mesh.size), values, mesh)
  report = f'{program.blueprint.size:,} parameters'
  if program.teacher is not None:
    report += f'; {_check_teacher(program.teacher, program.frozen)}'
  if experiment.init_from is not None:
    report += f'; {_check_init_from(experiment.init_from, program.params_abstract())}'
  if experiment.task is None or experiment.trainer is None:
    return report
  program.check_step()
  program.check_evaluations()
  state = jax.tree.leaves((program.abstract, program.frozen))
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in state)
  report += f', train state {size / 2**30:.2f} GiB'
  if experiment.trainer.groups:
    report += f'\n{program.groups.table()}'
  return report


def _check_teacher(teacher: FrozenTeacher, frozen: Mapping[str, Any]) -> str:
  """Returns the number of parameters of the teacher and its run, which may not exist yet."""
  size, run = f'a teacher of {teacher.blueprint.size:,} parameters', teacher.teacher.init_from.run
  if not Path(run).is_dir():
    return f'{size}, whose run {run} does not exist yet'
  _, source = teacher.plan(frozen)
  return f'{size}, {source}'


def _check_init_from(init_from: 'InitFrom', params: Mapping[str, Any]) -> str:
  """What would be loaded; the other run may well be one that is yet to come."""
  if not Path(init_from.run).is_dir():
    return f'nothing in {init_from.run} to be initialised from as yet'
  _, table = init_from.plan(params)
  return table.splitlines()[0]


def layout_report(experiment: 'Experiment', num_devices: int | None = None) -> str:
  """The table of `t2x show --sharding`: parameters, optimizer state, average, batch, totals.

  Args:
    experiment: needs a model; without a trainer the default optimizer is shown, without a task no
      batch.
    num_devices: of a mesh that may be larger than this machine; None: as the mesh says, or this
      machine's.

  Raises:
    UserError: what does not divide over the mesh.
  """
  if experiment.model is None:
    raise UserError('Experiment.model is not set: there is nothing to lay out')
  settings = experiment.mesh
  mesh: Any = settings.abstract(num_devices or settings.num_devices or _default(experiment))
  program = TrainProgram(experiment.with_trainer(mesh.size), mesh=mesh)
  state = program.abstract
  parts: dict[str, Any] = {'parameters': state.params, 'optimizer state': state.opt_state}
  if program.frozen:
    parts['frozen'] = program.frozen
  if state.ema is not None:
    parts['average'] = state.ema
  if experiment.task is not None:
    parts['batch'] = program.batch()
  return sharding_table(_title(experiment, mesh), parts)


def _default(experiment: 'Experiment') -> int | None:
  """This machine's devices where an axis takes what is left; else what the sizes say."""
  free = -1 in (getattr(experiment.mesh, axis) for axis in MESH_AXES)
  return jax.device_count() if free else None


def _title(experiment: 'Experiment', mesh: Any) -> str:
  sizes = [f'{axis} {size}' for axis, size in mesh.shape.items() if size > 1]
  told = f'{mesh.size} devices: {" x ".join(sizes)}' if sizes else '1 device'
  if not sizes:
    return told
  split = {
    axis: '+'.join(one for one in as_tuple(names) if mesh.shape[one] > 1)
    for axis, names in experiment.mesh.activation_rules.items()
  }
  inside = ', '.join(f'{axis} over {names}' for axis, names in split.items() if names)
  return f'{told}; activations: {inside or "whole"}'


def check_splits(run: 'TrainingRun') -> None:
  """Raises UserError unless the sources have the splits of the task and of `Experiment.evaluations`."""
  # To say which splits there are a source may have to be downloaded.
  with run.processes.process_zero_first():
    run.task.check_split(run.task.train_split)
    for name, task, split in _evaluated(run):
      with about_evaluation(name):
        task.check_split(split)


def check_data(run: 'TrainingRun', rows: Any, batches: Batches) -> None:
  """Checks the train rows, and all that evaluations read; prepares their splits.

  Looks at labels, a batch of each, the evaluation step and generation; the steps are shaped, not run.

  Args:
    run: the run.
    rows: of the train split.
    batches: made of them.

  Raises:
    UserError: a split without rows, or one that does not fit the task or the model.
  """
  task, model = run.task, run.program.blueprint.shapes
  task.check_rows(task.train_split, rows)
  _check_batch(task, batches[0], len(batches.part), task.train_split)
  run.program.check_evaluations()
  for name, task, split in _evaluated(run):
    with about_evaluation(name):
      rows = run.rows(split, task)
      task.check_rows(split, rows)
      batch = run.evaluation_batches(rows, task)[0]
      _check_batch(task, batch, len(batches.part), split)
      if name is not None:
        run.experiment.evaluations[name].check(task, model)


def _evaluated(run: 'TrainingRun') -> Iterator[tuple[str | None, Task, str]]:
  """Yields name, task and split of all that is evaluated; the run's own task has no name."""
  yield None, run.task, run.task.eval_split
  for name, evaluator in run.experiment.evaluations.items():
    task = run.experiment.evaluated_task(name)
    yield name, task, evaluator.split or task.eval_split


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


def _told(what: tuple[Any, tuple[int, ...]] | None) -> str:
  return 'nothing' if what is None else f'{what[0]}{list(what[1])}'


def draw_patterns(
  experiment: 'Experiment', path: Path, length: int
) -> Iterator[tuple[Path, Pattern]]:
  """Writes a picture of every distinct attention pattern of the model: `path`, `path-2`, ..."""
  model = experiment.shapes()
  seen: list[Pattern] = []
  for _, body in nnx.iter_modules(model):
    if isinstance(body, (Encoder, Decoder)):
      seen += [pattern for pattern in dict.fromkeys(body.patterns) if pattern not in seen]
  for number, pattern in enumerate(seen, 1):
    name = path if number == 1 else path.with_stem(f'{path.stem}-{number}')
    draw(pattern, name, length=length)
    yield name, pattern
