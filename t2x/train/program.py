"""Shapes, shardings and jitted functions of an experiment."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh

from t2x.errors import UserError
from t2x.hyperparameters import given
from t2x.layers import initialized, named_key
from t2x.models.losses import Sums
from t2x.parallel import (
  Activations,
  batch_sharding,
  check_batch,
  check_length,
  state_shardings,
)
from t2x.tasks import Task
from t2x.train.flops import row_lengths
from t2x.train.optimizers import build_optimizer
from t2x.train.params import Blueprint, Groups, ParamInfo, Params
from t2x.train.step import (
  NO_SCALARS,
  Scalars,
  StepSums,
  TrainState,
  init_state,
  make_eval_step,
  make_train_step,
  scalar_shapes,
)
from t2x.train.teacher import FrozenTeacher

if TYPE_CHECKING:
  from t2x.train.experiment import Experiment, Trainer

# Rows in an evaluation batch of an experiment without a trainer.
DEFAULT_BATCH_SIZE = 32

# A train state, or the handle of a program that stores states elsewhere.
State = Any
Batch = Mapping[str, jax.Array]
TrainStep = Callable[[State, Params, Batch], tuple[State, StepSums]]
EvalStep = Callable[[Params, Batch], Sums]


class EvalProgram:
  """A model's shapes on a mesh, and its evaluation steps.

  Args:
    experiment: has a model; bound to the runs' tokenizer, or to none if only shapes are computed.
    values: values by name of the hyperparameters that the experiment holds references to; see `at`.
    mesh: the devices; None builds `experiment.mesh`. With an abstract mesh, nothing can be run.
    batch_size: rows in an evaluation batch; None: the trainer's, or 32 without one.

  Attributes:
    experiment: the same, with the sizes of its tables.
    mesh: the devices.
    layout: where the activations of a step are split over them; None for one device.
    blueprint: the model's shapes and the metadata of its parameters.

  Raises:
    UserError: parts that do not fit each other or the devices.
  """

  def __init__(
    self,
    experiment: 'Experiment',
    values: Mapping[str, float] = NO_SCALARS,
    mesh: jax.sharding.Mesh | AbstractMesh | None = None,
    batch_size: int | None = None,
  ):
    self.experiment = experiment = experiment.bound()
    if experiment.model is None:
      raise UserError('Experiment.model is not set: there is nothing to shape')
    self.mesh: Any = experiment.mesh.build() if mesh is None else mesh
    trainer = experiment.trainer
    default = DEFAULT_BATCH_SIZE if trainer is None else trainer.batch_size
    self.batch_size = default if batch_size is None else batch_size
    self._compute_dtype = 'float32' if trainer is None else trainer.compute_dtype
    self._key = jax.eval_shape(lambda: jax.random.key(0))
    build = experiment.model
    # Traced here, once: what draws the parameters is this program, not the constructors.
    drawn, shapes = jax.make_jaxpr(lambda key: initialized(build, key), return_shape=True)(
      self._key
    )
    self._draw = jaxpr_as_fun(drawn)
    self.blueprint = Blueprint(shapes)
    self.layout = Activations.of(self.mesh, experiment.mesh)
    self._compiled: dict[str, Any] = {}
    self._values = values
    check_batch(self.mesh, self.batch_size)
    if experiment.task is not None:
      self._check_fit(experiment.task)

  def _check_fit(self, task: Task) -> None:
    """Raises UserError if the model cannot learn the task, or the length of rows does not divide over the
    mesh."""
    shapes: Any = self.blueprint.shapes
    task.check_model(shapes)
    for part, length in row_lengths(task, shapes).items():
      name = f'a row of the {part or "model"}'
      check_length(self.mesh, self.experiment.mesh.activation_rules, length, name)

  def _placed(self, infos: Mapping[str, ParamInfo], tree: Any) -> Any:
    """Returns the shapes of `tree` with shardings; its dicts hold arrays by parameter name."""
    shardings = state_shardings(self.mesh, self.experiment.mesh.rules, infos, tree)
    return jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
      tree,
      shardings,
    )

  def params_abstract(self) -> Params:
    """Shapes and shardings of all parameters."""
    blueprint = self.blueprint
    return self._placed(blueprint.infos, blueprint.params(blueprint.shapes))

  def batch(self, task: Task | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch of a task (None: the experiment's), as they come to the devices."""
    task, sharding = task or self.experiment.task, batch_sharding(self.mesh)
    spec = {} if task is None else task.spec(self.batch_size)
    return {
      name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
      for name, one in spec.items()
    }

  @property
  def scalars(self) -> Scalars:
    """The last argument of a step for this run: its hyperparameters by name, float32 [] each."""
    return jax.device_put({name: np.float32(value) for name, value in self._values.items()})

  def eval_step(self, evaluation: str | None = None) -> EvalStep:
    """The jitted evaluation step, `(all parameters, batch) -> sums`.

    Args:
      evaluation: the name of one of `Experiment.evaluations`, for its task; None: the experiment's own task.
    """
    task = self.experiment.evaluated_task(evaluation)
    key = 'evaluation' if task is self.experiment.task else f'evaluation {evaluation}'
    if key not in self._compiled:
      step = make_eval_step(task, self._compute_dtype, self.blueprint, self.layout)
      self._compiled[key] = jax.jit(step)
    step, scalars = self._compiled[key], self.scalars
    return lambda params, batch: step(params, batch, scalars)

  def check_evaluations(self) -> None:
    """Shapes the evaluation step of the task and of each of `Experiment.evaluations`.

    Raises:
      UserError: the model cannot be evaluated on one of them, such as rows that are too long.
    """
    params = self.params_abstract()
    for name in (None, *self.experiment.evaluations):
      task = self.experiment.evaluated_task(name)
      with about_evaluation(name):
        self._check_fit(task)
        jax.eval_shape(self.eval_step(name), params, self.batch(task))


@contextlib.contextmanager
def about_evaluation(name: str | None) -> Iterator[None]:
  """Errors inside say which of `Experiment.evaluations` they are about; None: the run's own task."""
  try:
    yield
  except UserError as error:
    if name is None:
      raise
    message = f"Experiment.evaluations['{name}']: {error}"
    raise UserError(message, error.exit_code) from error


class TrainProgram(EvalProgram):
  """The compiled side of a training, for all runs whose configs differ only in the seed and in
  hyperparameters that are its inputs.

  Args:
    experiment: as of `EvalProgram`; has a trainer, too. Without a task, only the state is shaped.
    values: as of `EvalProgram`.
    mesh: as of `EvalProgram`.

  Attributes:
    groups: trained and frozen parameters, and their learning rate factors.
    optimizer: the update rule with its schedule.
    abstract: shapes and shardings of the train state.
    teacher: the model that the task learns from; None if there is none.
    frozen: shapes and shardings of the frozen parameters, those of the teacher included.
  """

  def __init__(
    self,
    experiment: 'Experiment',
    values: Mapping[str, float] = NO_SCALARS,
    mesh: jax.sharding.Mesh | AbstractMesh | None = None,
  ):
    if experiment.trainer is None:
      raise UserError('Experiment.trainer is not set: it says what a train state holds')
    self.trainer: Trainer = experiment.trainer
    super().__init__(experiment, values, mesh)
    self.groups = Groups(self.trainer.groups, self.blueprint.infos)
    self.optimizer = build_optimizer(
      self.trainer.optimizer,
      self.trainer.schedule,
      clip_norm=self.trainer.clip_norm,
      num_steps=self.trainer.num_steps,
      infos=self.groups.trained,
      rates=self.groups.rates,
    )
    size, parts = self.trainer.batch_size, self.trainer.accumulate
    if parts > 1:
      name = f'Trainer.batch_size / Trainer.accumulate = {size} / {parts}'
      check_batch(self.mesh, size // parts, name)
    teacher = self.experiment.teacher
    self.teacher = None if teacher is None else FrozenTeacher(teacher)
    if self.experiment.task is not None:
      self._check_teacher(self.experiment.task)
    state, frozen = jax.eval_shape(self.initial, self._key)
    self.abstract = self._placed(self.groups.trained, state)
    self.frozen = self._placed(self.groups.frozen, frozen)
    if self.teacher is not None:
      self.frozen |= self._placed(self.teacher.infos, self.teacher.abstract())

  def at(self, values: Mapping[str, float]) -> 'TrainProgram':
    """The same program for a run with these values of its hyperparameters."""
    other = copy.copy(self)
    other._values = values
    return other

  def _check_teacher(self, task: Task) -> None:
    with given(dict.fromkeys(self._values, 1.0)):  # Only shapes are computed.
      task.check_teacher(
        self.blueprint.shapes, None if self.teacher is None else self.teacher.blueprint.shapes
      )

  def initial(self, key: jax.Array) -> tuple[TrainState, Params]:
    """The state before the first step and the model's frozen parameters, to be shaped or jitted."""
    values = self._draw(named_key(key, 'init'))
    trained, frozen = self.groups.split(dict(zip(self.blueprint.infos, values, strict=True)))
    return init_state(trained, self.trainer, self.optimizer, named_key(key, 'train')), frozen

  def init(self, seed: int) -> tuple[TrainState, Params]:
    """A new state, and the frozen parameters: each array is made where it will live, and the teacher's are
    read from its run."""
    if 'init' not in self._compiled:
      frozen = {name: self.frozen[name] for name in self.groups.frozen}
      shardings = jax.tree.map(lambda leaf: leaf.sharding, (self.abstract, frozen))
      # It runs once: optimizing takes LLVM longer than running it.
      options = {'xla_backend_optimization_level': 0} if jax.default_backend() == 'cpu' else None
      self._compiled['init'] = jax.jit(
        self.initial, out_shardings=shardings, compiler_options=options
      )
    state, frozen = self._compiled['init'](jax.random.key(seed))
    if self.teacher is not None:
      load, _ = self.teacher.plan(self.frozen)
      frozen |= load()
    return state, frozen

  def evaluated(self, state: TrainState, frozen: Params) -> Params:
    """All parameters, as evaluation uses them."""
    return self.groups.join(state.evaluated, frozen)

  def state(self, held: State) -> TrainState:
    """Returns the train state of what a step returned."""
    return held

  def at_disk(self, finish: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Held by a run that saves or restores; `finish` returns when nothing is under way."""
    return contextlib.nullcontext()

  def train_step(self) -> TrainStep:
    """The jitted step, `(state, frozen, batch) -> (state, StepSums)`; the state is donated."""
    if 'train' not in self._compiled:
      shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
      self._compiled['train'] = jax.jit(
        self.step(), donate_argnums=0, out_shardings=(shardings, None)
      )
    step, scalars = self._compiled['train'], self.scalars
    return lambda state, frozen, batch: step(state, frozen, batch, scalars)

  def step(self) -> Callable:
    """`(state, frozen, batch, scalars) -> (state, StepSums)`, to be jitted."""
    _, task, trainer = self.experiment.complete()
    return make_train_step(
      task, trainer, self.optimizer, self.blueprint, self.groups, self.layout, self.teacher
    )

  def check_step(self) -> None:
    """Shapes the train step."""
    scalars = scalar_shapes(self._values)
    jax.eval_shape(self.step(), self.abstract, self.frozen, self.batch(), scalars)

  def memory_bytes(self) -> int | None:
    """What the train step takes of each device's memory: state, batch and all that lies between.

    Asks what was compiled for the first step; None: no step was taken.
    """
    step = self._compiled.get('train')
    if step is None:
      return None
    return memory_of(step, self.abstract, self.frozen, self.batch(), self.scalars)


def memory_of(step: Any, *arguments: Any) -> int:
  """What a jitted function takes of each device's memory, given the shapes of its arguments."""
  found = step.lower(*arguments).compile().memory_analysis()
  return (
    found.argument_size_in_bytes
    + found.output_size_in_bytes
    + found.temp_size_in_bytes
    - found.alias_size_in_bytes
  )
