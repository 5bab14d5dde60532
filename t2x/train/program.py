"""What is traced and compiled for an experiment: shapes, and the jitted functions over them."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from t2x.parallel import Activations, batch_sharding
from t2x.tasks.losses import Sums
from t2x.train.experiment import Experiment
from t2x.train.fit import check_evaluations, check_fit
from t2x.train.numbers import Inputs, blamed
from t2x.train.state import TrainState, abstract_state, init_function, optimizer_for
from t2x.train.step import make_eval_step, make_train_step

__all__ = ['Program', 'memory_of']

# `jax.tree.leaves(state)`, or what a program that keeps them elsewhere gives out in their place.
Leaves = Any
TrainStep = Callable[[Leaves, Mapping[str, jax.Array]], tuple[Leaves, Sums, jax.Array]]
EvalStep = Callable[[Any, Mapping[str, jax.Array]], Sums]


class Program:
  """The compiled side of an experiment, for all runs whose configs differ in the seed alone, or in
  numbers that are its inputs.

  Args:
    experiment: what is compiled; a `Number` may stand where a float would.

  Attributes:
    mesh: the devices.
    layout: where the activations of a step are split over them; None for one device.
    optimizer: the update rule with its schedule.
    abstract: shapes and shardings of the train state.

  Raises:
    UserError: parts that do not fit each other or the devices.
  """

  def __init__(self, experiment: Experiment):
    experiment = experiment.sized()
    _, task, _ = experiment.complete()
    self.experiment = experiment
    self.mesh = experiment.mesh.build()
    self.optimizer = optimizer_for(experiment)
    self.abstract = abstract_state(experiment, self.optimizer, self.mesh)
    task.check_model(self.abstract.model)
    check_fit(experiment, self.mesh, self.abstract.model)
    self.layout = Activations.of(self.mesh, experiment.mesh)
    check_evaluations(experiment, self.mesh, self.abstract.model, self.layout)
    self._compiled: dict[str, Any] = {}
    self._inputs = Inputs()
    self._values: Mapping[str, float] = {}

  def at(self, values: Mapping[str, float]) -> 'Program':
    """The same program for a run with these values of its numbers."""
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
    step = self._compiled['train']
    vector = self.vector(step)
    return lambda leaves, batch: step(leaves, batch, vector)

  def vector(self, step: Callable) -> Any:
    """The last argument of `step` for this run; () without numbers.

    Raises:
      Fixed: numbers cannot stand where they stand.
    """
    if not self._values:
      return ()
    # Traced now, so that it is known what has become of the numbers.
    zeros = np.zeros(Inputs.SIZE, 'f4')
    with blamed(self._values):
      jax.eval_shape(step, jax.tree.leaves(self.abstract), self._batch(), zeros)
    return jax.device_put(self._inputs.vector(self._values))

  def step(self, tokenizer: Any) -> Callable:
    """`(leaves, batch, vector) -> (leaves, sums, norms)`, to be jitted."""
    _, task, trainer = self.experiment.complete()
    step = make_train_step(task.bound(tokenizer), trainer, self.optimizer, self.layout)

    def train_step(leaves, batch, vector):
      with self._inputs.given(vector):
        state, sums, norms = step(self.whole(leaves), batch)
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
    key = f'evaluation {name}'
    if key not in self._compiled:
      _, _, trainer = self.experiment.complete()
      task = self.experiment.evaluations[name].bound(tokenizer)
      self._compiled[key] = jax.jit(make_eval_step(task, trainer, self.layout))
    return self._blaming(self._compiled[key])

  def eval_step(self, tokenizer: Any) -> EvalStep:
    """The jitted evaluation step, `(model, batch) -> sums`."""
    if 'eval' not in self._compiled:
      _, task, trainer = self.experiment.complete()
      self._compiled['eval'] = jax.jit(make_eval_step(task.bound(tokenizer), trainer, self.layout))
    return self._blaming(self._compiled['eval'])

  def _blaming(self, step: EvalStep) -> EvalStep:
    """What raises Fixed where the numbers may be why it fails."""
    return blamed(self._values)(step) if self._values else step

  def memory_bytes(self) -> int | None:
    """What the train step takes of each device's memory: state, batch and all that lies between.

    Asks what was compiled for the first step; None: no step was taken.
    """
    step = self._compiled.get('train')
    if step is None:
      return None
    vector = np.zeros(Inputs.SIZE, 'f4') if self._values else ()
    return memory_of(step, jax.tree.leaves(self.abstract), self._batch(), vector)


def memory_of(step: Any, *arguments: Any) -> int:
  """What a jitted function takes of each device's memory, given the shapes of its arguments."""
  found = step.lower(*arguments).compile().memory_analysis()
  return (
    found.argument_size_in_bytes
    + found.output_size_in_bytes
    + found.temp_size_in_bytes
    - found.alias_size_in_bytes
  )
