"""Shapes a whole experiment without weights, data or devices."""

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from t2x.errors import UserError
from t2x.layers import Pattern
from t2x.layers.picture import draw
from t2x.parallel import Activations
from t2x.tasks import TextTask
from t2x.train.experiment import Experiment
from t2x.train.fit import check_evaluations, check_fit
from t2x.train.init_from import InitFrom
from t2x.train.state import abstract_state, optimizer_for
from t2x.train.step import make_eval_step, make_train_step, scalar_shapes

__all__ = ['check_experiment', 'draw_patterns', 'num_parameters']


def num_parameters(model: nnx.Module) -> int:
  """Number of scalars in a model's (or its shapes') parameters."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model))


def check_experiment(
  experiment: Experiment, num_devices: int | None = None, hyperparameters: Collection[str] = ()
) -> str:
  """Runs constructor, train step and eval step under `jax.eval_shape`. Returns what was seen.

  `num_devices` is the size of the mesh; None: what its sizes say, the one that is free being 1.
  `hyperparameters` names the parameters that are inputs of a step.

  Raises:
    UserError: parts that do not fit each other.
  """
  task = experiment.task
  if isinstance(task, TextTask) and task.vocab_size is None and not task.is_fitted():
    raise UserError(
      'the size of the vocabulary is not known before the tokenizer is fitted: run `t2x data '
      f'tokenizer` with this config first, or set {type(task.tokenizer).__name__}.vocab_size'
    )
  experiment = experiment.sized()
  build = experiment.model
  if build is None:
    return 'no model to shape'
  model = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
  report = f'{num_parameters(model):,} parameters'
  if experiment.init_from is not None:
    report += f'; {_check_init_from(experiment.init_from, model)}'
  if experiment.task is None:
    return report
  experiment.task.check_model(model)
  if experiment.trainer is None:
    return report
  trainer, optimizer = experiment.trainer, optimizer_for(experiment)
  mesh = experiment.mesh.abstract(num_devices)
  check_fit(experiment, mesh, model)
  state = abstract_state(experiment, optimizer, mesh)
  batch = experiment.task.spec(trainer.batch_size)
  layout = Activations.of(mesh, experiment.mesh)
  step, scalars = (
    make_train_step(experiment.task, trainer, optimizer, layout),
    scalar_shapes(hyperparameters),
  )
  jax.eval_shape(step, state, batch, scalars)
  jax.eval_shape(make_eval_step(experiment.task, trainer, layout), state.model, batch, scalars)
  check_evaluations(experiment, mesh, state.model, layout, scalars)
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
  return f'{report}, train state {size / 2**30:.2f} GiB'


def _check_init_from(init_from: InitFrom, model: nnx.Module) -> str:
  """What would be loaded; the other run may well be one that is yet to come."""
  if not Path(init_from.run).is_dir():
    return f'nothing in {init_from.run} to be initialised from as yet'
  _, table = init_from.plan(model)
  return table.splitlines()[0]


def draw_patterns(
  experiment: Experiment, path: Path, length: int
) -> Iterator[tuple[Path, Pattern]]:
  """Writes a picture of every distinct attention pattern of the model: `path`, `path-2`, ..."""
  build = experiment.sized().model
  if build is None:
    raise UserError('Experiment.model is not set: there is no pattern to draw')
  model = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
  seen: list[Pattern] = []
  bodies: list[Any] = [part for _, part in nnx.iter_modules(model) if hasattr(part, 'stack')]
  for body in bodies:
    for block in body.stack.blocks:
      pattern = body.pattern & block.pattern
      if pattern not in seen:
        seen.append(pattern)
  for number, pattern in enumerate(seen, 1):
    name = path if number == 1 else path.with_stem(f'{path.stem}-{number}')
    draw(pattern, name, length=length)
    yield name, pattern
