"""Translation and other text-to-text tasks, by teacher forcing with label smoothing (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762)."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable
from t2x.base.ranges import Size, TunableRate
from t2x.data import Buckets, ByLength, CutToBucket, PackPairs, PadPairs, PairPlan, bucket_lengths
from t2x.decode import Beam, Generated, Strategy, generate
from t2x.decode.sampling import SampleSeed, prompt_keys
from t2x.layers import RowLayout, Tokens
from t2x.models import Inputs
from t2x.tasks.causal_lm import shift_right
from t2x.tasks.dropped_pairs import DroppedPairs
from t2x.tasks.text import TokenTask, answers, check_causal, check_shapes, pad_prompts

__all__ = ['Translation']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceTargetTask(TokenTask):
  """Predicts the target of a row from its source, with an encoder-decoder."""

  inputs: ClassVar[Inputs] = {'source': 'ids', 'target': 'ids'}
  # Columns of each side of a row.
  columns: ClassVar[tuple[str, ...]] = ('', '_segments')
  label_smoothing: ClassVar[Tunable] = 0.0

  @property
  @abc.abstractmethod
  def lengths(self) -> dict[str, int]:
    """Tokens of 'source' and 'target'."""

  def side(self, batch: Mapping[str, jax.Array], name: str) -> Tokens | None:
    """Returns the metadata of the tokens of 'source' or 'target', by default of one text and its
    padding; None: unpadded rows."""
    segments = batch[f'{name}_segments']
    return Tokens.row(segments.shape[1], segments=segments, right_padded=True)

  def spec(self, batch_size):
    """Returns the columns of both sides: int32 [batch, source_length or target_length]."""
    return {
      side + column: jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
      for side, length in self.lengths.items()
      for column in self.columns
    }

  def check_model(self, model):
    """Also raises UserError if a decoder block attends to later tokens."""
    super().check_model(model)
    check_causal(model, self.lengths['target'], type(self).__name__)

  def target_weights(self, batch):
    return (batch['target_segments'] != 0).astype(jnp.float32)

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the target tokens, including eos."""
    target = batch['target']
    out = model.hidden(
      batch['source'],
      shift_right(target, batch['target_segments'], self.tokenizer.ids.start_id),
      source_tokens=self.side(batch, 'source'),
      target_tokens=self.side(batch, 'target'),
      key=key,
    )
    sums = self.token_sums(model, out.x, target, batch, key, self.label_smoothing)
    return self.with_auxiliaries(sums, model, out, batch, key)

  def generated(
    self,
    model: Any,
    source: np.ndarray,
    tokens: Tokens | None,
    seed: SampleSeed,
    *,
    first: Sequence[Sequence[int]] | None = None,
    **settings: Any,
  ) -> Generated:
    """Generates the target of each source.

    Args:
      model: the model with its parameters.
      source: the sources, [batch, ...].
      tokens: metadata of the sources; None: unpadded rows.
      seed: random seed of sampling.
      first: ids after the start token, equally many for each source; None: the ids of the tokenizer.
      **settings: further arguments of `t2x.decode.generate`, such as `strategy` and `max_new_tokens`.
    """
    tokenizer = self.fitted
    ids = [tokenizer.before] * len(source) if first is None else first
    start = np.array([[tokenizer.start_id, *own] for own in ids], np.int32)
    return generate(
      model,
      start,
      np.full(len(source), start.shape[1], np.int32),
      eos_id=tokenizer.eos_id,
      pad_id=tokenizer.pad_id,
      key=prompt_keys(seed, len(source)),
      source=source,
      source_tokens=tokens,
      **settings,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetText(TokenTask):
  """Predicts the `target` text of an example from its `source`.

  Attributes:
    target_length: maximum number of target tokens, including eos.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    strategy: decoding strategy of `generate` if the caller sets none.
  """

  target_length: Size
  label_smoothing: TunableRate = 0.1
  strategy: Strategy = Beam(width=4)

  answers_prompts: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = TokenTask.data_fields | {'strategy'}

  @property
  def default_strategy(self):
    return self.strategy

  @property
  def answer_length(self) -> int:
    """Maximum number of generated tokens, including eos."""
    return self.target_length

  def prompt_of(self, example: Mapping[str, Any]) -> Any:
    """Returns the prompt of `generate` for an example, by default its source."""
    return example['source']

  def fits(self, example: Mapping[str, Any]) -> bool:
    """Returns whether the rows contain an example, so that all metrics of a split are over the same ones."""
    return True

  def answers(self, generated: Generated) -> list[list[dict[str, Any]]]:
    """Returns the sequences of each source as dicts with text, tokens, log_probs and score."""
    return answers(generated, self.fitted)

  @abc.abstractmethod
  def check_generate(self, model: Any, strategy: Strategy, batch_size: int) -> None:
    """Raises UserError if the model cannot generate for a batch of sources of the maximum length.

    Args:
      model: the model's shapes.
      strategy: decoding strategy.
      batch_size: sources per batch.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTask(DroppedPairs, TargetText):
  """Predicts the `target` text of an example from its `source` text.

  Attributes:
    source_length: maximum number of source tokens, including eos. Longer examples are dropped and longer
      prompts truncated.
    target_length: maximum number of target tokens, including eos. Longer examples are dropped.
    max_dropped: share of the examples of a split that may be dropped; more are an error.
  """

  source_length: Size

  text_fields: ClassVar[tuple[str, ...]] = ('source', 'target')
  data_fields: ClassVar[frozenset[str]] = TargetText.data_fields | DroppedPairs.data_fields

  def fits(self, example):
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
    return self.answers(generated)

  @abc.abstractmethod
  def _generate(
    self, model: Any, sources: Sequence[Sequence[int]], seed: SampleSeed = 0, **settings: Any
  ) -> Generated:
    """Generates the targets of sources, given as token ids with eos."""

  def check_generate(self, model, strategy, batch_size):
    sources = [[self.fitted.eos_id] * self.source_length] * batch_size
    check_shapes(
      lambda m: self._generate(m, sources, strategy=strategy, max_new_tokens=self.target_length),
      model,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(PairTask, SourceTargetTask):
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

  columns: ClassVar[tuple[str, ...]] = ('', '_segments', '_positions')

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
  def lengths(self):
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

  def side(self, batch, name):
    """Returns the metadata of packed texts."""
    return Tokens(batch[f'{name}_positions'], batch[f'{name}_segments'], layout=RowLayout.PACKED)

  def _generate(self, model, sources, seed=0, **settings) -> Generated:
    tokenizer = self.fitted
    ids, lengths = pad_prompts(sources, tokenizer.pad_id, longest=self.source_length)
    segments = jnp.asarray(np.arange(ids.shape[1])[None] < lengths[:, None], jnp.int32)
    tokens = Tokens.row(ids.shape[1], segments=segments, right_padded=True)
    return self.generated(model, ids, tokens, seed, **settings)
