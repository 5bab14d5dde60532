"""Encoder-decoders whose source is embedded by any embedder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.domains.speech import AudioStem
from t2x.layers import MultiHeadAttention, PatchEmbedding, TokenEmbedding, Tokens
from t2x.models import Decoder, Encoder, EncoderDecoder, GlobalTokens, ModelSpec

part = functools.partial
IMAGES = jax.random.normal(jax.random.key(0), (2, 4, 6, 1))


def build(make, **embeddings):
  cross = part(MultiHeadAttention, num_heads=4)
  embeddings = {'embedding': part(TokenEmbedding, vocab_size=make.vocab)} | embeddings
  return part(
    EncoderDecoder,
    d_model=make.width,
    **embeddings,
    encoder=part(Encoder, stack=make.stack()),
    decoder=part(Decoder, stack=make.stack([make.block(cross=cross)])),
  )


def test_an_image_as_source_is_an_input_of_the_model_and_decodes_as_the_full_forward(make):
  patches = part(PatchEmbedding, patch_size=2, channels=1)
  model = build(make, source_embedding=patches)(rngs=nnx.Rngs(0))
  assert model.spec.kinds == {'source': 'image', 'target': 'ids'}
  assert model.spec.inputs['source'].shape == (None, None, 1)
  assert (model.spec.vocab_size, model.embedding.vocab_size) == (make.vocab, make.vocab)
  target = make.ids((2, 4), seed=1)
  full = jax.jit(lambda m: m(IMAGES, target).x)(model)
  cache = model.init_cache(2, 4, IMAGES)
  decode = jax.jit(lambda m, *rest: m.decode(*rest))
  for i in range(4):
    positions = jnp.full((2, 1), i)
    tokens = Tokens(positions, jnp.ones_like(positions))
    logits, cache = decode(model, target[:, i : i + 1], tokens, cache)
    np.testing.assert_allclose(logits[:, 0], full[:, i], atol=5e-5)
  assert np.abs(full - model(IMAGES + 1, target).x).max() > 1e-3


def test_the_decoder_reads_the_shortened_segments_of_a_strided_stem(make):
  stem = part(AudioStem, num_features=3)
  model = build(make, source_embedding=stem)(rngs=nnx.Rngs(0))
  frames, target = jax.random.normal(jax.random.key(0), (1, 10, 3)), make.ids((1, 3), seed=1)
  segments = (jnp.arange(10)[None] < 5).astype(jnp.int32)
  tokens = Tokens.row(10, segments=segments, right_padded=True)
  padded = model(frames, target, source_tokens=tokens).x
  np.testing.assert_allclose(padded, model(frames[:, :5], target).x, atol=5e-5)


def test_a_source_may_have_global_tokens_and_a_target_may_not(make):
  extra = part(GlobalTokens, n=2, embedding=part(TokenEmbedding, vocab_size=make.vocab))
  model = build(make, source_embedding=extra)(rngs=nnx.Rngs(0))
  source, target = make.ids((2, 5)), make.ids((2, 3), seed=1)
  encoded, memory = model._encode(source, None)
  assert encoded.x.shape[1] == memory.tokens.positions.shape[1] == 7
  assert model(source, target).x.shape == (2, 3, make.vocab)
  for embeddings in ({'embedding': extra}, {'target_embedding': extra}):
    with pytest.raises(UserError, match='@GlobalTokens prepends tokens to the target'):
      build(make, **embeddings)(rngs=nnx.Rngs(0))


def test_an_embedding_that_would_embed_nothing_is_refused(make):
  own = part(TokenEmbedding, vocab_size=make.vocab)
  settings = {'source_embedding': part(PatchEmbedding, patch_size=2), 'target_embedding': own}
  with pytest.raises(UserError, match='embeds nothing: set EncoderDecoder'):
    build(make, **settings)(rngs=nnx.Rngs(0))


def test_phrases_in_place_of_named_inputs_say_what_to_write():
  written = r"write \{'source': Input\('ids'\), 'target': Input\('ids'\)\}"
  with pytest.raises(UserError, match=f"'a source and a target': .*{written}"):
    ModelSpec(inputs='a source and a target', outputs=frozenset(), patterns=())
