"""What an experiment costs, from shapes alone."""

import dataclasses
import functools

from flax import nnx

from t2x.tasks import Task
from t2x.train import Experiment
from t2x.train.flops import flops_per_token, row_lengths
from t2x.train.params import Blueprint


@dataclasses.dataclass(frozen=True)
class Cost:
  """The size and the work of an experiment.

  Attributes:
    parameters: number of scalars.
    tokens_per_step: tokens (images: patches) of a batch, padding included.
    num_steps: optimizer steps.
    task: gives the loss that is traced for the FLOPs.
    model: the model's shapes.
  """

  parameters: int
  tokens_per_step: int
  num_steps: int
  task: Task
  model: nnx.Module

  @functools.cached_property
  def flops_per_token(self) -> float:
    """Of training; see `t2x.train.flops`. Traced when first asked for."""
    return flops_per_token(self.task, self.model).full

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
  experiment = experiment.bound()
  _, task, trainer = experiment.complete()
  model = experiment.shapes()
  task.check_model(model)
  trainer.schedule.build(trainer.num_steps)
  lengths = row_lengths(task, model)
  tokens = trainer.batch_size * sum(lengths.values())
  return Cost(Blueprint(model).size, tokens, trainer.num_steps, task, model)
