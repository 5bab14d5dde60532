"""Detection of tokens that a generator replaced (ELECTRA: Clark et al. 2020, https://arxiv.org/abs/2003.10555)."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative
from t2x.layers import named_key
from t2x.models import Output, TextModel
from t2x.models.language_model import select
from t2x.tasks.auxiliary import Auxiliary, AuxiliaryOutput, check_columns
from t2x.tasks.losses import present_tokens

__all__ = ['ReplacedTokenDetection']


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(Auxiliary):
  """Predicts for each token whether the generator of a `WithGenerator` replaced it.

  The task's own loss is that of the generator (`MaskedLM`, as published with mask_rate 0.85 and random_rate 0). Each
  predicted token is replaced by a sample of the generator's distribution, through which no gradient passes. A sample
  that equals the original token counts as original. The loss is the mean over all tokens that are not padding.

  In evaluation the samples depend only on the tokens of their row.

  Metrics: `loss`; `accuracy`, the fraction of tokens whose prediction is right; `replaced`, the fraction of tokens that
  were replaced, so that predicting none has the accuracy 1 - replaced; `recall`, the fraction of the replaced tokens
  that are found; `precision`, the fraction of the predicted ones that were replaced.

  Attributes:
    weight: coefficient of the loss; 50 as published.
  """

  weight: NonNegative = 50.0

  def check_model(self, model, task):
    """Raises UserError if the task predicts no chosen tokens, marks tokens, or the model has no generator."""
    check_columns('ReplacedTokenDetection', task, 'masked_positions', 'labels', 'weights')
    if 'replaced tokens' not in model.spec.outputs:
      raise UserError(
        f'ReplacedTokenDetection needs a model that detects replaced tokens, but @{type(model).__name__} computes '
        f'{", ".join(sorted(model.spec.outputs))}: set Experiment.model = @WithGenerator'
      )
    if task.token_marks.names:
      raise UserError(
        f'{type(task).__name__}.marks are those of the masked tokens, not of the replaced ones: leave them out with '
        'ReplacedTokenDetection'
      )

  def term_weight(self, batch, weights):
    """Returns the number of tokens that are not padding."""
    return present_tokens(batch).sum()

  def __call__(self, model, out, batch, weights, key):
    """Returns the loss term and the metrics."""
    original = _put(batch['tokens'], batch['labels'], batch)
    ids = _put(batch['tokens'], self.samples(model, out, batch, key), batch)
    types = batch['types'] if model.spec.num_types else None
    detected = model.detect(ids, tokens=out.tokens, types=types, key=named_key(key, 'detect'))
    replaced, present = ids != original, present_tokens(batch)
    # The cross-entropy of sigmoid(x): log(1 + exp(-x)) for replaced tokens, log(1 + exp(x)) for others.
    losses = jax.nn.softplus(jnp.where(replaced, -detected.x, detected.x)) * present
    found, total, count = detected.x > 0, present.sum(), (replaced * present).sum()
    hits = (found & replaced) * present
    # Neither 0 nor NaN is a decision.
    right = jnp.where(replaced, found, detected.x < 0)
    metrics = {
      'loss': (losses.sum(), total),
      'accuracy': ((right * present).sum(), total),
      'replaced': (count, total),
      'recall': (hits.sum(), count),
      'precision': (hits.sum(), (found * present).sum()),
    }
    return AuxiliaryOutput(self.weight * losses.sum(), metrics, detected.aux)

  def samples(
    self, model: TextModel, out: Output, batch: Mapping[str, Array], key: Array | None
  ) -> Int[Array, 'batch predicted']:
    """Returns a token for each predicted token, drawn from the distribution of the generator.

    Args:
      model: the model.
      out: the output of the generator.
      batch: the batch.
      key: random keys of the rows [batch]; None in evaluation.
    """
    logits = model.logits(select(out.x, batch['masked_positions']))
    keys = _fixed_keys(batch['tokens']) if key is None else named_key(key, 'samples')
    # Adds Gumbel noise and takes the largest; ids have no gradient.
    return jax.vmap(jax.random.categorical)(keys, logits).astype(batch['labels'].dtype)


def _fixed_keys(tokens: Int[Array, 'batch length']) -> Array:
  """Returns a random key for each row that is a function of its tokens."""
  index = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.uint32)
  numbers = (tokens.astype(jnp.uint32) * (2 * index + 1)).sum(axis=1, dtype=jnp.uint32)
  return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), numbers)


def _put(
  tokens: Int[Array, 'batch length'],
  values: Int[Array, 'batch predicted'],
  batch: Mapping[str, Array],
) -> Int[Array, 'batch length']:
  """Returns the tokens with the values at the predicted positions; unused entries have the weight 0."""
  places = jnp.where(batch['weights'] > 0, batch['masked_positions'], tokens.shape[1])
  return jax.vmap(lambda row, places, values: row.at[places].set(values, mode='drop'))(
    tokens, places, values
  )
