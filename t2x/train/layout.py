"""What every device would hold of an experiment, without weights and without the devices."""

import dataclasses
from typing import Any

import jax

from t2x.errors import UserError
from t2x.parallel import MESH_AXES, as_tuple, batch_sharding, sharding_table
from t2x.train.experiment import Experiment, Trainer
from t2x.train.fit import check_fit
from t2x.train.state import abstract_state, optimizer_for

__all__ = ['layout_report']


def layout_report(experiment: Experiment, num_devices: int | None = None) -> str:
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
  trainer = experiment.trainer or Trainer(num_steps=1, batch_size=mesh.size)
  experiment = dataclasses.replace(experiment, trainer=trainer)
  state = abstract_state(experiment, optimizer_for(experiment), mesh)
  parts: dict[str, Any] = {'parameters': state.model, 'optimizer state': state.opt_state}
  if state.ema is not None:
    parts['average'] = state.ema
  if experiment.task is not None:
    check_fit(experiment, mesh, state.model)
    rows = batch_sharding(mesh)
    parts['batch'] = {
      name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=rows)
      for name, one in experiment.task.spec(trainer.batch_size).items()
    }
  return sharding_table(_title(experiment, mesh), parts)


def _default(experiment: Experiment) -> int | None:
  """This machine's devices where an axis takes what is left; else what the sizes say."""
  free = -1 in (getattr(experiment.mesh, axis) for axis in MESH_AXES)
  return jax.device_count() if free else None


def _title(experiment: Experiment, mesh: Any) -> str:
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
