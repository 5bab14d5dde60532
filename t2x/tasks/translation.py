"""Translation and other text-to-text tasks, by teacher forcing with label smoothing (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762)."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.names import missing
from t2x.base.ranges import Fraction, Size, TunableNonNegative, TunableRate
from t2x.data import Buckets, ByLength, CutToBucket, PackPairs, PadPairs, PairPlan, bucket_lengths
from t2x.decode import Beam, Generated, Strategy
from t2x.decode.sampling import SampleSeed
from t2x.layers import RowLayout, Tokens
from t2x.models import Inputs, Output, TextModel
from t2x.tasks.encoder_decoder import generated_targets, sides_spec, teacher_forced
from t2x.tasks.former import BASES
from t2x.tasks.text import TextTask, answers, check_shapes, in_training, pad_prompts

__all__ = ['Translation']

if not TYPE_CHECKING:  # Type checkers would accept every name.
  __getattr__ = missing(__name__, BASES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTask(TextTask):
  """Predicts the `target` text of an example from its `source` text.

  Attributes:
    source_length: maximum number of source tokens, including eos. Longer examples are dropped and longer
      prompts truncated.
    target_length: maximum number of target tokens, including eos. Longer examples are dropped.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only.
    strategy: decoding strategy of `generate` if the caller sets none.
    max_dropped: share of the examples of a split that may be dropped; more are an error.
  """

  source_length: Size
  target_length: Size
  label_smoothing: TunableRate = 0.1
  z_loss: TunableNonNegative = 0.0
  strategy: Strategy = Beam(width=4)
  max_dropped: Fraction = 0.1

  answers_prompts: ClassVar[bool] = True
  is_causal: ClassVar[bool] = True
  text_fields: ClassVar[tuple[str, ...]] = ('source', 'target')
  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'strategy', 'max_dropped'}

  @property
  def answer_length(self) -> int:
    """Maximum number of generated tokens, including eos."""
    return self.target_length

  def prompt_of(self, example: Mapping[str, Any]) -> str:
    """Returns the prompt of `generate` for an example."""
    return example['source']

  def fits(self, example: Mapping[str, Any]) -> bool:
    """Returns whether an example is neither empty nor dropped as too long."""
    sides = {'source': self.fitted, 'target': self.fitted.target}
    ids = {name: np.array(side.encode(example[name])) for name, side in sides.items()}
    return self.plan.fits(ids, self.fitted)

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Generates the target of each source."""
    tokenizer = self.fitted
    before = tokenizer.before
    limit = self.source_length - len(before) - 1
    sources = [[*before, *tokenizer.encode(prompt)[:limit], tokenizer.eos_id] for prompt in prompts]
    generated = self._generate(
      model,
      sources,
      seed,
      strategy=strategy,
      max_new_tokens=max_new_tokens,
      num_return=num_return,
    )
    return answers(generated, tokenizer)

  @abc.abstractmethod
  def _generate(
    self, model: object, sources: Sequence[Sequence[int]], seed: SampleSeed = 0, **settings: Any
  ) -> Generated:
    """Generates the targets of sources, given as token ids with eos."""

  def check_generate(self, model: nnx.Module, strategy: Strategy, batch_size: int) -> None:
    """Raises UserError if the model cannot generate for a batch of sources of the maximum length.

    Args:
      model: the model's shapes.
      strategy: decoding strategy.
      batch_size: sources per batch.
    """
    sources = [[self.fitted.eos_id] * self.source_length] * batch_size
    check_shapes(
      lambda m: self._generate(m, sources, strategy=strategy, max_new_tokens=self.target_length),
      model,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(PairTask):
  """Predicts the `target` text of an example from its `source` text; rows pack several examples.

  Attributes:
    source_length: tokens per row on the source side, including eos. Longer examples are dropped and
      longer prompts truncated.
    target_length: tokens per row on the target side, including eos.
    packing: the packing of pairs, called with both lengths: `PackPairs` (first fit), `BestFitPairs`, or
      `PadPairs` (one pair per row).
    buckets: lengths of rows in training, on both sides, in addition to the maximum lengths. Each batch has pairs of
      one bucket and its shape, for which the step is compiled once. FLOPs and tokens with padding are
      those of the maximum lengths. Needs `PadPairs`; empty: all rows have the maximum lengths.
  """

  packing: Callable[..., PairPlan] = PackPairs
  buckets: Sequence[Size] = ()

  inputs: ClassVar[Inputs] = {'source': 'ids', 'target': 'ids'}
  target_segments: ClassVar[str] = 'target_segments'

  def __post_init__(self):
    if self.buckets and (not isinstance(self.plan, PadPairs) or self.pieces is not None):
      raise UserError(
        'Translation.buckets needs one pair per row, of constant length: set Translation.packing = @PadPairs, and '
        'leave out Translation.pieces'
      )
    longest = max(self.source_length, self.target_length)
    if self.buckets and not bucket_lengths(self.buckets, longest):
      raise UserError(f'Translation.buckets = {list(self.buckets)}: one must be below {longest}')

  @property
  def lengths(self) -> dict[str, int]:
    """Tokens of 'source' and 'target'."""
    return {'source': self.source_length, 'target': self.target_length}

  @property
  def plan(self):
    return self.packing(self.planned(self.source_length), self.planned(self.target_length))

  @property
  def _buckets(self) -> Buckets:
    return Buckets(self.lengths, bucket_lengths(self.buckets, max(self.lengths.values())))

  @property
  def row_lengths(self):
    """The lengths of the buckets on both sides."""
    if not self.buckets:
      return ()
    buckets = self._buckets
    return [size for number in range(len(buckets)) for size in buckets.sizes(number).values()]

  def order(self, rows, batch_size, seed):
    """Returns the order by length, if there are buckets."""
    if not self.buckets:
      return None
    return ByLength(self._buckets.buckets_of(rows), batch_size, seed)

  def transform(self, *, train):
    """Returns the transform that samples segmentations or cuts padding in training, or None."""
    if self.buckets and train:
      return CutToBucket(self._buckets)
    return self.resegment(self.lengths, train)

  def spec(self, batch_size):
    """Returns the columns of both sides: int32 [batch, source_length or target_length]."""
    return sides_spec(batch_size, self.lengths, ('', '_segments', '_positions'))

  def hidden(
    self, model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None, **settings: Any
  ) -> Output:
    """Returns the output of the model with the hidden vectors of packed targets; see `teacher_forced`."""
    source, target = (
      Tokens(batch[f'{name}_positions'], batch[f'{name}_segments'], layout=RowLayout.PACKED)
      for name in ('source', 'target')
    )
    return teacher_forced(
      model, batch, source, target, self.tokenizer.ids.start_id, key, **settings
    )

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the target tokens, including eos."""
    out = self.hidden(model, batch, key)
    smoothing, z_loss = in_training(key, self.label_smoothing), in_training(key, self.z_loss)
    targets = batch['target'], self.weighted_targets(batch)
    sums = model.cross_entropy(out.x, *targets, smoothing=smoothing, z_loss=z_loss)
    return self.with_auxiliaries(sums, model, out, batch, key)

  def _generate(self, model, sources, seed=0, **settings) -> Generated:
    tokenizer = self.fitted
    ids, lengths = pad_prompts(sources, tokenizer.pad_id, longest=self.source_length)
    segments = jnp.asarray(np.arange(ids.shape[1])[None] < lengths[:, None], jnp.int32)
    tokens = Tokens.row(ids.shape[1], segments=segments, right_padded=True)
    return generated_targets(tokenizer, model, ids, tokens, seed, **settings)
