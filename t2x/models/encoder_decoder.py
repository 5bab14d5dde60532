"""The encoder-decoder: the original Transformer, T5, BART."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.errors import UserError
from t2x.hyperparameters import Tunable
from t2x.layers import Source, TokenEmbedding, Tokens, named_key
from t2x.layers.constraints import constrain
from t2x.models.bodies import Decoder, Encoder, replaced
from t2x.models.cache import BodyCache
from t2x.models.heads import TiedHead
from t2x.models.interfaces import Body, Head, Output, TextEmbedding
from t2x.models.language_model import select
from t2x.models.losses import Sums
from t2x.models.spec import ModelSpec
from t2x.ranges import Size


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

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    target_embedding: Callable[..., TextEmbedding] | None = None,
    encoder: Callable[..., Body] = Encoder,
    decoder: Callable[..., Body] = Decoder,
    head: Callable[..., Head] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.target_embedding = target_embedding and target_embedding(d_model, rngs=rngs)
    self.encoder = encoder(d_model, rngs=rngs)
    self.decoder = decoder(d_model, rngs=rngs)
    if self.encoder.output_dim != d_model:
      raise UserError(
        f'the encoder returns vectors of width {self.encoder.output_dim}, but the decoder attends to '
        f'vectors of width d_model = {d_model}: use stacks that keep the width'
      )
    self.head = head(self.decoder.output_dim, self._target_embedding.vocab_size, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    """Facts about the model."""
    return ModelSpec(
      inputs='a source and a target',
      outputs=self.head.outputs,
      patterns=tuple(self.decoder.patterns),
      max_length=self.decoder.max_length,
      max_source_length=self.encoder.max_length,
      vocab_size=self._target_embedding.vocab_size,
      num_classes=self.head.num_classes,
    )

  @property
  def _target_embedding(self) -> TextEmbedding:
    return self.embedding if self.target_embedding is None else self.target_embedding

  def hidden(
    self,
    source: Int[Array, 'batch source'],
    target: Int[Array, 'batch length'],
    *,
    source_tokens: Tokens | None = None,
    target_tokens: Tokens | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Hidden vectors [batch, length, d_model] of the target, which is what the decoder reads (already
    shifted)."""
    encoded, read = self._encode(source, source_tokens, named_key(key, 'encoder'), record)
    embedded, tokens = self._target_embedding(target, target_tokens)
    decoder_key = named_key(key, 'decoder')
    out = self.decoder(embedded, read, tokens=tokens, key=decoder_key, record=record)
    recorded = {
      f'{name}.{key}': value
      for name, side in (('encoder', encoded), ('decoder', out))
      for key, value in side.recorded.items()
    }
    return Output(out.x, None, encoded.aux + out.aux, recorded, out.tokens)

  def _encode(self, source, tokens, key=None, record=frozenset()) -> tuple[Output, Source]:
    embedded, tokens = self.embedding(source, tokens)
    encoded = self.encoder(embedded, tokens=tokens, key=key, record=record)
    return encoded, Source(encoded.x, tokens if encoded.tokens is None else encoded.tokens)

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch length vocab']:
    """Logits of hidden vectors."""
    return self.head.logits(x, self._target_embedding)

  def cross_entropy(
    self,
    x: Float[Array, 'batch length d_model'],
    labels: Int[Array, 'batch length'],
    weights: Float[Array, 'batch length'],
    *,
    smoothing: Tunable = 0.0,
    z_loss: Tunable = 0.0,
    axes: Sequence[str | None] = ('batch', 'length'),
  ) -> Sums:
    """Sums of the loss and of correct predictions over hidden vectors; see `Head.cross_entropy`."""
    return self.head.cross_entropy(
      x, self._target_embedding, labels, weights, smoothing=smoothing, z_loss=z_loss, axes=axes
    )

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
    """Logits [batch, length, vocab]; the arguments are those of `hidden`."""
    out = self.hidden(
      source,
      target,
      source_tokens=source_tokens,
      target_tokens=target_tokens,
      key=key,
      record=record,
    )
    logits = constrain(self.logits(out.x), 'batch', 'length', 'vocab')
    return Output(logits, None, out.aux, out.recorded)

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
    embedded, tokens = self._target_embedding(ids, tokens)
    out = self.decoder(embedded, None, tokens=tokens, cache=cache)
    x = out.x if last is None else select(out.x, last[:, None])
    return self.logits(x), out.cache
