"""The train state, one optimizer step and one evaluation step: pure functions, jitted by `Program`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from t2x.layers.constraints import Layout, laid_out
from t2x.tasks import Task
from t2x.tasks.losses import Sums
from t2x.train.experiment import Trainer
from t2x.train.optimizers import updates_applied
from t2x.train.params import Blueprint, Groups, Params

__all__ = ['TrainState', 'init_state', 'make_eval_step', 'make_train_step']

Batch = Mapping[str, jax.Array]


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


def init_state(
  params: Params, trainer: Trainer, optimizer: optax.GradientTransformation, key: Array
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

  def add(total, part):
    return jax.tree.map(jnp.add, total, gradients(params, *part)), None

  first = jax.tree.map(lambda a: a[0], (split, keys))
  zeros = jax.tree.map(
    lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(gradients, params, *first)
  )
  return jax.lax.scan(add, zeros, (split, keys))[0]


def make_train_step(
  task: Task,
  trainer: Trainer,
  optimizer: optax.GradientTransformation,
  blueprint: Blueprint,
  groups: Groups,
  layout: Layout | None = None,
) -> Callable[[TrainState, Params, Batch], tuple[TrainState, Sums, jax.Array]]:
  """`(state, frozen, batch) -> (state, sums, norms)`; jit it with a donated state.

  `frozen` are the parameters that are not trained. `norms` are those of the gradient of each trained
  parameter, in the order of sorted names. `sums['finite']` is 1 where
  the loss and all norms are finite: the host reads it and does not decide anew. `layout` says where
  activations are split; None leaves them whole or to the compiler.

  Loss and weight are summed over the parts of a batch and divided once, so `accumulate` does not
  change the result. A batch of weight 0 (nothing but padding) is finite and has the gradient 0: the
  optimizer takes an ordinary step with it, in which momentum and weight decay still act.
  """

  def objective(params, frozen, batch, key):
    model = blueprint.model(groups.join(params, frozen), trainer.compute_dtype)
    sums, aux = task.sums(model, batch, key)
    total, weight = sums['loss']
    for name, value in aux.items():
      # Auxiliary losses are means: weighted like the loss, they survive the one division.
      total = total + value * weight
      sums = sums | {name: (value * weight, weight)}
    return total, sums

  def train_step(state, frozen, batch):
    def gradients(params, batch, key):
      with laid_out(layout):
        (_, sums), grads = jax.value_and_grad(objective, has_aux=True)(params, frozen, batch, key)
      return grads, sums

    key = jax.random.fold_in(state.key, state.step)
    grads, sums = _accumulated(gradients, trainer.accumulate, state.params, batch, key)
    weight = jnp.maximum(sums['loss'][1], 1e-9)
    grads = jax.tree.map(lambda g: g / weight, grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema is not None and trainer.ema_decay is not None:
      # Without this warm-up the average would keep the initial values for 1 / (1 - decay) steps.
      count = updates_applied(state.opt_state)
      decay = jnp.minimum(trainer.ema_decay, (1.0 + count) / (10.0 + count))
      ema = optax.incremental_update(params, ema, 1.0 - decay)
    norms = jnp.stack([jnp.sqrt(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(grads)])
    finite = jnp.isfinite(sums['loss'][0]) & jnp.isfinite(norms).all()
    old = (state.params, state.opt_state, state.ema)
    params, opt_state, ema = trainer.nonfinite.select(finite, (params, opt_state, ema), old)
    sums = sums | {'grad_norm': (jnp.sqrt(jnp.sum(jnp.square(norms))), jnp.ones(()))}
    sums = trainer.nonfinite.count(finite, sums)
    sums = sums | {'finite': (finite.astype(jnp.float32), jnp.ones(()))}
    return TrainState(state.step + 1, params, opt_state, state.key, ema), sums, norms

  return train_step


def make_eval_step(
  task: Task, trainer: Trainer, blueprint: Blueprint, layout: Layout | None = None
) -> Callable[[Params, Batch], Sums]:
  """`(params, batch) -> sums` without dropout and label smoothing; `params` are all parameters."""

  def eval_step(params, batch):
    with laid_out(layout):
      sums, _ = task.sums(blueprint.model(params, trainer.compute_dtype), batch, None)
    return sums

  return eval_step
