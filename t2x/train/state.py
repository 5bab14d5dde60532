"""The train state: one pytree, born sharded."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array

from t2x.layers import initialized, named_key
from t2x.parallel import state_shardings
from t2x.train.experiment import Experiment, Trainer
from t2x.train.optimizers import build_optimizer

__all__ = ['TrainState', 'abstract_state', 'init_function', 'optimizer_for']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that a step reads and writes. (Its leaves are arrays, or shapes, or shardings.)

  Attributes:
    step: optimizer steps taken, int32.
    model: float32 parameters.
    opt_state: the optimizer's own.
    key: a typed PRNG key that never changes; a step's randomness is folded from it and the step.
    ema: moving average of the model, where one is kept.
  """

  step: Any
  model: Any
  opt_state: Any
  key: Any
  ema: Any = None

  @property
  def evaluated(self) -> Any:
    """The parameters that evaluation uses."""
    return self.model if self.ema is None else self.ema


def optimizer_for(experiment: Experiment) -> optax.GradientTransformation:
  """The update rule with its schedule, masks set by the model's parameters."""
  model, trainer = _trained(experiment)
  params = jax.eval_shape(lambda: model(rngs=nnx.Rngs(0)))
  return build_optimizer(
    trainer.optimizer,
    trainer.schedule,
    clip_norm=trainer.clip_norm,
    num_steps=trainer.num_steps,
    params=params,
  )


def _trained(experiment: Experiment) -> tuple[Callable[..., Any], Trainer]:
  """The parts of an experiment that make a state: the task is none of them."""
  if experiment.model is None or experiment.trainer is None:
    model, _, trainer = experiment.complete()
    return model, trainer
  return experiment.model, experiment.trainer


def init_function(
  experiment: Experiment, optimizer: optax.GradientTransformation
) -> Callable[[Array], TrainState]:
  """`key -> TrainState`, to be shaped or jitted."""

  build, trainer = _trained(experiment)

  def init(key):
    model, train_key = initialized(build, named_key(key, 'init')), named_key(key, 'train')
    ema = None
    if trainer.ema_decay is not None:
      # A copy: two leaves of a donated state must not be one buffer.
      ema = jax.tree.map(lambda a: a + 0, model)
    return TrainState(jnp.zeros((), jnp.int32), model, optimizer.init(model), train_key, ema)

  return init


def abstract_state(
  experiment: Experiment,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> TrainState:
  """Shapes, dtypes and shardings of the state; nothing is allocated."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  shapes = jax.eval_shape(init_function(experiment, optimizer), key)
  shardings = state_shardings(mesh, experiment.mesh.rules, shapes)
  return jax.tree.map(
    lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
    shapes,
    shardings,
  )
