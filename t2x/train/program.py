"""Shapes, shardings and jitted functions of an experiment."""

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import initialized, named_key
from t2x.parallel import (
  Activations,
  batch_sharding,
  check_batch,
  check_length,
  state_shardings,
)
from t2x.tasks import Task
from t2x.train.experiment import Experiment, Trainer, row_lengths
from t2x.train.groups import Groups
from t2x.train.logs.flops import PEAK_FLOPS, Flops, flops_per_token
from t2x.train.logs.step_sums import EvalSums, NormsPerLayer, StepSums
from t2x.train.optimizers import build_optimizer
from t2x.train.params import TEACHER, Blueprint, ParamInfo, Params
from t2x.train.step import (
  NO_SCALARS,
  Scalars,
  TrainState,
  init_state,
  make_eval_step,
  make_train_step,
)

__all__ = ['Program']

# A train state, or the handle of a program that stores the state of several runs together.
State = Any
Batch = Mapping[str, jax.Array]
TrainStep = Callable[[State, Params, Batch], tuple[State, StepSums]]
EvalStep = Callable[[Params, Batch], EvalSums]


class Program:
  """Shapes, shardings and jitted functions of an experiment on a mesh.

  Runs that differ only in the seed and in input hyperparameters share a program.

  Args:
    experiment: needs a model; a trainer for the train state, and a task for the steps. Bound to the run's
      tokenizer if anything but shapes is computed.
    values: values by name of the hyperparameters that are inputs of a step; see `at`.
    mesh: the devices; None builds `experiment.mesh`. Nothing can be run on an abstract mesh.
    batch_size: rows in an evaluation batch; None for `Trainer.batch_size`, or 32 without a trainer.

  Attributes:
    experiment: the experiment with its vocabulary sizes set.
    mesh: the devices.
    layout: sharding of the activations; None for one device.
    blueprint: shapes of the model and metadata of its parameters.
    compute_dtype: dtype in which the model evaluates and generates: that of the trainer, or float32 without a
      trainer.

  Raises:
    UserError: parts of the experiment do not fit each other or the mesh. What only training needs is checked when
      `abstract` is first read.
  """

  def __init__(
    self,
    experiment: Experiment,
    values: Mapping[str, float] = NO_SCALARS,
    mesh: jax.sharding.Mesh | AbstractMesh | None = None,
    batch_size: int | None = None,
  ):
    self.experiment = experiment = experiment.bound()
    build = experiment.complete_model()
    self.mesh: jax.sharding.Mesh | AbstractMesh = experiment.mesh.build() if mesh is None else mesh
    trainer = experiment.trainer
    default = 32 if trainer is None else trainer.batch_size
    self.batch_size = default if batch_size is None else batch_size
    self.compute_dtype = 'float32' if trainer is None else trainer.compute_dtype
    self._key = jax.eval_shape(lambda: jax.random.key(0))
    # The constructors run once, to be traced; this program initialises the parameters.
    jaxpr, shapes = jax.make_jaxpr(lambda key: initialized(build, key), return_shape=True)(
      self._key
    )
    self._init_params = jaxpr_as_fun(jaxpr)
    self.blueprint = Blueprint(shapes)
    self.layout = Activations.of(self.mesh, experiment.mesh)
    self._compiled: dict[str, Any] = {}
    self._values = values
    check_batch(self.mesh, self.batch_size)
    if experiment.task is not None:
      self.check_fit(experiment.task)

  def check_fit(self, task: Task) -> None:
    """Raises UserError if the model does not support the task, or the mesh does not divide its row length."""
    shapes: Any = self.blueprint.shapes
    task.check_model(shapes)
    for one in task.parts.values():
      if one.eval_rows is not None:
        check_batch(self.mesh, one.eval_rows, f'{type(one).__name__}.eval_rows')
    for part, length in row_lengths(task, shapes).items():
      name = f'a row of the {part or "model"}'
      check_length(self.mesh, self.experiment.mesh.activation_rules, length, name)
    for length in task.row_lengths:
      name = f'a bucket of {type(task).__name__}.buckets'
      check_length(self.mesh, self.experiment.mesh.activation_rules, length, name)

  def _with_shardings(self, infos: Mapping[str, ParamInfo], tree: object) -> Any:
    """Adds shardings to the shapes in `tree`, whose dicts have parameter names as keys."""
    shardings = state_shardings(self.mesh, self.experiment.mesh.rules, infos, tree)
    return jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
      tree,
      shardings,
    )

  def params_abstract(self) -> Params:
    """Shapes and shardings of all parameters."""
    blueprint = self.blueprint
    return self._with_shardings(blueprint.infos, blueprint.params(blueprint.shapes))

  def batch(
    self, task: Task | None = None, num_rows: int | None = None
  ) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and shardings of a task's global batch; None: the experiment's task, the rows of a training batch."""
    task, sharding = task or self.experiment.task, batch_sharding(self.mesh)
    spec = {} if task is None else task.spec(num_rows or self.batch_size)
    return {
      name: jax.ShapeDtypeStruct(field.shape, field.dtype, sharding=sharding)
      for name, field in spec.items()
    }

  @property
  def scalars(self) -> Scalars:
    """Hyperparameters by name, the last argument of a step; float32 [] each."""
    return jax.device_put({name: np.float32(value) for name, value in self._values.items()})

  def eval_step(self, evaluation: str | None = None) -> EvalStep:
    """Returns the jitted evaluation step, `(params, batch) -> EvalSums`; `params` are all parameters.

    Args:
      evaluation: name in `Experiment.evaluations`, for the task of that evaluator; None for the experiment's
        task.
    """
    task = self.experiment.evaluated_task(evaluation)
    key = 'evaluation' if task is self.experiment.task else f'evaluation {evaluation}'
    if key not in self._compiled:
      # The tasks of a mixture have one loss.
      (task, *_) = task.parts.values()
      step = make_eval_step(task, self.compute_dtype, self.blueprint, self.layout)
      self._compiled[key] = jax.jit(step)
    step, scalars = self._compiled[key], self.scalars
    return lambda params, batch: step(params, batch, scalars)

  @property
  def trainer(self) -> Trainer:
    """The trainer of the experiment; raises UserError without one."""
    if self.experiment.trainer is None:
      raise UserError('Experiment.trainer is not set: the train state depends on it')
    return self.experiment.trainer

  @functools.cached_property
  def groups(self) -> Groups:
    """Trained and frozen parameters, and their learning rate factors."""
    return Groups(self.trainer.groups, self.blueprint.infos)

  @functools.cached_property
  def optimizer(self) -> optax.GradientTransformation:
    """The update rule with its learning rate."""
    trainer, scaling = self.trainer, self.experiment.scaling()
    return build_optimizer(
      trainer.optimizer,
      trainer.schedule,
      clip_norm=trainer.clip_norm,
      num_steps=trainer.num_steps,
      infos=self.groups.trained,
      rates=self.groups.rates,
      scales=None if scaling is None else scaling.steps,
    )

  @functools.cached_property
  def teacher(self) -> Blueprint | None:
    """The model to distil from, with parameter names `teacher.NAME`; None without distillation."""
    teacher = self.experiment.teacher
    if teacher is None:
      return None
    return Blueprint(jax.eval_shape(lambda: teacher.model(rngs=nnx.Rngs(0))), TEACHER)

  @property
  def abstract(self) -> TrainState:
    """Shapes and shardings of the train state."""
    return self._state_shapes[0]

  @property
  def frozen(self) -> Params:
    """Shapes and shardings of the frozen parameters, including those of the teacher."""
    return self._state_shapes[1]

  @functools.cached_property
  def _state_shapes(self) -> tuple[TrainState, Params]:
    trainer, groups, teacher = self.trainer, self.groups, self.teacher
    if trainer.accumulate > 1:
      size, count = trainer.batch_size, trainer.accumulate
      name = f'Trainer.batch_size / Trainer.accumulate = {size} / {count}'
      check_batch(self.mesh, size // count, name)
    if self.experiment.task is not None:
      with in_step(scalars=dict.fromkeys(self._values, 1.0)):  # Only shapes are computed.
        self.experiment.task.check_teacher(
          self.blueprint.shapes, None if teacher is None else teacher.shapes
        )
    state, frozen = jax.eval_shape(self._initial, self._key)
    frozen = self._with_shardings(groups.frozen, frozen)
    if teacher is not None:
      frozen |= self._with_shardings(teacher.infos, teacher.params(teacher.shapes))
    return self._with_shardings(groups.in_state, state), frozen

  @functools.cached_property
  def flops(self) -> Flops:
    """FLOPs of training per token."""
    _, task, _ = self.experiment.complete()
    return flops_per_token(task, self.blueprint.shapes)

  @functools.cached_property
  def row_lengths(self) -> dict[str, int]:
    """Tokens per row by top-level part; see `t2x.train.experiment.row_lengths`."""
    _, task, _ = self.experiment.complete()
    return row_lengths(task, self.blueprint.shapes)

  def at(self, values: Mapping[str, float]) -> 'Program':
    """Returns the same program with other values of its hyperparameters; nothing is compiled again."""
    _ = self.abstract  # Computed once for all copies.
    other = copy.copy(self)
    other._values = values
    return other

  def _initial(self, key: jax.Array) -> tuple[TrainState, Params]:
    values = self._init_params(named_key(key, 'init'))
    trained, frozen = self.groups.split(dict(zip(self.blueprint.infos, values, strict=True)))
    key = named_key(key, 'train')
    return init_state(trained, self.trainer, self.optimizer, key, self.groups), frozen

  def init(self, seed: int) -> tuple[TrainState, Params]:
    """Initialises the state and the frozen parameters, sharded; loads the parameters of the teacher."""
    if 'init' not in self._compiled:
      frozen = {name: self.frozen[name] for name in self.groups.frozen}
      shardings = jax.tree.map(lambda leaf: leaf.sharding, (self.abstract, frozen))
      # It runs once, and LLVM would take longer to optimize than to run it.
      options = {'xla_backend_optimization_level': 0} if jax.default_backend() == 'cpu' else None
      self._compiled['init'] = jax.jit(
        self._initial, out_shardings=shardings, compiler_options=options
      )
    state, frozen = self._compiled['init'](jax.random.key(seed))
    if self.experiment.teacher is not None:
      load, _ = self.experiment.teacher.plan(self.frozen)
      frozen |= load()
    return state, frozen

  def eval_params(self, state: TrainState, frozen: Params) -> Params:
    """Returns all parameters as evaluation uses them: moving averages if there are any."""
    return self.groups.join(state.eval_params, frozen)

  def state(self, handle: State) -> TrainState:
    """Returns the train state of the handle that a step returned; here they are the same."""
    return handle

  def at_disk(self, finish: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Context in which a run saves or restores.

    Programs that train several runs override it: the runs then use the disk one at a time.

    Args:
      finish: waits for the pending save of the run.
    """
    return contextlib.nullcontext()

  def train_step(self) -> TrainStep:
    """Returns the jitted train step, `(state, frozen, batch) -> (state, StepSums)`; the state is donated."""
    if 'train' not in self._compiled:
      shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
      self._compiled['train'] = jax.jit(
        self.step(), donate_argnums=0, out_shardings=(shardings, None)
      )
    step, scalars = self._compiled['train'], self.scalars
    return lambda state, frozen, batch: step(state, frozen, batch, scalars)

  def lower_step(self) -> jax.stages.Lowered:
    """Traces and lowers the train step; `compile()` of the result compiles the program of `train_step`."""
    self.train_step()
    return self._compiled['train'].lower(self.abstract, self.frozen, self.batch(), self.scalars)

  def step(self) -> Callable:
    """Returns the train step that is not jitted, `(state, frozen, batch, scalars) -> (state, StepSums)`."""
    _, task, trainer = self.experiment.complete()
    return make_train_step(
      task,
      trainer,
      self.optimizer,
      self.blueprint,
      self.groups,
      self.layout,
      self.teacher,
      NormsPerLayer(self.groups.trained) if trainer.layer_norms else None,
    )

  def memory_bytes(self) -> int | None:
    """Returns the memory that the train step needs on each device, in bytes; None before the first step."""
    return memory_of(self.lower_step()) if 'train' in self._compiled else None


def memory_of(step: jax.stages.Lowered) -> int:
  """Returns the memory that a lowered function needs on each device, in bytes."""
  memory: Any = step.compile().memory_analysis()
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    - memory.alias_size_in_bytes
  )


def peak_flops(program: Program) -> float | None:
  """Returns the peak FLOPs per second of all devices of a program; None if it is unknown.

  It is known for bfloat16 on the devices of `PEAK_FLOPS`. None is also returned for batches of different lengths, for
  which the FLOPs of a step are not constant.
  """
  if program.trainer.compute_dtype != 'bfloat16':
    return None
  task = program.experiment.task
  if task is None or task.row_lengths:
    return None
  peak = PEAK_FLOPS.get(program.mesh.devices.flat[0].device_kind)
  return None if peak is None else peak * program.mesh.size


def step_tokens(program: Program) -> int:
  """Returns the tokens of a train step, padding included."""
  return program.trainer.batch_size * sum(program.row_lengths.values())


def step_flops(program: Program) -> float:
  """Returns the model FLOPs of a train step."""
  return program.flops.visible * step_tokens(program)
