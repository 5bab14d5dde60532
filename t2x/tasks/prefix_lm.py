"""Prefix language modelling: a source and its target in one row of a decoder (Liu et al. 2018,
https://arxiv.org/abs/1801.10198; Raffel et al. 2020, https://arxiv.org/abs/1910.10683)."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.data import JoinedPairs
from t2x.layers import RowLayout, Tokens
from t2x.tasks.causal_lm import shift_right
from t2x.tasks.text import continued, in_training
from t2x.tasks.translation import PairTask

__all__ = ['PrefixLM']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixLM(PairTask):
  """Predicts the `target` of an example after its `source` in the same row; rows pack several examples.

  With the pattern `Causal() | Prefix()` (`@Or()` in a config) the tokens of a source see each other; with
  `Causal()` they see only earlier tokens. The loss covers the target and its eos.

  Attributes:
    length: tokens per row, at least the sum of both.
    packing: the packing of pairs, called with both lengths and `length`.
  """

  length: Size
  packing: Callable[..., JoinedPairs] = JoinedPairs

  predicts_next: ClassVar[bool] = True

  def __post_init__(self):
    if self.pieces is not None:
      raise UserError('PrefixLM does not sample segmentations: leave out PrefixLM.pieces')

  @property
  def plan(self):
    return self.packing(self.source_length, self.target_length, self.length)

  def spec(self, batch_size):
    """tokens, segments, positions, in_source: int32 [batch, length]."""
    shape = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    return dict.fromkeys(('tokens', 'segments', 'positions', 'in_source'), shape)

  def target_weights(self, batch):
    """Returns weight 1 for each target token that is not padding."""
    return ((batch['segments'] != 0) & (batch['in_source'] == 0)).astype(jnp.float32)

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the target tokens, including eos."""
    tokens, segments = batch['tokens'], batch['segments']
    # The inputs are shifted by one, so the eos of the source, which predicts the target, is in the prefix.
    prefix = (shift_right(batch['in_source'], segments, 1) != 0) & (segments != 0)
    out = model.hidden(
      shift_right(tokens, segments, self.tokenizer.ids.bos_id),
      tokens=Tokens(
        batch['positions'],
        segments,
        marks={'prefix': prefix} if model.spec.reads_prefix else {},
        layout=RowLayout.PACKED,
      ),
      key=key,
    )
    smoothing, z_loss = in_training(key, self.label_smoothing), in_training(key, self.z_loss)
    weights = self.weighted_targets(batch)
    sums = model.cross_entropy(out.x, tokens, weights, smoothing=smoothing, z_loss=z_loss)
    return self.with_auxiliaries(sums, model, out, batch, key)

  def _generate(self, model, sources, seed=0, **settings):
    prompts = [[self.fitted.bos_id, *source] for source in sources]
    longest = self.source_length + 1
    return continued(model, prompts, self.fitted, seed=seed, longest=longest, **settings)
