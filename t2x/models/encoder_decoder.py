"""Encoder-decoder models: the original Transformer, T5, BART; captioners, speech recognisers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Int, Shaped

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import (
  Embedder,
  Full,
  Pattern,
  PositionEncoding,
  SourceSequence,
  TextEmbedding,
  TokenEmbedding,
  Tokens,
  named_key,
)
from t2x.layers.building import building
from t2x.layers.composites import recorded_by
from t2x.layers.constraints import constrain
from t2x.models.bodies import Decoder, Encoder, replace_parts
from t2x.models.cache import BodyCache
from t2x.models.heads import TiedHead
from t2x.models.interfaces import Body, Head, ModelSide, Output
from t2x.models.language_model import LogitModel, limited
from t2x.models.spec import ModelSpec
from t2x.models.stack import by_layer

__all__ = ['EncoderDecoder']


class EncoderDecoder(LogitModel):
  """Computes logits over the target vocabulary from a source and target ids.

  Args:
    d_model: width of the residual stream.
    embedding: builds the token embedding of the source, and of the target unless `target_embedding` is set.
    source_embedding: builds another embedder of the source, such as patches of images or frames of audio; `embedding`
      is then that of the target. None: sources are token ids.
    target_embedding: builds a separate embedding of the target (two vocabularies); None: shared.
    encoder: builds the body of the source.
    decoder: builds the body of the target; its blocks need `cross`.
    head: builds the output head over the target vocabulary.
    source_encoding: builds the position encoding of pairs of a target and a source token, which all layers share.
      With `AddressPositions`, keys of the source get its positions and queries those of the decoder's encoding
      (DETR, https://arxiv.org/abs/2005.12872). None: none.
    source_pattern: which source tokens each target token may see; `Causal()` shows those up to its own position.

  Raises:
    UserError: the encoder's output is not d_model wide, the encoder does not record what the decoder reads of its
      layers, the embedding of the target prepends tokens, both `source_embedding` and `target_embedding` are set, or
      `source_encoding` does not act in layers.
  """

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    source_embedding: Callable[..., Embedder] | None = None,
    target_embedding: Callable[..., TextEmbedding] | None = None,
    encoder: Callable[..., Body] = Encoder,
    decoder: Callable[..., Body] = Decoder,
    head: Callable[..., Head] = TiedHead,
    source_encoding: Callable[..., PositionEncoding] | None = None,
    source_pattern: Pattern = Full(),
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.source_embedding = source_embedding and source_embedding(d_model, rngs=rngs)
    self.target_embedding = target_embedding and target_embedding(d_model, rngs=rngs)
    self._check_embeddings()
    self.encoder = encoder(d_model, rngs=rngs)
    self.decoder = decoder(d_model, rngs=rngs)
    if self.encoder.output_dim != d_model:
      raise UserError(
        f'the encoder returns vectors of width {self.encoder.output_dim}, but the decoder attends to '
        f'vectors of width d_model = {d_model}: use stacks that keep the width'
      )
    known = self.encoder.recordable
    if known is not None and (unknown := self.decoder.reads_of_source - known):
      raise UserError(
        f'the decoder reads the {", ".join(sorted(unknown))} of the layers of the encoder, which do not record them: '
        'use layers that do (@Recurrent records states), or leave out the part that reads them'
      )
    self.source_encoding = source_encoding and source_encoding(d_model, rngs=rngs)
    if self.source_encoding is not None and not self.source_encoding.acts_in_layers:
      raise UserError(
        f'EncoderDecoder.source_encoding = @{type(self.source_encoding).__name__} adds vectors to tokens only, and '
        'has no effect between target and source: use @AddressPositions, or bind it as Encoder.encoding'
      )
    self.source_pattern = source_pattern
    with building(vocab_multiple=self.output_embedding.vocab_multiple):
      self.head = head(self.decoder.output_dim, self.output_embedding.vocab_size, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={
        'source': limited(self.source_embedder, self.encoder),
        'target': limited(self.output_embedding, self.decoder),
      },
      outputs=self.head.outputs,
      patterns=tuple(self.decoder.patterns),
      num_classes=self.head.num_classes,
    )

  def _check_embeddings(self) -> None:
    if self.source_embedding is not None and self.target_embedding is not None:
      raise UserError(
        'EncoderDecoder.source_embedding and target_embedding are both set, so that EncoderDecoder.embedding embeds '
        'nothing: set EncoderDecoder.embedding to that of the target, and leave out target_embedding'
      )
    if self.output_embedding.num_extra:
      raise UserError(
        f'EncoderDecoder: @{type(self.output_embedding).__name__} prepends tokens to the target, which a decoder '
        'cannot generate: use it as EncoderDecoder.source_embedding'
      )

  @property
  def sides(self) -> dict[str, ModelSide]:
    """The encoder and the decoder by name."""
    return {
      'encoder': ModelSide(self.encoder, self.source_embedder),
      'decoder': ModelSide(self.decoder, self.output_embedding),
    }

  @property
  def source_embedder(self) -> Embedder:
    """The embedder of the source."""
    return self.embedding if self.source_embedding is None else self.source_embedding

  @property
  def output_embedding(self):
    return self.embedding if self.target_embedding is None else self.target_embedding

  def hidden(
    self,
    source: Shaped[Array, 'batch *source'],
    target: Int[Array, 'batch length'],
    *,
    source_tokens: Tokens | None = None,
    target_tokens: Tokens | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Returns hidden vectors [batch, length, d_model] of the target.

    Args:
      source: token ids of the source, or other inputs of its embedder.
      target: token ids of the decoder's input, already shifted.
      source_tokens: metadata of the source, which its embedder gets; None: unpadded rows at positions 0, 1, ....
      target_tokens: the same of the target.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
      record: names of the intermediate arrays to return.
    """
    of_source, of_target = self._recorded_by_bodies(record)
    encoded, memory = self._encode(source, source_tokens, named_key(key, 'encoder'), of_source)
    embedded, tokens = self.output_embedding(target, target_tokens)
    decoder_key = named_key(key, 'decoder')
    out = self.decoder(embedded, memory, tokens=tokens, key=decoder_key, record=of_target)
    recorded = recorded_by({'encoder': encoded, 'decoder': out})
    return Output(out.x, None, encoded.aux + out.aux, recorded, out.tokens)

  def _recorded_by_bodies(self, record: frozenset[str]) -> list[frozenset[str]]:
    """Returns the names of the arrays that the encoder records, and of the arrays that the decoder records.

    Raises:
      UserError: neither records an array.
    """
    names = [body.recordable for body in (self.encoder, self.decoder)]
    own = [record if known is None else record & known for known in names]
    if unknown := record.difference(*own):
      listed = ', '.join(sorted(unknown))
      raise UserError(f'neither the encoder nor the decoder records {listed}')
    return own

  def _encode(self, source, tokens, key=None, record=frozenset()) -> tuple[Output, SourceSequence]:
    embedded, tokens = self.source_embedder(source, tokens)
    needed = self.decoder.reads_of_source
    encoded = self.encoder(embedded, tokens=tokens, key=key, record=record | needed)
    source = SourceSequence(
      encoded.x,
      tokens if encoded.tokens is None else encoded.tokens,
      self.source_encoding,
      encoded.inputs,
      self.source_pattern,
      {name: by_layer(encoded.recorded, name) for name in needed},
    )
    requested = {
      path: array
      for path, array in encoded.recorded.items()
      if path.rpartition('.')[2] not in needed - record
    }
    return dataclasses.replace(encoded, recorded=requested), source

  def __call__(
    self,
    source: Shaped[Array, 'batch *source'],
    target: Int[Array, 'batch length'],
    **settings: Any,
  ) -> Output:
    """Returns logits [batch, length, vocab]; see `hidden` for the arguments."""
    out = self.hidden(source, target, **settings)
    logits = constrain(self.logits(out.x), 'batch', 'length', 'vocab')
    return Output(logits, None, out.aux, out.recorded)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    source: Shaped[Array, 'batch *source'],
    source_tokens: Tokens | None = None,
    dtype: DTypeLike = jnp.float32,
  ) -> BodyCache:
    """Encodes `source` and returns a decoder cache for `num_slots` tokens with its keys and values."""
    _, memory = self._encode(source, source_tokens)
    return self.decoder.init_cache(batch, num_slots, dtype, memory)

  def unstacked(self, cache: BodyCache) -> tuple['EncoderDecoder', BodyCache]:
    decoder, cache = self.decoder.unstacked(cache)
    return replace_parts(self, decoder=decoder), cache

  def _continued(self, ids, tokens, cache):
    embedded, tokens = self.output_embedding(ids, tokens)
    return self.decoder(embedded, None, tokens=tokens, cache=cache)
