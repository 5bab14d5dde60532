"""What an experiment costs, from shapes alone."""

import dataclasses

import jax
from flax import nnx

from t2x.train import Experiment, num_parameters
from t2x.train.fit import row_lengths
from t2x.train.summary import flops_per_token

__all__ = ['Cost', 'cost_of']


@dataclasses.dataclass(frozen=True)
class Cost:
  """The size and the work of an experiment.

  Attributes:
    parameters: number of scalars.
    flops_per_token: of training, forward and backward.
    tokens_per_step: tokens (images: patches) of a batch, padding included.
    num_steps: optimizer steps.
  """

  parameters: int
  flops_per_token: float
  tokens_per_step: int
  num_steps: int

  @property
  def flops(self) -> float:
    """Of the whole training."""
    return self.flops_per_token * self.tokens_per_step * self.num_steps

  def of(self, quantity: str) -> float:
    """The quantity that a budget names ('steps', 'parameters', 'flops_per_token', 'flops')."""
    return float(self.num_steps if quantity == 'steps' else getattr(self, quantity))


def cost_of(experiment: Experiment) -> Cost:
  """Shapes the model; builds nothing.

  Raises:
    UserError: a part of the experiment is missing, or parts do not fit each other.
  """
  build, task, trainer = experiment.complete()
  model = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
  task.check_model(model)
  trainer.schedule.build(trainer.num_steps)
  lengths = row_lengths(task, model)
  flops, _ = flops_per_token(model, lengths)
  tokens = trainer.batch_size * sum(lengths.values())
  return Cost(num_parameters(model), flops, tokens, trainer.num_steps)
