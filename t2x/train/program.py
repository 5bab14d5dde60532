"""What is traced and compiled for an experiment: shapes, and the jitted functions over them."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from t2x.parallel import Activations, batch_sharding
from t2x.tasks import Task
from t2x.tasks.losses import Sums
from t2x.train.experiment import Experiment
from t2x.train.fit import check_evaluations, check_fit
from t2x.train.state import TrainState, abstract_state, init_function, optimizer_for
from t2x.train.step import NO_SCALARS, Scalars, make_eval_step, make_train_step, scalar_shapes

__all__ = ['Program', 'memory_of']

# `jax.tree.leaves(state)`, or what a program that keeps them elsewhere gives out in their place.
Leaves = Any
TrainStep = Callable[[Leaves, Mapping[str, jax.Array]], tuple[Leaves, Sums, jax.Array]]
EvalStep = Callable[[Any, Mapping[str, jax.Array]], Sums]


class Program:
  """The compiled side of an experiment, for all runs whose configs differ only in the seed and in
  hyperparameters that are its inputs.

  Args:
    experiment: what is compiled.
    values: of the hyperparameters that the experiment holds references to, by name; see `at`.

  Attributes:
    mesh: the devices.
    layout: where the activations of a step are split over them; None for one device.
    optimizer: the update rule with its schedule.
    abstract: shapes and shardings of the train state.

  Raises:
    UserError: parts that do not fit each other or the devices.
  """

  def __init__(self, experiment: Experiment, values: Mapping[str, float] = NO_SCALARS):
    experiment = experiment.sized()
    _, task, _ = experiment.complete()
    self.experiment = experiment
    self.mesh = experiment.mesh.build()
    self.optimizer = optimizer_for(experiment)
    self.abstract = abstract_state(experiment, self.optimizer, self.mesh)
    task.check_model(self.abstract.model)
    check_fit(experiment, self.mesh, self.abstract.model)
    self.layout = Activations.of(self.mesh, experiment.mesh)
    scalars = scalar_shapes(values)
    check_evaluations(experiment, self.mesh, self.abstract.model, self.layout, scalars)
    self._compiled: dict[str, Any] = {}
    self._values = values

  def at(self, values: Mapping[str, float]) -> 'Program':
    """The same program for a run with these values of its hyperparameters."""
    other = copy.copy(self)
    other._values = values
    return other

  def init(self, seed: int) -> TrainState:
    """A new state: every parameter is made where it will live."""
    if 'init' not in self._compiled:
      shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
      # What runs once is not worth the seconds that LLVM takes to make it fast.
      options = {'xla_backend_optimization_level': 0} if jax.default_backend() == 'cpu' else None
      self._compiled['init'] = jax.jit(
        init_function(self.experiment, self.optimizer),
        out_shardings=shardings,
        compiler_options=options,
      )
    return self._compiled['init'](jax.random.key(seed))

  def whole(self, leaves: Leaves) -> TrainState:
    """The state of these leaves (`jax.tree.leaves(state)`)."""
    return jax.tree.unflatten(jax.tree.structure(self.abstract), leaves)

  def at_disk(self, finish: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Held by a run that saves or restores; `finish` returns when nothing is under way."""
    return contextlib.nullcontext()

  def train_step(self, tokenizer: Any) -> TrainStep:
    """The jitted step, `(leaves of a state, batch) -> (leaves, sums, norms)`; the leaves are donated.

    Leaves, because to take modules apart and put them together again takes Python longer than a
    small step takes the device. `whole` makes a state of them.

    Args:
      tokenizer: the runs' fitted tokenizer, the same for all of them.
    """
    if 'train' not in self._compiled:
      shardings = [leaf.sharding for leaf in jax.tree.leaves(self.abstract)]
      self._compiled['train'] = jax.jit(
        self.step(tokenizer), donate_argnums=0, out_shardings=(shardings, None, None)
      )
    step, scalars = self._compiled['train'], self.scalars
    return lambda leaves, batch: step(leaves, batch, scalars)

  @property
  def scalars(self) -> Scalars:
    """The last argument of a step for this run: its hyperparameters by name, float32 [] each."""
    return jax.device_put({name: np.float32(value) for name, value in self._values.items()})

  def step(self, tokenizer: Any) -> Callable:
    """`(leaves, batch, scalars) -> (leaves, sums, norms)`, to be jitted."""
    _, task, trainer = self.experiment.complete()
    step = make_train_step(task.bound(tokenizer), trainer, self.optimizer, self.layout)

    def train_step(leaves, batch, scalars):
      state, sums, norms = step(self.whole(leaves), batch, scalars)
      return jax.tree.leaves(state), sums, norms

    return train_step

  def _batch(self) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch, as they come to the devices."""
    _, task, trainer = self.experiment.complete()
    sharding = batch_sharding(self.mesh)
    return {
      name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
      for name, one in task.spec(trainer.batch_size).items()
    }

  def evaluation_step(self, name: str, tokenizer: Any) -> EvalStep:
    """The jitted evaluation step of one of `Experiment.evaluations`."""
    return self._eval_step(f'evaluation {name}', self.experiment.evaluations[name], tokenizer)

  def eval_step(self, tokenizer: Any) -> EvalStep:
    """The jitted evaluation step, `(model, batch) -> sums`."""
    _, task, _ = self.experiment.complete()
    return self._eval_step('eval', task, tokenizer)

  def _eval_step(self, key: str, task: Task, tokenizer: Any) -> EvalStep:
    if key not in self._compiled:
      _, _, trainer = self.experiment.complete()
      self._compiled[key] = jax.jit(make_eval_step(task.bound(tokenizer), trainer, self.layout))
    step, scalars = self._compiled[key], self.scalars
    return lambda model, batch: step(model, batch, scalars)

  def memory_bytes(self) -> int | None:
    """What the train step takes of each device's memory: state, batch and all that lies between.

    Asks what was compiled for the first step; None: no step was taken.
    """
    step = self._compiled.get('train')
    if step is None:
      return None
    return memory_of(step, jax.tree.leaves(self.abstract), self._batch(), self.scalars)


def memory_of(step: Any, *arguments: Any) -> int:
  """What a jitted function takes of each device's memory, given the shapes of its arguments."""
  found = step.lower(*arguments).compile().memory_analysis()
  return (
    found.argument_size_in_bytes
    + found.output_size_in_bytes
    + found.temp_size_in_bytes
    - found.alias_size_in_bytes
  )
