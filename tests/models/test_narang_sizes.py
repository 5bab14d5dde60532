"""Parameters of the mixers as Narang et al. 2021 (https://arxiv.org/abs/2102.11972, table 1) count them.

Their configurations leave the synthesizers' heads at 8 of 128 features and give the convolutions a
kernel for each channel and learned positions; the dynamic one has a narrower feed-forward layer.
"""

import functools

import jax
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  DenseScores,
  DynamicConvolution,
  FactorizedRandomScores,
  LearnedPositions,
  LightweightConvolution,
  MultiHeadAttention,
  Plus,
  PlusAlpha,
  RandomScores,
  Replace,
  Synthesizer,
  T5Bias,
  TokenEmbedding,
  relu,
)
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack

D_MODEL, LENGTH, LAYERS = 768, 512, 12
ATTENTION = functools.partial(MultiHeadAttention, num_heads=12, use_bias=False, out_bias=False)
# Between convolution and projection they have a dense layer more, which the paper has not.
DENSE_LAYERS = 2 * LAYERS * (D_MODEL + 1) * D_MODEL


def num_parameters(mixer, encoding, hidden_dim=3072):
  feed_forward = functools.partial(MLP, hidden_dim=hidden_dim, activation=relu)

  def body(kind, cross):
    block = functools.partial(Block, mixer=mixer, feed_forward=feed_forward, cross=cross)
    stack = functools.partial(Stack, num_layers=LAYERS, blocks=[block])
    return functools.partial(kind, stack=stack, encoding=encoding)

  model = jax.eval_shape(
    lambda: EncoderDecoder(
      d_model=D_MODEL,
      embedding=functools.partial(TokenEmbedding, vocab_size=32128),
      encoder=body(Encoder, None),
      decoder=body(Decoder, ATTENTION),
      rngs=nnx.Rngs(0),
    )
  )
  return sum(leaf.size for leaf in jax.tree.leaves(model))


@pytest.mark.parametrize(
  ('scores', 'mix', 'published'),
  [
    (DenseScores, Replace, 224),
    (DenseScores, Plus, 243),
    (DenseScores, PlusAlpha, 243),
    (FactorizedRandomScores, Replace, 207),
    (RandomScores, Replace, 254),
    (RandomScores, Plus, 292),
    (RandomScores, PlusAlpha, 292),
  ],
)
def test_synthesizers_have_the_published_size(scores, mix, published):
  mixer = functools.partial(
    Synthesizer,
    num_heads=8,
    head_dim=128,
    scores=functools.partial(scores, max_length=LENGTH),
    mix=mix,
    use_bias=False,
    out_bias=False,
  )
  size = num_parameters(mixer, functools.partial(T5Bias, num_heads=8))
  assert size // 10**6 == published


def test_convolutions_have_the_published_size_without_one_layer():
  encoding = functools.partial(LearnedPositions, max_length=LENGTH)
  light = functools.partial(LightweightConvolution, num_heads=D_MODEL)
  dynamic = functools.partial(DynamicConvolution, num_heads=D_MODEL)
  vanilla = num_parameters(ATTENTION, functools.partial(T5Bias, num_heads=12))
  assert vanilla // 10**6 == 223
  assert (num_parameters(light, encoding) + DENSE_LAYERS) // 10**6 == 224
  # The biases of the dynamic kernels and of the convolution, which the paper has not either.
  biases = 2 * LAYERS * (9 + 1) * D_MODEL
  assert (num_parameters(dynamic, encoding, 512) + DENSE_LAYERS + biases) // 10**6 == 257
