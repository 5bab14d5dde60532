"""Train state, train step and evaluation step: pure functions that `Program` jits."""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import jaxpr_as_fun

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers.constraints import Layout, constrain
from t2x.layers.keys import row_keys
from t2x.models.losses import Sums
from t2x.tasks import Task, TaskOutput
from t2x.train.experiment import Trainer
from t2x.train.groups import Groups
from t2x.train.logs.step_sums import EvalSums, NormsPerLayer, StepSums
from t2x.train.params import Blueprint, Params

Batch = Mapping[str, jax.Array]
# Values by name of the hyperparameters that are inputs of a step (see `t2x.base.hyperparameters`).
Scalars = Mapping[str, Any]
NO_SCALARS: Scalars = types.MappingProxyType({})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """State that a train step updates. Its leaves are arrays, shapes or shardings.

  Attributes:
    step: number of train steps taken, int32 [].
    params: parameters by name, trained or moved by rules, float32.
    opt_state: state of the optimizer.
    key: typed PRNG key, constant during training; each step folds its number into it, then that of each row.
    ema: exponential moving average of `params`; None without `Trainer.ema_decay`.
  """

  step: Any
  params: Params
  opt_state: Any
  key: Any
  ema: Params | None = None

  @property
  def eval_params(self) -> Any:
    """Trained parameters that evaluation uses: the moving average if there is one."""
    return self.params if self.ema is None else self.ema


def init_state(
  params: Params,
  trainer: Trainer,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
  groups: Groups,
) -> TrainState:
  """Returns the train state before the first step."""
  ema = None
  if trainer.ema_decay is not None:
    # A copy: two leaves of a donated state must not be one buffer.
    ema = jax.tree.map(lambda a: a + 0, params)
  opt_state = optimizer.init(_named(params, groups.trained))
  return TrainState(jnp.zeros((), jnp.int32), params, opt_state, key, ema)


def _named(params: Mapping[str, Any], names: Iterable[str]) -> Params:
  return {name: params[name] for name in names}


def _accumulate(
  gradients: Callable, count: int, params: Params, batch: Batch, key: jax.Array
) -> Any:
  """Returns the sum of `gradients(params, micro_batch, keys)` over `count` micro-batches.

  Each row has a key, so that what is drawn for it does not depend on the split. Adjacent rows go to different
  micro-batches, so that a batch that is sharded over devices is not moved between them.
  """
  keys = row_keys(key, _num_rows(batch))
  if count == 1:
    return gradients(params, batch, keys)
  # [batch, ...] -> [count, batch / count, ...].
  split = jax.tree.map(lambda a: a.reshape(-1, count, *a.shape[1:]).swapaxes(0, 1), (batch, keys))
  # Traced once, for both the output shapes and the loop body.
  first = jax.tree.map(lambda a: a[0], split)
  traced, shapes = jax.make_jaxpr(gradients, return_shape=True)(params, *first)
  run, structure = jaxpr_as_fun(traced), jax.tree.structure(shapes)

  def add(total, micro_batch):
    result = jax.tree.unflatten(structure, run(*jax.tree.leaves((params, *micro_batch))))
    return jax.tree.map(jnp.add, total, result), None

  zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
  return jax.lax.scan(add, zeros, split)[0]


def _num_rows(batch: Batch) -> int:
  return jax.tree.leaves(batch)[0].shape[0]


def _loss_totals(
  task: Task, output: TaskOutput, weights: Mapping[str, jax.Array], num_rows: int
) -> dict[str, jax.Array]:
  """Sums each loss term of the task and each auxiliary loss of the model over a micro-batch.

  Raises:
    UserError: `task.sums` and `task.weights` return different loss terms, or an auxiliary loss of the model does not
      have shape [num_rows] or has the name of another loss term or metric.
  """
  name, terms = type(task).__name__, output.terms
  if terms.keys() != weights.keys():
    raise UserError(
      f'{name}.sums returns the loss terms {_quoted(terms)}, but {name}.weights returns weights of '
      f'{_quoted(weights)}: return one weight per loss term'
    )
  losses, metrics = output.aux.losses, output.aux.metrics
  duplicates = (losses.keys() | metrics.keys()) & (terms.keys() | output.metrics.keys())
  duplicates |= losses.keys() & metrics.keys()
  if duplicates:
    raise UserError(
      f'duplicate names {_quoted(duplicates)}: auxiliary losses and metrics of the model must not have '
      f'the names of each other or of loss terms and metrics of {name}; rename them in the model'
    )
  for aux, values in losses.items():
    if values.shape != (num_rows,):
      raise UserError(
        f"the auxiliary loss '{aux}' of the model has shape {values.shape}: return one value "
        f'per row of the batch, shape ({num_rows},)'
      )
  return terms | {aux: values.astype(jnp.float32).sum() for aux, values in losses.items()}


def _quoted(names: Iterable[str]) -> str:
  return ', '.join(f"'{name}'" for name in sorted(names)) or 'none'


def _mean_loss(
  totals: Mapping[str, jax.Array], weights: Mapping[str, jax.Array], num_rows: jax.Array
) -> Any:
  """Returns the sum of the loss terms, each divided by its weight or, for auxiliary losses, by `num_rows`."""
  divisors = {name: weights.get(name, num_rows) for name in totals}
  return sum(totals[name] / jnp.where(w == 0, 1.0, w) for name, w in divisors.items())


def _check_accumulation(task: Task, trainer: Trainer) -> None:
  """Raises UserError if a loss over the whole batch would be computed over micro-batches."""
  if task.whole_batch and trainer.accumulate > 1:
    raise UserError(
      f'Trainer.accumulate = {trainer.accumulate}: the loss of {type(task).__name__} compares all rows of a batch, '
      'which cannot be split: set it to 1'
    )


def make_train_step(
  task: Task,
  trainer: Trainer,
  optimizer: optax.GradientTransformation,
  blueprint: Blueprint,
  groups: Groups,
  layout: Layout | None = None,
  teacher: Blueprint | None = None,
  layer_norms: NormsPerLayer | None = None,
) -> Callable[..., tuple[TrainState, StepSums]]:
  """Builds the train step, `(state, frozen, batch, scalars) -> (state, StepSums)`; jit it with a donated state.

  `frozen` are the parameters that are not trained, including those of `teacher`; `scalars` are input
  hyperparameters; `layout` shards the activations (None: the compiler does); `layer_norms` adds norms by layer.

  Each loss term is divided by its weight in the full batch, and each auxiliary loss of the model by the
  number of rows, before the gradients of micro-batches are summed: the result does not depend on
  `Trainer.accumulate`. A loss term of weight 0 (a batch of padding) has the gradient 0; momentum and weight
  decay still apply. The StepSums have the metrics of the task, all loss terms, `grad_norm`, and `finite` (1 if the
  loss and all gradient norms are finite).

  Raises:
    UserError: `Trainer.accumulate` splits a loss over the whole batch. When traced: loss terms as in `_loss_totals`.
  """
  _check_accumulation(task, trainer)

  def objective(params, frozen, batch, keys, weights, num_rows):
    model = blueprint.model(groups.join(params, frozen), trainer.compute_dtype)
    # `check_teacher` allows a teacher only for tasks that take one.
    teachers = [teacher.model(frozen, trainer.compute_dtype)] if teacher else []
    output = task.sums(model, batch, keys, *teachers)
    totals = _loss_totals(task, output, weights, _num_rows(batch))
    return _mean_loss(totals, weights, num_rows), (output.reported, totals)

  def train_step(state, frozen, batch, scalars=NO_SCALARS):
    with in_step(scalars=scalars, layout=layout, step=state.step, micro_batches=trainer.accumulate):
      return update(state, frozen, batch)

  def update(state, frozen, batch):
    key = jax.random.fold_in(state.key, state.step)
    batch = task.batch(batch, key)
    weights, num_rows = task.weights(batch), jnp.float32(_num_rows(batch))

    def gradients(params, batch, keys):
      return jax.grad(objective, has_aux=True)(params, frozen, batch, keys, weights, num_rows)

    grads, (metrics, totals) = _accumulate(gradients, trainer.accumulate, state.params, batch, key)
    params, opt_state, grads, updates = _updated(optimizer, groups, state, grads)
    sums = {name: (total, weights.get(name, num_rows)) for name, total in totals.items()} | metrics
    ema = _next_ema(trainer, state, params)
    norms = jnp.stack([jnp.sqrt(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(grads)])
    finite = jnp.isfinite(sums['loss'][0]) & jnp.isfinite(norms).all()
    old = (state.params, state.opt_state, state.ema)
    params, opt_state, ema = trainer.nonfinite.select(finite, (params, opt_state, ema), old)
    sums = StepSums.pack(_logged_sums(trainer, finite, sums, norms), norms)
    sums = sums.with_layer_norms(layer_norms, grads, state.params, updates)
    return TrainState(state.step + 1, params, opt_state, state.key, ema), sums

  return train_step


def _updated(
  optimizer: optax.GradientTransformation, groups: Groups, state: TrainState, gradients: Params
) -> tuple[Params, Any, Params, Params]:
  """Returns parameters and optimizer state after a step, gradients and updates of the trained parameters.

  Args:
    gradients: of trained parameters; of parameters that rules move, their statistics.
  """
  trained, own = (_named(tree, groups.trained) for tree in (state.params, gradients))
  updates, opt_state = optimizer.update(own, state.opt_state, trained)
  moved = {
    name: info.moved(state.params[name], gradients[name]) for name, info in groups.ruled.items()
  }
  params = optax.apply_updates(trained, updates)
  for name, info in groups.trained.items():
    if info.maximum is not None:
      params[name] = jnp.minimum(params[name], info.maximum)
  return params | moved, opt_state, own, updates


def updates_applied(opt_state: object) -> jax.Array:
  """Returns the number of updates that the optimizer has applied, int32 []; skipped steps do not count.

  Args:
    opt_state: state of an optimizer from `build_optimizer`.

  Raises:
    UserError: the optimizer has no `optax.ScaleByScheduleState`.
  """

  def has_count(state):
    return isinstance(state, optax.ScaleByScheduleState)

  for state in filter(has_count, jax.tree.leaves(opt_state, is_leaf=has_count)):
    return state.count
  raise UserError(
    'Trainer.ema_decay needs an optimizer that counts its updates: add optax.scale_by_schedule to the '
    'optimizer, or set Trainer.ema_decay = None'
  )


def _next_ema(trainer: Trainer, state: TrainState, params: Params) -> Params | None:
  """Returns the moving average after a step that resulted in `params`."""
  if state.ema is None or trainer.ema_decay is None:
    return None
  # Without this warm-up the initial values would dominate for 1 / (1 - decay) steps.
  count = updates_applied(state.opt_state)
  decay = jnp.minimum(trainer.ema_decay, (1.0 + count) / (10.0 + count))
  return optax.incremental_update(params, state.ema, 1.0 - decay)


def _logged_sums(trainer: Trainer, finite: jax.Array, sums: Sums, norms: jax.Array) -> Sums:
  """Adds `grad_norm`, the global gradient norm, and `finite` to the sums of a step."""
  weight = jnp.ones(())
  sums = sums | {'grad_norm': (jnp.sqrt(jnp.sum(jnp.square(norms))), weight)}
  return trainer.nonfinite.count(finite, sums) | {'finite': (finite.astype(jnp.float32), weight)}


def make_eval_step(
  task: Task, compute_dtype: str, blueprint: Blueprint, layout: Layout | None = None
) -> Callable[..., EvalSums]:
  """Builds the evaluation step, `(params, batch, scalars) -> EvalSums`, without dropout and label smoothing.

  `params` are all parameters of the model, trained and frozen.
  """

  def eval_step(params, batch, scalars=NO_SCALARS):
    with in_step(scalars=scalars, layout=layout):
      model = blueprint.model(params, compute_dtype)
      if not task.example_metrics:
        return EvalSums(task.sums(model, batch, None).reported, {})

      def declared(row_weights):
        sums = task.sums(model, {**batch, 'loss_weight': row_weights}, None).reported
        return {name: sums[name][0] for name in sums if name in task.example_metrics}, sums

      # A task returns sums over the batch, sum_i w_i m_i with a weight w_i and a metric m_i of each row. The derivative
      # by w_i is m_i: the value of each row, for every task and exactly, without a second way to compute a metric.
      # The model does not depend on the weights, so that nothing of it is differentiated.
      ones = jnp.ones(jax.tree.leaves(batch)[0].shape[0], jnp.float32)
      examples, sums = jax.jacrev(declared, has_aux=True)(ones)
      # Every process gets all rows.
      return EvalSums(sums, {name: constrain(row, None) for name, row in examples.items()})

  return eval_step
