"""What each word of a caption looks at in the picture."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from t2x.layers import (
  MLP,
  DoublyStochastic,
  MultiHeadAttention,
  PatchEmbedding,
  Plain,
  StateBeforeDecoder,
  TokenEmbedding,
)
from t2x.look import look_at_pair
from t2x.look.page import page_data
from t2x.look.pictures import write_pictures
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack, SublayerBlock

part = functools.partial
START, TARGET = 1, [6, 3, 2]


@pytest.fixture(scope='module')
def model():
  attention = part(MultiHeadAttention, num_heads=2)
  block = part(Block, mixer=attention, feed_forward=part(MLP, hidden_dim=8))
  decoder = part(DoublyStochastic, sublayer=StateBeforeDecoder)
  layer = part(SublayerBlock, sublayers={'mixer': decoder}, wiring=Plain)
  return EncoderDecoder(
    d_model=8,
    embedding=part(TokenEmbedding, vocab_size=9),
    source_embedding=part(PatchEmbedding, patch_size=2, channels=3, class_token=True),
    encoder=part(Encoder, stack=part(Stack, num_layers=1, blocks=[block])),
    decoder=part(Decoder, stack=part(Stack, num_layers=1, blocks=[layer])),
    rngs=nnx.Rngs(0),
  )


def test_each_word_has_its_weights_over_the_cells_of_the_picture(model, tmp_path):
  pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
  image = (pixels / 127.5 - 1).astype(np.float32)
  look = look_at_pair(model, None, image, TARGET, pixels=pixels, start=[START])
  words, patches = look.attention
  assert (words.name, patches.name) == ('cross-attention', 'encoder self-attention')
  assert words.queries == ('6', '3', '2') and words.grid == patches.grid
  assert words.keys[0] == 'class token' and words.keys[-1] == 'row 2, column 3'
  target = jnp.array([[START, *TARGET[:-1]]])
  out = model.hidden(jnp.asarray(image[None]), target, record=frozenset({'probabilities'}))
  expected = out.recorded['decoder.blocks.0.mixer.probabilities'][0]
  np.testing.assert_allclose(words.layers[0], expected[0], atol=1e-6)
  data = page_data(look, {})
  assert data['attention'][0]['grid'] == [2, 3, 1] and data['pixels']['shape'] == [3, 4, 6]

  paths = write_pictures(look, tmp_path)
  names = ['words_layer_1.png', 'cross_attention_layer_1.png', 'encoder_self_attention_layer_1.png']
  assert [path.name for path in paths][:3] == names
  width, height = Image.open(paths[0]).size
  assert width > 2.5 * height  # a panel per word


def test_a_picture_with_too_many_patches_is_refused(model):
  pixels = np.zeros((4, 6, 3), np.uint8)
  with pytest.raises(Exception, match='more than the maximum of 6'):
    look_at_pair(
      model, None, np.float32(pixels), TARGET, pixels=pixels, start=[START], max_tokens=6
    )
