"""Span corruption, T5's pre-training: the decoder writes what the encoder's text has lost (Raffel et al.
2020, https://arxiv.org/abs/1910.10683)."""

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from t2x.data import Chain, ConcatenateAndSplit, CorruptSpans
from t2x.errors import UserError
from t2x.layers import Tokens
from t2x.models import Inputs
from t2x.ranges import Natural, Range, Size
from t2x.tasks.base import TaskOutput, TokenTask, check_causal
from t2x.tasks.causal_lm import shift_right


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(TokenTask):
  """Fills the gaps of a row of text, for an encoder-decoder.

  Documents are joined and cut into rows that fill a source once spans are hidden (568 tokens for
  512 of the source and 114 of the target). A row is one example: the end of a document in it is a
  token like others, and may be hidden.

  Attributes:
    source_length: tokens of the source, sentinels and eos included.
    rate: part of the tokens that are hidden.
    mean_span: mean length of a hidden span.
    num_sentinels: ids that are sentinels.
    first_sentinel: the first of them, which the others count down from (32099 in T5's own
      tokenizers). None: they follow the tokenizer's ids, and the first is the last of all.

  Raises:
    UserError: more spans than sentinels, or what `CorruptSpans` refuses.
  """

  source_length: Size
  rate: Annotated[float, Range('0 < x < 1')] = 0.15
  mean_span: Annotated[float, Range('1 <= x')] = 3.0
  num_sentinels: Size = 100
  first_sentinel: Natural | None = None

  inputs: ClassVar[Inputs] = 'a source and a target'

  def __post_init__(self):
    spans = self._corruption(0, self.num_sentinels).num_spans
    if spans > self.num_sentinels:
      raise UserError(
        f'rows of {self.source_length} tokens have {spans} gaps: set SpanCorruption.num_sentinels '
        f'= {self.num_sentinels} to at least {spans}'
      )
    if self.first_sentinel is not None and self.first_sentinel < self.num_sentinels:
      raise UserError(
        f'SpanCorruption.first_sentinel = {self.first_sentinel}: {self.num_sentinels} sentinels '
        'cannot count down from it'
      )

  @property
  def vocab_size(self):
    """Also a row for each sentinel."""
    tokens = self.tokenizer.vocab_size
    return None if tokens is None else max(tokens, self._corruption(0, tokens).first_sentinel + 1)

  def _corruption(self, eos_id: int, vocab_size: int) -> CorruptSpans:
    behind = vocab_size + self.num_sentinels - 1
    return CorruptSpans(
      source_length=self.source_length,
      eos_id=eos_id,
      first_sentinel=behind if self.first_sentinel is None else self.first_sentinel,
      rate=self.rate,
      mean_span=self.mean_span,
    )

  @property
  def _shapes(self) -> CorruptSpans:
    """What the lengths are read from: ids do not matter."""
    return self._corruption(0, 0)

  @property
  def target_length(self) -> int:
    """Tokens of the target, sentinels and eos included."""
    return self._shapes.target_length

  @property
  def plan(self):
    """Rows of text without padding."""
    return ConcatenateAndSplit(self.planned(self._shapes.text_length))

  def transform(self, *, train):
    """Hides spans; evaluation draws from a fixed seed, so that its gaps are always the same."""
    tokenizer = self.fitted
    corruption = self._corruption(tokenizer.eos_id, tokenizer.vocab_size)
    first = self.resegment({'tokens': corruption.text_length}, train)
    return corruption if first is None else Chain((first, corruption))

  def spec(self, batch_size):
    """ids and segments of both sides: int32 [batch, source_length or target_length]."""
    lengths = {'source': self.source_length, 'target': self.target_length}
    return {
      side + field: jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
      for side, length in lengths.items()
      for field in ('', '_segments')
    }

  def check_model(self, model):
    """A row of the table for each token and each sentinel; no decoder block sees later tokens."""
    super().check_model(model)
    check_causal(model, self.target_length, 'SpanCorruption')
    tokens = self.tokenizer.vocab_size
    if tokens is None:
      return
    largest, size = self._corruption(0, tokens).first_sentinel, model.spec.vocab_size
    if size <= largest:
      raise UserError(
        f'the model has {size} rows in its token embedding, the last sentinel is '
        f'{largest}: set TokenEmbedding.vocab_size to at least {largest + 1}'
      )

  def target_weights(self, batch):
    """1 for each target token that is not padding."""
    return (batch['target_segments'] != 0).astype(jnp.float32)

  def sums(self, model, batch, key):
    """Loss and accuracy of each target token, sentinels and eos included."""
    target, segments = batch['target'], batch['target_segments']
    out = model.hidden(
      batch['source'],
      shift_right(target, segments, self.tokenizer.ids.start_id),
      source_tokens=Tokens.row(self.source_length, segments=batch['source_segments']),
      target_tokens=Tokens.row(self.target_length, segments=segments),
      key=key,
    )
    return TaskOutput(self.token_sums(model, out.x, target, batch, key), out.aux)
