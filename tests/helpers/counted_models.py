"""Small models whose FLOPs are counted by hand."""

import functools

import jax
from flax import nnx

from t2x.data import Bytes, TextFiles
from t2x.layers import (
  MLP,
  LearnedGrid,
  LearnedPositions,
  MultiHeadAttention,
  PatchEmbedding,
  ShawPositions,
  TokenEmbedding,
)
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  EncoderDecoder,
  LanguageModel,
  Stack,
  TiedHead,
  VisionTransformer,
)
from t2x.tasks import (
  CausalLM,
)

TEXT = {'source': TextFiles(train='none'), 'tokenizer': Bytes()}
CAUSAL = CausalLM(**TEXT, length=32)
# Multiply-adds of the projections and the feed-forward part of a layer of width 16, hidden width 32.
FEED_FORWARD = 2 * 16 * 32
LAYER = 4 * 16 * 16 + FEED_FORWARD
# Scores of 32 keys and the sum of their values, for one token.
SCORES = 2 * 16 * 32
TABLE = 261 * 16

MLP_32 = functools.partial(MLP, hidden_dim=32)
LEARNED = functools.partial(LearnedPositions, max_length=64)
SHAW = functools.partial(ShawPositions, head_dim=8, max_distance=5)


def attention(**settings):
  return functools.partial(MultiHeadAttention, num_heads=2, **settings)


def stack(mixer=None, cross=None, **settings):
  block = functools.partial(Block, mixer=mixer or attention(), feed_forward=MLP_32, cross=cross)
  return functools.partial(Stack, **{'num_layers': 3, 'blocks': [block]} | settings)


def language_model(
  head=TiedHead,
  encoding=LEARNED,
  body=Decoder,
  embedding=None,
  mixer=None,
  pattern=None,
  **settings,
):
  own = {} if pattern is None else {'pattern': pattern}
  return jax.eval_shape(
    lambda: LanguageModel(
      d_model=16,
      embedding=embedding or functools.partial(TokenEmbedding, vocab_size=261, num_types=2),
      body=functools.partial(body, stack=stack(mixer, **settings), encoding=encoding, **own),
      head=head,
      rngs=nnx.Rngs(0),
    )
  )


def encoder_decoder(encoding=LEARNED, **settings):
  settings = {
    'd_model': 16,
    'embedding': functools.partial(TokenEmbedding, vocab_size=261),
    'encoder': functools.partial(Encoder, stack=stack(), encoding=encoding),
    'decoder': functools.partial(Decoder, stack=stack(cross=attention()), encoding=encoding),
  } | settings
  return jax.eval_shape(lambda: EncoderDecoder(**settings, rngs=nnx.Rngs(0)))


def vision_model():
  return jax.eval_shape(
    lambda: VisionTransformer(
      d_model=16,
      embedding=functools.partial(PatchEmbedding, patch_size=2, channels=1),
      positions=functools.partial(LearnedGrid, height=4, width=4),
      body=functools.partial(Encoder, stack=stack()),
      head=functools.partial(Classifier, num_classes=10),
      rngs=nnx.Rngs(0),
    )
  )
