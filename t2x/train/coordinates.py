"""Coordinate check of muP: the sizes of a model's activations by its width (https://arxiv.org/abs/2203.03466, appendix
D.1)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.text_table import text_table
from t2x.parallel import Placed
from t2x.tasks.inspection import Inspection, in_order
from t2x.train.experiment import Experiment
from t2x.train.params import Params
from t2x.train.program import Program
from t2x.train.schedules import Constant


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Mean absolute values of one model (coordinate check of muP, https://arxiv.org/abs/2203.03466, appendix D.1).

  They are those of the outputs of each layer, and of the logits.

  Attributes:
    initial: before the first step.
    change: of the difference to the first values, after the last step.
  """

  initial: Mapping[str, float]
  change: Mapping[str, float]


def coordinates(experiment: Experiment, num_steps: int) -> Sizes:
  """Trains a model on one batch, without warm-up, and computes the sizes of its activations.

  Args:
    experiment: needs a model, a task and a trainer.
    num_steps: number of steps.

  Raises:
    UserError: the task is a mixture, or its schedule has no peak.
  """
  _, task, trainer = experiment.complete()
  if len(task.parts) > 1:
    raise UserError('--coordinates needs a single task, not a mixture')
  schedule = Constant(peak=trainer.schedule.peak)
  trainer = dataclasses.replace(trainer, schedule=schedule, num_steps=num_steps, eval_every=0)
  bound = dataclasses.replace(experiment, trainer=trainer).bound(task.fit_tokenizer())
  program, task = Program(bound), bound.evaluated_task()
  rows = task.rows(task.train_split)
  batch: Any = task.batches(rows, batch_size=trainer.batch_size, seed=trainer.seed)[0]
  state, frozen = program.init(trainer.seed)
  step = program.train_step()
  first = _activations(program, state.params, frozen, batch)
  for _ in range(num_steps):
    state, _ = step(state, frozen, batch)
  last = _activations(program, state.params, frozen, batch)
  return Sizes(
    {name: float(np.abs(x).mean()) for name, x in first.items()},
    {name: float(np.abs(last[name] - x).mean()) for name, x in first.items()},
  )


def _activations(
  program: Program, params: Params, frozen: Params, batch: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """Returns the outputs of each layer and the logits, without dropout."""
  model = Placed(program.blueprint.model(program.groups.join(params, frozen)), program.layout)
  name, *_ = model.model.spec.inputs
  inputs, targets = np.asarray(batch[name]), batch.get('target')
  logits, recorded = Inspection(model, None).outputs(inputs, targets, frozenset({'hidden'}))
  activations = {}
  for side in ('', 'encoder', 'decoder'):
    start = f'{side}.' if side else ''
    own = {n.removeprefix(start): a for n, a in recorded.items() if n.startswith(start)}
    for number, layer in enumerate(in_order(own, 'hidden')):
      activations[f'{start}layer {number}'] = layer
  return activations | {'logits': logits}


def coordinates_table(widths: Sequence[float], sizes: Sequence[Sizes], num_steps: int) -> str:
  """Returns a table of the sizes by width, with the power of the width that fits them best.

  Args:
    widths: the widths.
    sizes: the result of `coordinates` for each width.
    num_steps: number of steps.
  """
  rows = [('', *(f'{width:g}' for width in widths), 'power of the width')]
  for title, field in (('initial', 'initial'), (f'change in {num_steps} steps', 'change')):
    for name in sizes[0].initial:
      values = [getattr(size, field)[name] for size in sizes]
      cells = (f'{value:.3g}' for value in values)
      rows.append((f'{title}, {name}', *cells, f'{power(widths, values):+.2f}'))
  return text_table(rows, '<' + '>' * (len(widths) + 1))


def power(widths: Sequence[float], values: Sequence[float]) -> float:
  """Returns the slope of log(values) over log(widths); NaN if a value is 0 or not finite."""
  if not all(0 < value < math.inf for value in values):
    return math.nan
  return float(np.polyfit(np.log(widths), np.log(values), 1)[0])
