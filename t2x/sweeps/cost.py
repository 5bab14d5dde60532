"""Cost of an experiment (parameters, tokens, FLOPs), computed from shapes."""

import dataclasses
import functools

from flax import nnx

from t2x.train import Experiment
from t2x.train.experiment import row_lengths
from t2x.train.logs.flops import Flops, flops_per_token
from t2x.train.params import Blueprint


@dataclasses.dataclass(frozen=True)
class Cost:
  """Size and FLOPs of an experiment.

  Attributes:
    parameters: number of scalars.
    tokens_per_step: tokens (images: patches) per batch, padding included.
    num_steps: optimizer steps.
    batch_size: examples per step.
    experiment: the experiment, whose loss is traced for the FLOPs.
    model: the model with shapes instead of arrays.
  """

  parameters: int
  tokens_per_step: int
  num_steps: int
  batch_size: int
  experiment: Experiment
  model: nnx.Module

  @functools.cached_property
  def per_token(self) -> Flops:
    """FLOPs of training per token, traced at the first access."""
    _, task, _ = self.experiment.complete()
    return flops_per_token(task, self.model)

  @property
  def flops_per_token(self) -> float:
    """FLOPs of training per token, of which attention counts the pairs that its pattern shows."""
    return self.per_token.visible

  @property
  def tokens(self) -> int:
    """Tokens of all training steps, padding included."""
    return self.tokens_per_step * self.num_steps

  @property
  def flops(self) -> float:
    """FLOPs of all training steps."""
    return self.flops_per_token * self.tokens

  def of(self, quantity: str) -> float:
    """Returns a quantity of a budget: 'steps', 'tokens', 'parameters', 'flops_per_token' or 'flops'."""
    return float(self.num_steps if quantity == 'steps' else getattr(self, quantity))


def cost_of(experiment: Experiment) -> Cost:
  """Computes the cost from the shapes of the model, without allocating arrays.

  Raises:
    UserError: a part of the experiment is missing, or its parts are incompatible.
  """
  experiment = experiment.bound()
  _, task, trainer = experiment.complete()
  model = experiment.shapes()
  task.check_model(model)
  trainer.schedule.build(trainer.num_steps)
  lengths = row_lengths(task, model)
  size, batch = Blueprint(model).size, trainer.batch_size
  return Cost(size, batch * sum(lengths.values()), trainer.num_steps, batch, experiment, model)
