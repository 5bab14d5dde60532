"""Attention of decoders to the source, whichever sublayer records it."""

import functools

import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.layers import (
  FromSource,
  MultiHeadAttention,
  Plain,
  Recurrent,
  RecurrentDecoder,
  TokenEmbedding,
)
from t2x.look import look_at_pair
from t2x.models import Decoder, Encoder, EncoderDecoder, Stack, SublayerBlock

part = functools.partial
WIDTH, START = 8, 1
SOURCE, TARGET = np.array([3, 5, 4, 7, 2], np.int32), [6, 3, 2]


def look_at(**sublayers):
  """Attention of a model with a recurrent encoder and these sublayers in each decoder layer, and the model."""

  def stack(sublayers, num_layers):
    block = part(SublayerBlock, sublayers=sublayers, wiring=Plain)
    return part(Stack, num_layers=num_layers, blocks=[block])

  model = EncoderDecoder(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=9),
    encoder=part(Encoder, stack=stack({'mixer': Recurrent}, 1)),
    decoder=part(Decoder, stack=stack(sublayers, 2)),
    rngs=nnx.Rngs(0),
  )
  return look_at_pair(model, None, SOURCE, TARGET, start=[START]).attention, model


def test_the_attention_of_a_recurrent_decoder_is_cross_attention():
  (alignment,), model = look_at(mixer=RecurrentDecoder)
  assert alignment.name == 'cross-attention'
  assert (alignment.queries, alignment.keys) == (('6', '3', '2'), ('3', '5', '4', '7', '2'))
  target = jnp.array([[START, *TARGET[:-1]]])
  out = model.hidden(jnp.asarray(SOURCE[None]), target, record=frozenset({'probabilities'}))
  expected = out.recorded['decoder.blocks.0.mixer.probabilities'][:, 0]
  np.testing.assert_allclose(alignment.layers, expected, atol=1e-6)
  assert all(statistics.distance is None for statistics in alignment.statistics)


def test_each_sublayer_that_attends_to_the_source_has_its_own_cross_attention():
  heads = part(MultiHeadAttention, num_heads=2)
  memory = part(FromSource, sublayer=heads)
  attention, _ = look_at(first=memory, mixer=heads, second=memory)
  shapes = {one.name: [layer.shape for layer in one.layers] for one in attention}
  assert shapes == {
    'cross-attention (first)': [(2, 3, 5)] * 2,
    'cross-attention (second)': [(2, 3, 5)] * 2,
    'decoder self-attention': [(2, 3, 3)] * 2,
  }
  assert [one.is_cross for one in attention] == [True, True, False]
