"""Auxiliary objectives that predict tokens: language modelling beside another task, and several tokens ahead."""

import dataclasses

import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative
from t2x.layers import NO_AUX
from t2x.models.losses import Sums
from t2x.tasks.auxiliary import Auxiliary, AuxiliaryOutput, check_columns
from t2x.tasks.text import check_causal

__all__ = ['LanguageModelling', 'MultiTokenPrediction']


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelling(Auxiliary):
  """GPT-1's joint objective: the task's loss + weight * the language modelling loss of the same texts.

  The loss is the mean over the tokens of a text, then over texts, and is reported as `loss` (Radford et
  al. 2018, Improving Language Understanding by Generative Pre-Training, section 3.2).

  Attributes:
    weight: coefficient of the language modelling loss (lambda in the paper).
  """

  weight: NonNegative = 0.5

  def check_model(self, model, task):
    """Raises UserError if a block attends to later tokens, or the task itself predicts the next token."""
    if task.predicts_next:
      raise UserError(
        f'LanguageModelling is the loss of {type(task).__name__} itself: leave it out, or use MultiTokenPrediction'
      )
    length = check_columns('LanguageModelling', task, 'tokens', 'segments')
    check_causal(model, length, 'LanguageModelling', task.token_marks.names)

  def term_weight(self, batch, weights):
    """Returns the number of texts."""
    return _by_row(weights).sum()

  def __call__(self, model, out, batch, weights, key):
    """Returns the loss term and `loss`; tokens of segment 0 are padding."""
    tokens, segments, rows = batch['tokens'], batch['segments'], _by_row(weights)
    present = (segments[:, 1:] != 0).astype(jnp.float32)
    shares = present / jnp.maximum(present.sum(axis=1, keepdims=True), 1)
    sums = model.cross_entropy(
      out.x[:, :-1], tokens[:, 1:], shares * rows[:, None], axes=('batch', None)
    )
    total, _ = sums['loss']
    return AuxiliaryOutput(self.weight * total, {'loss': (total, rows.sum())})


def _by_row(weights):
  """Returns the weight of each row, that of its heaviest target: [batch]."""
  return weights.reshape(len(weights), -1).max(axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTokenPrediction(Auxiliary):
  """DeepSeek-V3's objective: the modules of a `MultiTokenHead` predict the tokens after the next token
  (https://arxiv.org/abs/2412.19437, section 2.2).

  The term is weight / depth * the sum of the cross-entropies of all modules, over the number of targets of the task
  (equations 24 and 25). The last k tokens of a segment have no target k tokens ahead. Metrics: `loss_K` and
  `accuracy_K` of the prediction K tokens after the next one.

  Attributes:
    weight: coefficient (lambda in the paper; 0.3 in its first 10 T tokens, then 0.1).
  """

  weight: NonNegative = 0.3

  def check_model(self, model, task):
    """Raises UserError if the head has no modules, or the task does not predict the next token."""
    if not task.predicts_next:
      raise UserError(
        f'MultiTokenPrediction predicts tokens after the next one, but {type(task).__name__} does not predict the '
        'next token: leave it out, or use CausalLM'
      )
    if 'further tokens' not in model.spec.outputs:
      raise UserError(
        f'MultiTokenPrediction needs a head that predicts further tokens, but that of @{type(model).__name__} '
        'does not: bind @MultiTokenHead'
      )
    check_columns('MultiTokenPrediction', task, 'tokens', 'segments')

  def __call__(self, model, out, batch, weights, key):
    """Returns the loss term, and the loss and the accuracy of each module."""
    tokens, segments = batch['tokens'], batch['segments']
    total, aux = jnp.zeros(()), NO_AUX
    metrics: Sums = {}
    steps = model.head.further(out, tokens, model.output_embedding, key)
    for ahead, module in enumerate(steps, 1):
      same = (_shifted(segments, ahead) == segments).astype(weights.dtype)
      targets = _shifted(weights, ahead) * same
      sums = model.cross_entropy(module.x, _shifted(tokens, ahead), targets)
      total, aux = total + sums['loss'][0], aux + module.aux
      metrics |= {f'{name}_{ahead}': sums[name] for name in ('loss', 'accuracy')}
    return AuxiliaryOutput(self.weight / model.head.depth * total, metrics, aux)


def _shifted(array, by):
  """Returns the array [batch, length] shifted to the left, with zeros at the end."""
  return jnp.pad(array[:, by:], ((0, 0), (0, by)))
