"""Adding a part to a model changes neither the initial values nor the dropout masks of the others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  Call,
  Causal,
  LayerNorm,
  MultiHeadAttention,
  PatchEmbedding,
  PreNorm,
  ReZero,
  SinusoidalGrid,
  SourceSequence,
  TokenEmbedding,
  Tokens,
  initialized,
)
from t2x.layers.arrays import named_leaves
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  LMHead,
  MaskedLMHead,
  PooledClassifier,
  Stack,
  VisionTransformer,
  mean_tokens,
)

part = functools.partial
KEY = jax.random.key(11)


def bits(key, shape, dtype):
  """The bits of the key, over and over: what an initializer makes its numbers of."""
  return jnp.resize(jax.random.key_data(key) >> 8, shape).astype(dtype)


def block(rate=0.0, bias=False, wiring=PreNorm, **settings):
  heads = {'num_heads': 2, 'use_bias': bias, 'out_bias': bias, 'kernel_init': bits}
  return part(
    Block,
    mixer=part(MultiHeadAttention, **heads, **settings.pop('mixer', {})),
    feed_forward=part(MLP, hidden_dim=24, use_bias=bias, dropout_rate=rate, kernel_init=bits),
    wiring=part(wiring, dropout_rate=rate),
    **settings,
  )


def layers(num_layers=2, blocks=None, **settings):
  return part(Stack, num_layers=num_layers, blocks=blocks or [block()], **settings)


CROSS = {'cross': part(MultiHeadAttention, num_heads=2, kernel_init=bits)}


def language_model(make, layers=layers(), **settings):
  embedding = part(TokenEmbedding, vocab_size=make.vocab, init=bits)
  return part(make.language_model(layers=layers), **({'embedding': embedding} | settings))


def seq2seq(make, **encoder):
  decoder = layers(blocks=[block(**CROSS)])
  return make.encoder_decoder(part(Encoder, stack=layers(**encoder)), part(Decoder, stack=decoder))


def vision(make, **settings):
  defaults = {
    'embedding': part(PatchEmbedding, patch_size=2, channels=1, class_token=False, init=bits),
    'positions': part(SinusoidalGrid, num_extra=0),
    'body': part(Encoder, stack=layers()),
    'pool': mean_tokens,
    'head': part(Classifier, num_classes=5, init=bits),
  }
  return part(VisionTransformer, d_model=make.width, **(defaults | settings))


def values(factory):
  """The initial values by name."""
  return {name: np.asarray(leaf) for name, leaf in named_leaves(initialized(factory, KEY))}


# name -> the builder of the smaller model and of the larger one.
ADDITIONS = {
  'biases': lambda make: (
    language_model(make),
    language_model(make, layers(blocks=[block(bias=True)])),
  ),
  'norms of queries and keys': lambda make: (
    language_model(make),
    language_model(make, layers(blocks=[block(mixer={'qk_norm': LayerNorm})])),
  ),
  'scalars in the wiring': lambda make: (
    language_model(make),
    language_model(make, layers(blocks=[block(wiring=part(ReZero, norm=LayerNorm))])),
  ),
  'layers at the end': lambda make: (language_model(make), language_model(make, layers(5))),
  'groups at the end': lambda make: (
    language_model(make, layers(4, num_groups=2)),
    language_model(make, layers(4, num_groups=4)),
  ),
  'repeats of two blocks': lambda make: (
    language_model(make, layers(4, [block(), block(bias=True)])),
    language_model(make, layers(6, [block(), block(bias=True)])),
  ),
  'token types': lambda make: (
    language_model(make),
    language_model(
      make, embedding=part(TokenEmbedding, vocab_size=make.vocab, num_types=2, init=bits)
    ),
  ),
  'another head': lambda make: (
    language_model(make),
    language_model(make, head=part(LMHead, init=bits)),
  ),
  'a head with parts': lambda make: (
    language_model(make),
    language_model(make, head=part(MaskedLMHead, init=bits)),
  ),
  'cross-attention': lambda make: (
    language_model(make),
    language_model(make, layers(blocks=[block(**CROSS)])),
  ),
  'layers of the encoder': lambda make: (seq2seq(make), seq2seq(make, num_layers=3)),
  'a class token': lambda make: (
    vision(make),
    vision(
      make,
      embedding=part(PatchEmbedding, patch_size=2, channels=1, init=bits),
      positions=part(SinusoidalGrid, num_extra=1),
    ),
  ),
  'a pooler': lambda make: (
    vision(make),
    vision(make, head=part(PooledClassifier, num_classes=5, init=bits)),
  ),
}


@pytest.mark.parametrize('name', ADDITIONS)
def test_an_addition_leaves_all_other_initial_values(make, name):
  small, large = map(values, ADDITIONS[name](make))
  assert set(small) <= set(large)
  assert sum(leaf.size for leaf in small.values()) < sum(leaf.size for leaf in large.values())
  for path, value in small.items():
    # Further layers are further rows.
    np.testing.assert_array_equal(large[path][: len(value)], value, err_msg=path)


def test_no_two_parameters_start_alike(make):
  found = values(seq2seq(make, num_layers=3))
  kernels = [found[name] for name in found if name.endswith('kernel')]
  keys = [tuple(layer.ravel()[:2]) for kernel in kernels for layer in kernel]
  # Of each layer: four projections of each attention and two of the feed-forward layer.
  assert len(set(keys)) == len(keys) == 3 * 6 + 2 * 10


def masks(monkeypatch, factory, call):
  """(shape, rate, key) of each dropout mask of a forward pass; a mask is a function of these."""
  drawn = []
  shapes = jax.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
  model = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)

  def bernoulli(key, p, shape):
    drawn.append((shape, round(float(p), 6), tuple(jax.random.key_data(key).tolist())))
    return jnp.ones(shape, bool)

  with monkeypatch.context() as patched, jax.disable_jit():
    patched.setattr(jax.random, 'bernoulli', bernoulli)
    call(model, KEY)
  return drawn


def dropping(mixer=0.0, num_layers=2, **settings):
  """A stack with dropout in its feed-forward layers and its wiring, in attention on request."""
  blocks = [block(rate=0.5, mixer={'dropout_rate': mixer})]
  return layers(num_layers, blocks, **settings)


def on_ids(model, key):
  model(jnp.ones((2, 3), jnp.int32), key=key)


def on_images(model, key):
  model(jnp.ones((2, 4, 4, 1)), key=key)


def on_vectors(block, key):
  x = jnp.ones((2, 3, 16))
  source = SourceSequence(x, Tokens.row(3)) if 'source' in block.reads else None
  block(x, Call(Tokens.row(3), Causal(), source=source, key=key))


def causal(make, stack, **body):
  return part(make.language_model(body=part(Decoder, **body), layers=stack))


def changed(**stack):
  """Two decoders whose stacks differ in these settings."""
  return lambda make: (causal(make, dropping()), causal(make, dropping(**stack)), on_ids)


DROPOUTS = {
  'input and final dropout': lambda make: (
    causal(make, dropping()),
    causal(make, dropping(), input_dropout=0.1, final_dropout=0.2),
    on_ids,
  ),
  'stochastic depth': changed(stochastic_depth=0.3),
  'dropout in attention': changed(mixer=0.4),
  'layers at the end': changed(num_layers=3),
  'cross-attention': lambda make: (
    part(block(rate=0.5), make.width),
    part(
      block(rate=0.5, cross=part(MultiHeadAttention, num_heads=2, dropout_rate=0.4)), make.width
    ),
    on_vectors,
  ),
  'dropout around the body': lambda make: (
    vision(make, body=part(Encoder, stack=dropping())),
    vision(
      make,
      body=part(Encoder, stack=dropping()),
      input_dropout=0.1,
      head=part(Classifier, num_classes=5, dropout_rate=0.2),
    ),
    on_images,
  ),
  'a pooler': lambda make: (
    vision(make, head=part(Classifier, num_classes=5, dropout_rate=0.2)),
    vision(make, head=part(PooledClassifier, num_classes=5, dropout_rate=0.2, input_dropout=0.1)),
    on_images,
  ),
}


@pytest.mark.parametrize('name', DROPOUTS)
def test_an_addition_leaves_all_other_dropout_masks(make, monkeypatch, name):
  *models, call = DROPOUTS[name](make)
  small, large = (masks(monkeypatch, model, call) for model in models)
  assert 0 < len(small) < len(large)
  assert set(small) <= set(large)


def test_no_two_dropout_masks_have_one_key(make, monkeypatch):
  def body(kind, **attention):
    blocks = [block(rate=0.5, mixer={'dropout_rate': 0.4}, **attention)]
    stack = layers(4, blocks * 2, stochastic_depth=0.3)
    return part(kind, stack=stack, input_dropout=0.1, final_dropout=0.2)

  cross = part(MultiHeadAttention, num_heads=2, dropout_rate=0.4)
  model = make.encoder_decoder(body(Encoder), body(Decoder, cross=cross))
  ids = jnp.ones((2, 3), jnp.int32)
  drawn = masks(monkeypatch, model, lambda model, key: model(ids, ids, key=key))
  # Attention, feed-forward, for each wiring a mask and a draw of stochastic depth; two masks around each body.
  assert len(drawn) == 4 * (2 + 2 * 2) + 4 * (3 + 2 * 3) + 2 * 2
  assert len({key for *_, key in drawn}) == len(drawn)
