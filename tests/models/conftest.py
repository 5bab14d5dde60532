"""Small models from parts, and helpers that all model tests share."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding
from t2x.models import Block, Decoder, EncoderDecoder, LanguageModel, Stack

VOCAB, WIDTH = 31, 16


def block(kernel=None, dropout_rate=0.0, **settings):
  attention = {'num_heads': 4, 'num_kv_heads': 2, 'dropout_rate': dropout_rate}
  if kernel is not None:
    attention['kernel'] = kernel
  mixer = functools.partial(MultiHeadAttention, **attention)
  feed_forward = functools.partial(MLP, hidden_dim=24)
  return functools.partial(Block, mixer=mixer, feed_forward=feed_forward, **settings)


def stack(blocks=None, num_layers=2, **settings):
  return functools.partial(Stack, num_layers=num_layers, blocks=blocks or [block()], **settings)


def built(factory, seed=0, scale=0.3):
  """The module with every parameter moved by N(0, scale): default initialisation hides errors."""
  model = jax.jit(lambda key: factory(rngs=nnx.Rngs(key)))(jax.random.key(seed))
  leaves, structure = jax.tree.flatten(model)
  keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
  moved = [
    leaf + scale * jax.random.normal(key, leaf.shape)
    for leaf, key in zip(leaves, keys, strict=True)
  ]
  return jax.tree.unflatten(structure, moved)


def language_model(body=Decoder, layers=None, **settings):
  return functools.partial(
    LanguageModel,
    d_model=WIDTH,
    embedding=functools.partial(TokenEmbedding, vocab_size=VOCAB),
    body=functools.partial(body, stack=layers or stack(), **settings),
  )


def encoder_decoder(encoder, decoder):
  return functools.partial(
    EncoderDecoder,
    d_model=WIDTH,
    embedding=functools.partial(TokenEmbedding, vocab_size=VOCAB),
    encoder=encoder,
    decoder=decoder,
  )


def ids(shape, seed=0):
  return jax.random.randint(jax.random.key(seed), shape, 5, VOCAB).astype(jnp.int32)


class Make:
  """What tests ask the fixture `make` for."""

  block, stack, built, ids = map(staticmethod, (block, stack, built, ids))
  language_model, encoder_decoder = map(staticmethod, (language_model, encoder_decoder))
  vocab, width = VOCAB, WIDTH


@pytest.fixture
def make():
  """Builders of small models."""
  return Make
