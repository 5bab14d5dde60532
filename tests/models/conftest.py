"""Small models from parts, and helpers that all model tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
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
  """The module with parameters from N(0, scale), those of norms from N(1, scale): the default
  initialisation hides errors. Its constructor is traced and not compiled, which takes long."""
  rng = np.random.default_rng(seed)

  def drawn(path, leaf):
    mean = 1.0 if 'scale' in jax.tree_util.keystr(path[-2:]) else 0.0
    return jnp.asarray(rng.normal(mean, scale, leaf.shape), leaf.dtype)

  model = jax.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
  return jax.tree_util.tree_map_with_path(drawn, model)


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
