"""One optimizer step and one evaluation step, each a single jitted function."""

import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from t2x.hyperparameters import given
from t2x.layers.constraints import Layout, laid_out
from t2x.tasks import Task
from t2x.tasks.losses import Sums
from t2x.train.experiment import Trainer
from t2x.train.optimizers import updates_applied
from t2x.train.state import TrainState

__all__ = ['NO_SCALARS', 'Scalars', 'cast', 'make_eval_step', 'make_train_step', 'scalar_shapes']

Batch = Mapping[str, jax.Array]
# Values of hyperparameters that trials vary, by name (see `t2x.hyperparameters`).
Scalars = Mapping[str, Any]
NO_SCALARS: Scalars = types.MappingProxyType({})


def scalar_shapes(names: Collection[str]) -> Scalars:
  """The shapes of the scalars that a step takes for these hyperparameters."""
  return {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}


def cast(tree: Any, dtype: str) -> Any:
  """Floating-point leaves as `dtype`: the working copy of float32 parameters.

  Parameters made with `keep_float32` (scales and biases of norms) stay as they are.
  """

  def of(variable):
    if isinstance(variable, nnx.Variable) and variable.get_metadata().get('keep_float32'):
      return variable
    return jax.tree.map(
      lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, variable
    )

  return jax.tree.map(of, tree, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def _split(batch: Batch, parts: int) -> Batch:
  """[batch, ...] -> [parts, batch / parts, ...]; neighbours go to different parts, so that a batch
  split over devices stays where it is."""
  return jax.tree.map(lambda a: a.reshape(-1, parts, *a.shape[1:]).swapaxes(0, 1), batch)


def _accumulated(gradients: Callable, parts: int, model: Any, batch: Batch, key: Any) -> Any:
  """What `gradients` gives for the parts of a batch, one after the other, summed."""
  if parts == 1:
    return gradients(model, batch, key)
  split, keys = _split(batch, parts), jax.random.split(key, parts)

  def add(total, part):
    return jax.tree.map(jnp.add, total, gradients(model, *part)), None

  first = jax.tree.map(lambda a: a[0], (split, keys))
  zeros = jax.tree.map(
    lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(gradients, model, *first)
  )
  return jax.lax.scan(add, zeros, (split, keys))[0]


def make_train_step(
  task: Task,
  trainer: Trainer,
  optimizer: optax.GradientTransformation,
  layout: Layout | None = None,
) -> Callable[..., tuple[TrainState, Sums, jax.Array]]:
  """`(state, batch, scalars) -> (state, sums, norms)`; jit it with a donated state.

  `scalars` are the values of the hyperparameters that trials vary, {name: float32 []}.

  `norms` [parameters] are those of the gradient, parameter by parameter. `sums['finite']` is 1 where
  the loss and all norms are finite: the host reads it and does not decide anew. `layout` says where
  activations are split; None leaves them whole or to the compiler.

  Loss and weight are summed over the parts of a batch and divided once, so `accumulate` does not
  change the result. A batch of weight 0 (nothing but padding) is finite and has the gradient 0: the
  optimizer takes an ordinary step with it, in which momentum and weight decay still act.
  """

  def objective(model, batch, key):
    sums, aux = task.sums(cast(model, trainer.compute_dtype), batch, key)
    total, weight = sums['loss']
    for name, value in aux.items():
      # Auxiliary losses are means: weighted like the loss, they survive the one division.
      total = total + value * weight
      sums = sums | {name: (value * weight, weight)}
    return total, sums

  def gradients(model, batch, key):
    with laid_out(layout):
      (_, sums), grads = jax.value_and_grad(objective, has_aux=True)(model, batch, key)
    return grads, sums

  def train_step(state, batch, scalars=NO_SCALARS):
    with given(scalars):
      return update(state, batch)

  def update(state, batch):
    key = jax.random.fold_in(state.key, state.step)
    grads, sums = _accumulated(gradients, trainer.accumulate, state.model, batch, key)
    weight = jnp.maximum(sums['loss'][1], 1e-9)
    grads = jax.tree.map(lambda g: g / weight, grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    model = optax.apply_updates(state.model, updates)
    ema = state.ema
    if ema is not None and trainer.ema_decay is not None:
      # Without this warm-up the average would keep the initial values for 1 / (1 - decay) steps.
      count = updates_applied(state.opt_state)
      decay = jnp.minimum(trainer.ema_decay, (1.0 + count) / (10.0 + count))
      ema = optax.incremental_update(model, ema, 1.0 - decay)
    norms = jnp.stack([jnp.sqrt(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(grads)])
    finite = jnp.isfinite(sums['loss'][0]) & jnp.isfinite(norms).all()
    old = (state.model, state.opt_state, state.ema)
    model, opt_state, ema = trainer.nonfinite.select(finite, (model, opt_state, ema), old)
    sums = sums | {'grad_norm': (jnp.sqrt(jnp.sum(jnp.square(norms))), jnp.ones(()))}
    sums = trainer.nonfinite.count(finite, sums)
    sums = sums | {'finite': (finite.astype(jnp.float32), jnp.ones(()))}
    return TrainState(state.step + 1, model, opt_state, state.key, ema), sums, norms

  return train_step


def make_eval_step(
  task: Task, trainer: Trainer, layout: Layout | None = None
) -> Callable[..., Sums]:
  """`(model, batch, scalars) -> sums` without dropout and label smoothing."""

  def eval_step(model, batch, scalars=NO_SCALARS):
    with laid_out(layout), given(scalars):
      sums, _ = task.sums(cast(model, trainer.compute_dtype), batch, None)
    return sums

  return eval_step
