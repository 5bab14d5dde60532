"""The train state, one optimizer step and one evaluation step: pure functions, jitted by `TrainProgram`."""

import dataclasses
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import jaxpr_as_fun

from t2x.errors import UserError
from t2x.hyperparameters import given
from t2x.layers.constraints import Layout, use_layout
from t2x.models.losses import Sums
from t2x.tasks import DistillableTask, Task, TaskOutput
from t2x.train.params import Blueprint, Groups, Params

if TYPE_CHECKING:
  from t2x.train.experiment import Trainer
  from t2x.train.teacher import FrozenTeacher

Batch = Mapping[str, jax.Array]
# Values of hyperparameters that trials vary, by name (see `t2x.hyperparameters`).
Scalars = Mapping[str, Any]
NO_SCALARS: Scalars = types.MappingProxyType({})


def scalar_shapes(names: Collection[str]) -> Scalars:
  """The shapes of the scalars that a step takes for these hyperparameters."""
  return {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that a step reads and writes. Its leaves are arrays, shapes, or shardings.

  Attributes:
    step: optimizer steps taken, int32.
    params: the trained parameters by name, float32.
    opt_state: the optimizer's own.
    key: a typed PRNG key that never changes; a step's randomness is folded from it and the step.
    ema: moving average of `params`, where one is kept.
  """

  step: Any
  params: Any
  opt_state: Any
  key: Any
  ema: Any = None

  @property
  def evaluated(self) -> Any:
    """The trained parameters that evaluation uses."""
    return self.params if self.ema is None else self.ema


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepSums:
  """The sums and gradient norms of a step in one array, which the host fetches at once: each array of a
  step costs it time.

  Attributes:
    names: of the sums, in order.
    values: float32 [..., 2 * names + norms]: sum and weight of each name, then the norms.
  """

  names: tuple[str, ...] = dataclasses.field(metadata={'static': True})
  values: Any

  @classmethod
  def packed(cls, sums: Sums, norms: jax.Array) -> 'StepSums':
    """Packs (sum, weight) by name and the gradient norms."""
    flat = [jnp.asarray(number, jnp.float32) for pair in sums.values() for number in pair]
    return cls(tuple(sums), jnp.concatenate([jnp.stack(flat), norms.astype(jnp.float32)]))

  @property
  def sums(self) -> Sums:
    """(sum, weight) by name."""
    return {
      name: (self.values[..., 2 * i], self.values[..., 2 * i + 1])
      for i, name in enumerate(self.names)
    }

  @property
  def norms(self) -> Any:
    """The gradient norms of the trained parameters, in the order of sorted names."""
    return self.values[..., 2 * len(self.names) :]

  @property
  def loss(self) -> float:
    """The mean loss of the step; waits for the device."""
    total, weight = jax.device_get(self).sums['loss']
    return float(total / weight)


def init_state(
  params: Params, trainer: 'Trainer', optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
  """The state before the first step."""
  ema = None
  if trainer.ema_decay is not None:
    # A copy: two leaves of a donated state must not be one buffer.
    ema = jax.tree.map(lambda a: a + 0, params)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), key, ema)


def _split(batch: Batch, parts: int) -> Batch:
  """[batch, ...] -> [parts, batch / parts, ...]; neighbours go to different parts, so that a batch
  split over devices stays where it is."""
  return jax.tree.map(lambda a: a.reshape(-1, parts, *a.shape[1:]).swapaxes(0, 1), batch)


def _accumulated(gradients: Callable, parts: int, params: Params, batch: Batch, key: Any) -> Any:
  """What `gradients` gives for the parts of a batch, one after the other, summed."""
  if parts == 1:
    return gradients(params, batch, key)
  split, keys = _split(batch, parts), jax.random.split(key, parts)
  # Traced once, for its shapes and for the loop.
  first = jax.tree.map(lambda a: a[0], (split, keys))
  traced, shapes = jax.make_jaxpr(gradients, return_shape=True)(params, *first)
  run, structure = jaxpr_as_fun(traced), jax.tree.structure(shapes)

  def add(total, part):
    found = jax.tree.unflatten(structure, run(*jax.tree.leaves((params, *part))))
    return jax.tree.map(jnp.add, total, found), None

  zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
  return jax.lax.scan(add, zeros, (split, keys))[0]


def _num_rows(batch: Batch) -> int:
  return jax.tree.leaves(batch)[0].shape[0]


def _totals(
  task: Task, output: TaskOutput, weights: Mapping[str, jax.Array], num_rows: int
) -> dict[str, jax.Array]:
  """The sum over a micro-batch of each loss term and of each auxiliary loss of the model, by name.

  Raises:
    UserError: as `make_train_step` does.
  """
  name, terms = type(task).__name__, output.terms
  if terms.keys() != weights.keys():
    raise UserError(
      f'{name}.sums returns the loss terms {_listed(terms)}, {name}.weights the weights of '
      f'{_listed(weights)}: return a weight for each term'
    )
  losses, metrics = output.aux.losses, output.aux.metrics
  taken = (losses.keys() | metrics.keys()) & (terms.keys() | output.metrics.keys())
  taken |= losses.keys() & metrics.keys()
  if taken:
    raise UserError(
      f'the model returns auxiliary losses or metrics {_listed(taken)}, names that are used '
      f'already, by loss terms or metrics of {name} or by each other: rename them'
    )
  for aux, values in losses.items():
    if values.shape != (num_rows,):
      raise UserError(
        f"the auxiliary loss '{aux}' of the model has the shape {values.shape}: return one value "
        f'per row of the batch, here ({num_rows},)'
      )
  return terms | {aux: values.astype(jnp.float32).sum() for aux, values in losses.items()}


def _output(task: Task, model: Any, batch: Batch, key: jax.Array, teacher: Any) -> TaskOutput:
  if teacher is not None and isinstance(task, DistillableTask):
    return task.sums(model, batch, key, teacher)
  return task.sums(model, batch, key)


def _listed(names: Iterable[str]) -> str:
  return ', '.join(f"'{name}'" for name in sorted(names)) or 'none'


def make_train_step(
  task: Task,
  trainer: 'Trainer',
  optimizer: optax.GradientTransformation,
  blueprint: Blueprint,
  groups: Groups,
  layout: Layout | None = None,
  teacher: 'FrozenTeacher | None' = None,
) -> Callable[..., tuple[TrainState, StepSums]]:
  """`(state, frozen, batch, scalars) -> (state, StepSums)`; jit it with a donated state.

  `frozen` are the parameters that are not trained, those of `teacher` included, `scalars` the hyperparameters that trials vary. The sum
  `finite` is 1 if the loss and all norms are finite: the host reads it and does not decide anew. `layout`
  splits activations over devices; None leaves them to the compiler.

  Each loss term is divided by its weight over the whole batch (an auxiliary loss of the model by the
  number of rows) before the gradients of micro-batches are added up, so `accumulate` does not change
  the result. A term of weight 0 (nothing but padding) is finite and has the gradient 0: the optimizer
  takes an ordinary step with it, in which momentum and weight decay still act. `sums` also reports
  the terms and the auxiliary losses that are not among the task's metrics.

  Raises (when traced):
    UserError: `task.sums` and `task.weights` do not give the same loss terms, or the model gives an
      auxiliary loss that is not one value per row or has a name that the task uses.
  """

  def objective(params, frozen, batch, key, weights, num_rows):
    model = blueprint.model(groups.join(params, frozen), trainer.compute_dtype)
    other = None if teacher is None else teacher.model(frozen, trainer.compute_dtype)
    output = _output(task, model, batch, key, other)
    totals = _totals(task, output, weights, _num_rows(batch))
    divisors = {name: weights.get(name, num_rows) for name in totals}
    loss = sum(totals[name] / jnp.where(one == 0, 1.0, one) for name, one in divisors.items())
    return loss, (output.reported, totals)

  def train_step(state, frozen, batch, scalars=NO_SCALARS):
    with given(scalars):
      return update(state, frozen, batch)

  def update(state, frozen, batch):
    key = jax.random.fold_in(state.key, state.step)
    weights, num_rows = task.weights(batch), jnp.float32(_num_rows(batch))

    def gradients(params, batch, key):
      with use_layout(layout):
        return jax.grad(objective, has_aux=True)(params, frozen, batch, key, weights, num_rows)

    grads, (metrics, totals) = _accumulated(gradients, trainer.accumulate, state.params, batch, key)
    sums = {name: (total, weights.get(name, num_rows)) for name, total in totals.items()} | metrics
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = _averaged(trainer, state, params)
    norms = jnp.stack([jnp.sqrt(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(grads)])
    finite = jnp.isfinite(sums['loss'][0]) & jnp.isfinite(norms).all()
    old = (state.params, state.opt_state, state.ema)
    params, opt_state, ema = trainer.nonfinite.select(finite, (params, opt_state, ema), old)
    sums = StepSums.packed(_reported(trainer, finite, sums, norms), norms)
    return TrainState(state.step + 1, params, opt_state, state.key, ema), sums

  return train_step


def updates_applied(opt_state: Any) -> jax.Array:
  """Updates that the optimizer has applied, as its schedule counts them; skipped steps do not count.

  Args:
    opt_state: the state of what `Optimizer.build` gives.

  Raises:
    UserError: an optimizer of one's own that counts nothing.
  """

  def counts(state):
    return isinstance(state, optax.ScaleByScheduleState)

  for state in jax.tree.leaves(opt_state, is_leaf=counts):
    if counts(state):
      return state.count
  raise UserError('Trainer.ema_decay needs an optimizer whose learning rate follows a schedule')


def _averaged(trainer: 'Trainer', state: TrainState, params: Params) -> Params | None:
  """The moving average after a step that led to `params`."""
  if state.ema is None or trainer.ema_decay is None:
    return None
  # Without this warm-up the average would keep the initial values for 1 / (1 - decay) steps.
  count = updates_applied(state.opt_state)
  decay = jnp.minimum(trainer.ema_decay, (1.0 + count) / (10.0 + count))
  return optax.incremental_update(params, state.ema, 1.0 - decay)


def _reported(trainer: 'Trainer', finite: jax.Array, sums: Sums, norms: jax.Array) -> Sums:
  """The sums of a step with the norm of the whole gradient and `finite`."""
  one = jnp.ones(())
  sums = sums | {'grad_norm': (jnp.sqrt(jnp.sum(jnp.square(norms))), one)}
  return trainer.nonfinite.count(finite, sums) | {'finite': (finite.astype(jnp.float32), one)}


def make_eval_step(
  task: Task, compute_dtype: str, blueprint: Blueprint, layout: Layout | None = None
) -> Callable[..., Sums]:
  """`(params, batch, scalars) -> sums` without dropout and label smoothing; `params` are all parameters."""

  def eval_step(params, batch, scalars=NO_SCALARS):
    with use_layout(layout), given(scalars):
      model = blueprint.model(params, compute_dtype)
      return task.sums(model, batch, None).reported

  return eval_step
