"""The encoder-decoder: packing, padding and cached decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  AddressPositions,
  Causal,
  Full,
  MultiHeadAttention,
  Sinusoidal,
  T5Bias,
  TokenEmbedding,
  Tokens,
)
from t2x.models import Decoder, Encoder


def model(make, encoding=Sinusoidal, **settings):
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  stack = make.stack([make.block(cross=cross)])
  factory = make.encoder_decoder(
    functools.partial(Encoder, stack=make.stack(), encoding=encoding),
    functools.partial(Decoder, stack=stack, encoding=encoding),
  )
  return make.built(functools.partial(factory, **settings))


def test_packed_pairs_equal_single_pairs(make):
  network = model(make, functools.partial(T5Bias, num_heads=4, bidirectional=True))
  source, target = make.ids((1, 8)), make.ids((1, 6), seed=1)
  sources = Tokens(jnp.array([[0, 1, 2, 0, 1, 2, 0, 0]]), jnp.array([[1, 1, 1, 2, 2, 2, 3, 0]]))
  targets = Tokens(jnp.array([[0, 1, 0, 1, 0, 0]]), jnp.array([[1, 1, 2, 2, 3, 0]]))
  run = jax.jit(network)
  out = run(source, target, source_tokens=sources, target_tokens=targets).x
  separate = run(source[0, :6].reshape(2, 3), target[0, :4].reshape(2, 2)).x
  np.testing.assert_allclose(out[0, :4].reshape(separate.shape), separate, atol=5e-5)


def test_a_decoder_without_cross_attention_refuses_the_source(make):
  factory = make.encoder_decoder(
    functools.partial(Encoder, stack=make.stack()), functools.partial(Decoder, stack=make.stack())
  )
  network, source = make.built(factory), make.ids((2, 7))
  with pytest.raises(UserError, match='source would be ignored'):
    network(source, make.ids((2, 5)))
  with pytest.raises(UserError, match='source would be ignored'):
    network.init_cache(2, 5, source)


def test_the_source_reaches_the_blocks_that_have_cross_attention_only(make):
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  mixed = make.stack([make.block(), make.block(cross=cross)], num_layers=2)
  factory = make.encoder_decoder(
    functools.partial(Encoder, stack=make.stack()), functools.partial(Decoder, stack=mixed)
  )
  network, source, target = make.built(factory), make.ids((2, 7)), make.ids((2, 5), seed=1)
  run = jax.jit(network)
  full = run(source, target).x
  cache = network.init_cache(2, 5, source)
  np.testing.assert_allclose(network.decode(target, Tokens.row(5), cache)[0], full, atol=5e-5)
  other = run(source.at[0, 0].add(1), target).x
  assert jnp.abs(full - other)[0].max() > 1e-3


def test_cached_decoding_equals_the_full_forward(make):
  network = model(make)
  source, target = make.ids((2, 7)), make.ids((2, 5), seed=1)
  segments = (jnp.arange(7)[None] < jnp.array([[7], [4]])).astype(jnp.int32)
  known = Tokens.row(7, segments=segments)
  ones = Tokens.row(5, segments=jnp.ones((2, 5), jnp.int32))
  full = network(source, target, source_tokens=known, target_tokens=ones).x
  cache, decode = network.init_cache(2, 5, source, known), jax.jit(network.decode)
  for i in range(5):
    positions = jnp.full((2, 1), i)
    tokens = Tokens(positions, jnp.ones_like(positions))
    logits, cache = decode(target[:, i : i + 1], tokens, cache)
    np.testing.assert_allclose(logits[:, 0], full[:, i], atol=5e-5)


ADDRESSED = {
  'encoding': functools.partial(AddressPositions, positions=Sinusoidal),
  'source_encoding': AddressPositions,
}


@pytest.mark.parametrize(
  'settings', [ADDRESSED, {'source_pattern': Causal()}], ids=['keys', 'pattern']
)
def test_what_relates_the_target_to_the_source_acts_and_is_decoded(make, settings):
  network = model(make, **settings)
  source, target = make.ids((2, 7)), make.ids((2, 5), seed=1)
  full = network(source, target).x
  cache, decode = network.init_cache(2, 5, source), jax.jit(network.decode)
  for i in range(5):
    tokens = Tokens(jnp.full((2, 1), i))
    logits, cache = decode(target[:, i : i + 1], tokens, cache)
    np.testing.assert_allclose(logits[:, 0], full[:, i], atol=5e-5)
  network.source_encoding, network.source_pattern = None, Full()
  assert jnp.abs(network(source, target).x - full).max() > 1e-3


def test_an_encoding_between_the_sequences_that_only_adds_vectors_to_tokens_is_refused(make):
  with pytest.raises(UserError, match='source_encoding = @Sinusoidal adds vectors to tokens only'):
    model(make, source_encoding=Sinusoidal)


def test_a_target_embedding_of_its_own_is_read_decoded_and_tied(make):
  larger = functools.partial(TokenEmbedding, vocab_size=make.vocab + 9)
  network = model(make, target_embedding=larger)
  source = make.ids((2, 7))
  target = jnp.array([[make.vocab + 8, 5, 6], [7, make.vocab + 3, 8]])
  full = network(source, target).x
  assert full.shape[-1] == network.spec.vocab_size == make.vocab + 9
  cache = network.init_cache(2, 3, source)
  decoded, _ = network.decode(target, Tokens.row(3), cache)
  np.testing.assert_allclose(decoded, full, atol=5e-5)
  # With the same tables on both sides it is the model that shares one.
  shared = model(make)
  network.embedding = shared.embedding
  network.target_embedding = nnx.clone(shared.embedding)
  network.encoder, network.decoder = shared.encoder, shared.decoder
  small = make.ids((2, 3), seed=1)
  np.testing.assert_array_equal(network(source, small).x, shared(source, small).x)


def test_padding_of_the_source_is_not_read(make):
  network = model(make)
  source, target = make.ids((1, 7)), make.ids((1, 5), seed=1)
  segments = (jnp.arange(7)[None] < 4).astype(jnp.int32)
  other = source.at[0, 4:].set(7)
  tokens = Tokens.row(7, segments=segments)
  run = jax.jit(network)
  a, b = (run(s, target, source_tokens=tokens).x for s in (source, other))
  np.testing.assert_array_equal(a, b)
  np.testing.assert_allclose(a, network(source[:, :4], target).x, atol=5e-5)
