"""Whether an experiment fits a mesh, and a model its evaluations: told before anything is compiled."""

import dataclasses
from typing import Any

import jax
from flax import nnx

from t2x.errors import UserError
from t2x.layers.constraints import Layout
from t2x.parallel import check_batch, check_length
from t2x.tasks import Task
from t2x.train.experiment import Experiment
from t2x.train.step import Scalars, make_eval_step

__all__ = ['check_evaluations', 'check_fit', 'row_lengths']


def row_lengths(task: Task, model: nnx.Module) -> dict[str, int]:
  """Tokens in a row of the model, by top-level part: the source's side first, '' where all alike."""
  spec = task.spec(1)
  if 'source' in spec and 'target' in spec:
    return {'encoder': spec['source'].shape[1], 'decoder': spec['target'].shape[1]}
  if 'image' in spec:
    embedding = getattr(model, 'embedding', None)
    height, width = spec['image'].shape[1:3]
    patch = getattr(embedding, 'patch_size', 1)
    extra = int(getattr(embedding, 'class_token', None) is not None)
    return {'': (height // patch) * (width // patch) + extra}
  rows = [one.shape[1] for one in spec.values() if len(one.shape) == 2]
  return {'': max(rows, default=1)}


def check_fit(experiment: Experiment, mesh: Any, model: nnx.Module) -> None:
  """Raises UserError when the batch or the length of rows does not divide over a mesh.

  Parameters are checked where their shardings are made.

  Args:
    experiment: with task and trainer.
    mesh: the devices, which need not be there.
    model: the model's shapes.
  """
  _, task, trainer = experiment.complete()
  check_batch(mesh, trainer.batch_size)
  if trainer.accumulate > 1:
    name = f'Trainer.batch_size / Trainer.accumulate = {trainer.batch_size} / {trainer.accumulate}'
    check_batch(mesh, trainer.batch_size // trainer.accumulate, name)
  for part, length in row_lengths(task, model).items():
    name = f'a row of the {part or "model"}'
    check_length(mesh, experiment.mesh.activation_rules, length, name)


def check_evaluations(
  experiment: Experiment,
  mesh: Any,
  model: nnx.Module,
  layout: Layout | None,
  scalars: Scalars,
) -> None:
  """Shapes an evaluation step of each of `Experiment.evaluations`.

  Args:
    experiment: with task and trainer.
    mesh: the devices, which need not be there.
    model: the model's shapes.
    layout: where activations are split.
    scalars: shapes of the hyperparameters that are inputs of a step.

  Raises:
    UserError: the model cannot be evaluated on one of them, such as rows that are too long.
  """
  _, _, trainer = experiment.complete()
  for name, task in experiment.evaluations.items():
    try:
      task.check_model(model)
      check_fit(dataclasses.replace(experiment, task=task), mesh, model)
      batch = task.spec(trainer.batch_size)
      jax.eval_shape(make_eval_step(task, trainer, layout), model, batch, scalars)
    except UserError as error:
      raise UserError(f"Experiment.evaluations['{name}']: {error}") from error
