"""Denoising: an encoder-decoder restores a corrupted text (BART: Lewis et al. 2020, https://arxiv.org/abs/1910.13461),
or the spans that are masked in it (T5's span corruption: Raffel et al. 2020, https://arxiv.org/abs/1910.10683)."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, NonEmpty, Range, Size, TunableNonNegative
from t2x.data import (
  ConcatenateAndSplit,
  CorruptSpans,
  CorruptText,
  FitSides,
  InfillSpans,
  Noise,
  PermuteSentences,
)
from t2x.models import Inputs
from t2x.tasks.encoder_decoder import padded_side, sides_spec, teacher_forced
from t2x.tasks.text import TextTask, chained, in_training

__all__ = ['Denoising', 'SpanCorruption']


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptedText(TextTask):
  """Predicts the target of a row, the text or parts of it, from its source, the corrupted text.

  Attributes:
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only.
  """

  z_loss: TunableNonNegative = 0.0

  inputs: ClassVar[Inputs] = {'source': 'ids', 'target': 'ids'}
  target_segments: ClassVar[str] = 'target_segments'
  is_causal: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def lengths(self) -> dict[str, int]:
    """Tokens of 'source' and 'target', including eos."""

  def spec(self, batch_size):
    """Returns the ids and segments of both sides: int32 [batch, length]."""
    return sides_spec(batch_size, self.lengths)

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the target tokens, including eos."""
    sides = padded_side(batch, 'source'), padded_side(batch, 'target')
    out = teacher_forced(model, batch, *sides, self.tokenizer.ids.start_id, key)
    z_loss = in_training(key, self.z_loss)
    sums = model.cross_entropy(out.x, batch['target'], self.weighted_targets(batch), z_loss=z_loss)
    return self.with_auxiliaries(sums, model, out, batch, key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising(CorruptedText):
  """Predicts a row of text from a corrupted one.

  Documents are concatenated and split into rows; ends of documents are ordinary tokens. The default is BART's final
  corruption: permuted sentences, then infilled spans.

  Attributes:
    length: tokens of the source and of the target, including eos.
    noise: corruptions in the order of application, such as [@PermuteSentences(), @InfillSpans()].
  """

  length: Annotated[int, Range('2 <= x')]
  noise: Annotated[Sequence[Noise], NonEmpty] = (PermuteSentences(), InfillSpans())

  data_fields: ClassVar[frozenset[str]] = CorruptedText.data_fields | {'noise'}

  @property
  def lengths(self):
    return {'source': self.length, 'target': self.length}

  @property
  def plan(self):
    """Rows of concatenated documents without padding."""
    return ConcatenateAndSplit(self.planned(self.length - 1))

  def transform(self, *, train):
    """Returns the transform that corrupts rows; evaluation uses a fixed seed and so fixed corruptions."""
    corrupt = CorruptText(tokenizer=self.fitted, noise=tuple(self.noise), length=self.length)
    return chained(self.resegment({'tokens': self.length - 1}, train), corrupt)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(CorruptedText):
  """Predicts the masked spans of a row of text with an encoder-decoder.

  Documents are concatenated and split into rows that fill the source after masking (568 tokens for a
  source of 512 and a target of 114). A row is one example; ends of documents are ordinary tokens and may be
  masked.

  Attributes:
    source_length: tokens of the source, including sentinels and eos.
    rate: fraction of the tokens to mask.
    mean_span: mean length of a masked span in tokens.
    num_sentinels: number of sentinel ids.
    first_sentinel: id of the first sentinel; the following sentinels count down from it (32099 in T5's
      tokenizers). None: the sentinels follow the ids of the tokenizer, and the first has the largest id.
    prefix: text before each source, such as the mode token of a denoiser of UL2
      (https://arxiv.org/abs/2205.05131). With a `mean_span` of all masked tokens, one span at the end of the
      text is masked (UL2's sequential denoiser).
    padded_target: tokens of the target with padding, so that tasks of a mixture have rows of one shape; None:
      without padding.

  Raises:
    UserError: there are more spans than sentinels, or the settings are invalid for `CorruptSpans`.
  """

  source_length: Size
  rate: Annotated[float, Range('0 < x < 1')] = 0.15
  mean_span: Annotated[float, Range('1 <= x')] = 3.0
  num_sentinels: Size = 100
  first_sentinel: Natural | None = None
  prefix: str = ''
  padded_target: Size | None = None

  data_fields: ClassVar[frozenset[str]] = CorruptedText.data_fields | {
    'rate',
    'mean_span',
    'prefix',
  }

  def __post_init__(self):
    if self.padded_target is not None and self.padded_target < self._lengths.target_length:
      raise UserError(
        f'SpanCorruption.padded_target = {self.padded_target}: targets have up to '
        f'{self._lengths.target_length} tokens; set it to at least this number'
      )
    spans = self._corruption(0, self.num_sentinels).num_spans
    if spans > self.num_sentinels:
      raise UserError(
        f'SpanCorruption.num_sentinels = {self.num_sentinels} is too small, because sources of '
        f'{self.source_length} tokens have {spans} masked spans: set it to at least {spans}'
      )
    if self.first_sentinel is not None and self.first_sentinel < self.num_sentinels:
      raise UserError(
        f'SpanCorruption.first_sentinel = {self.first_sentinel} must be at least num_sentinels = '
        f'{self.num_sentinels}, because the ids of sentinels count down from it'
      )

  @property
  def vocab_size(self):
    """Minimum number of rows of the token embedding, including sentinels."""
    tokens = self.tokenizer.vocab_size
    return None if tokens is None else max(tokens, self._corruption(0, tokens).first_sentinel + 1)

  def _corruption(self, eos_id: int, vocab_size: int, prefix_length: int = 0) -> CorruptSpans:
    last_id = vocab_size + self.num_sentinels - 1
    return CorruptSpans(
      source_length=self.source_length - prefix_length,
      eos_id=eos_id,
      first_sentinel=last_id if self.first_sentinel is None else self.first_sentinel,
      rate=self.rate,
      mean_span=self.mean_span,
    )

  @property
  def _lengths(self) -> CorruptSpans:
    """The corruption with placeholder ids, for its lengths."""
    return self._corruption(0, 0)

  @property
  def target_length(self) -> int:
    """Tokens of the target, including sentinels and eos."""
    return self.padded_target or self._lengths.target_length

  @property
  def lengths(self):
    """Tokens of both sides, including sentinels and eos."""
    return {'source': self.source_length, 'target': self.target_length}

  @property
  def _prefix_ids(self) -> tuple[int, ...]:
    return tuple(self.fitted.encode(self.prefix)) if self.prefix else ()

  @property
  def plan(self):
    """Rows of concatenated documents without padding."""
    corruption = self._corruption(0, 0, len(self._prefix_ids))
    return ConcatenateAndSplit(self.planned(corruption.text_length))

  def transform(self, *, train):
    """Returns the transform that masks spans; evaluation uses a fixed seed and so fixed spans."""
    tokenizer, prefix = self.fitted, self._prefix_ids
    corruption = self._corruption(tokenizer.eos_id, tokenizer.vocab_size, len(prefix))
    fit = FitSides(
      prefix=prefix, source_length=self.source_length, target_length=self.target_length
    )
    fits = prefix or self.padded_target is not None
    return chained(
      self.resegment({'tokens': corruption.text_length}, train), corruption, fit if fits else None
    )

  def check_model(self, model):
    """Also raises UserError if a decoder block attends to later tokens or the embedding lacks sentinels."""
    super().check_model(model)
    tokens = self.tokenizer.vocab_size
    if tokens is None:
      return
    largest, size = self._corruption(0, tokens).first_sentinel, model.spec.vocab_size
    if size <= largest:
      raise UserError(
        f'the token embedding of the model has {size} rows, but the largest id of a sentinel is '
        f'{largest}: set TokenEmbedding.vocab_size to at least {largest + 1}'
      )
