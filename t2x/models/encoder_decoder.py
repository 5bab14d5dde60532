"""The encoder-decoder: the original Transformer, T5, BART."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.layers import Pattern, Source, TokenEmbedding, Tokens, named_key
from t2x.layers.constraints import constrain
from t2x.models.bodies import Decoder, Encoder, replaced
from t2x.models.heads import TiedHead
from t2x.models.interfaces import Body, BodyCache, Inputs, Output, TextEmbedding, TokenHead
from t2x.models.language_model import select
from t2x.ranges import Size

__all__ = ['EncoderDecoder']


class EncoderDecoder(nnx.Module):
  """Source ids and target ids -> logits for the target.

  Args:
    d_model: width of the residual stream.
    embedding: builds the token embedding of the source, and of the target where both share it.
    target_embedding: builds the target's own (two vocabularies); None: it is shared.
    encoder: builds the body that reads the source.
    decoder: builds the body that writes the target; its blocks have `cross`.
    head: builds what turns hidden vectors into logits of the target's vocabulary.
  """

  inputs: ClassVar[Inputs] = 'a source and a target'

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    target_embedding: Callable[..., TextEmbedding] | None = None,
    encoder: Callable[..., Body] = Encoder,
    decoder: Callable[..., Body] = Decoder,
    head: Callable[..., TokenHead] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.target_embedding = target_embedding and target_embedding(d_model, rngs=rngs)
    self.encoder = encoder(d_model, rngs=rngs)
    self.decoder = decoder(d_model, rngs=rngs)
    self.head = head(d_model, self.vocab_size, rngs=rngs)

  @property
  def vocab_size(self) -> int:
    """Tokens that the target may have."""
    return self._target_embedding.vocab_size

  @property
  def _target_embedding(self) -> TextEmbedding:
    return self.embedding if self.target_embedding is None else self.target_embedding

  @property
  def max_length(self) -> int | None:
    """Target positions that the model knows; None: any number."""
    return self.decoder.max_length

  @property
  def patterns(self) -> list[Pattern]:
    """The attention patterns of the decoder's blocks."""
    return self.decoder.patterns

  def __call__(
    self,
    source: Int[Array, 'batch source'],
    target: Int[Array, 'batch length'],
    *,
    source_tokens: Tokens | None = None,
    target_tokens: Tokens | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Logits [batch, length, vocab]; `target` is what the decoder reads (already shifted)."""
    encoded, read = self._encode(source, source_tokens, named_key(key, 'encoder'), record)
    out = self.decoder(
      self._target_embedding(target),
      read,
      tokens=target_tokens,
      key=named_key(key, 'decoder'),
      record=record,
    )
    logits = constrain(self.head(out.x, self._target_embedding), 'batch', 'length', 'vocab')
    recorded = {
      f'{name}.{key}': value
      for name, side in (('encoder', encoded), ('decoder', out))
      for key, value in side.recorded.items()
    }
    return Output(logits, None, encoded.aux + out.aux, recorded)

  def _encode(self, source, tokens, key=None, record=frozenset()) -> tuple[Output, Source]:
    tokens = Tokens.row(source.shape[1]) if tokens is None else tokens
    encoded = self.encoder(self.embedding(source), tokens=tokens, key=key, record=record)
    return encoded, Source(encoded.x, tokens)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    source: Int[Array, 'batch source'],
    source_tokens: Tokens | None = None,
    dtype: Any = jnp.float32,
  ) -> BodyCache:
    """Applies the encoder; returns a cache with what cross-attention reads and room for `num_slots` tokens."""
    _, read = self._encode(source, source_tokens)
    return self.decoder.init_cache(batch, num_slots, dtype, read)

  def unstacked(self, cache: BodyCache) -> tuple['EncoderDecoder', BodyCache]:
    """The model and its cache layer by layer, for decoding token by token."""
    decoder, cache = self.decoder.unstacked(cache)
    return replaced(self, decoder=decoder), cache

  def decode(
    self,
    ids: Int[Array, 'batch length'],
    tokens: Tokens,
    cache: BodyCache,
    last: Int[Array, ' batch'] | None = None,
  ) -> tuple[Float[Array, 'batch picked vocab'], BodyCache]:
    """Logits for `ids`, which follow what the cache holds; as `LanguageModel.decode`."""
    out = self.decoder(self._target_embedding(ids), None, tokens=tokens, cache=cache)
    x = out.x if last is None else select(out.x, last[:, None])
    return self.head(x, self._target_embedding), out.cache
