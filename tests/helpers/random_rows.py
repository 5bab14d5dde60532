"""Tiny models with everything that draws random numbers in a train step, and their batches."""

import functools

import jax.numpy as jnp
import numpy as np
from applying import moved
from flax import nnx

from t2x.data import Bytes, FullRows, TextFiles
from t2x.layers import (
  MLP,
  Blockwise,
  DynamicConvolution,
  GatedMLP,
  HyperConnections,
  LightweightConvolution,
  Linformer,
  LSHAttention,
  MemoryCompressedAttention,
  MultiHeadAttention,
  PatchEmbedding,
  PreNorm,
  RoutingAttention,
  SinkhornAttention,
  SinusoidalGrid,
  SwitchFeedForward,
  TokenEmbedding,
)
from t2x.models import (
  Block,
  Decoder,
  Encoder,
  LanguageModel,
  ParallelBlock,
  PooledClassifier,
  ReversibleStack,
  Segments,
  Stack,
  SublayerBlock,
  VisionTransformer,
)
from t2x.samples import Digits
from t2x.tasks import CausalLM, ImageClassification, MixUp

part = functools.partial
WIDTH, LENGTH, ROWS = 8, 8, 8
RATE = {'dropout_rate': 0.2}
WIRING = part(PreNorm, **RATE)
ATTENTION = part(MultiHeadAttention, num_heads=2, **RATE)
FEED_FORWARD = part(MLP, hidden_dim=16, **RATE)
PARALLEL = part(ParallelBlock, mixer=ATTENTION, feed_forward=FEED_FORWARD, **RATE)


def sublayers(**parts):
  return part(SublayerBlock, sublayers=parts, wiring=WIRING)


def language_model(stack):
  task = CausalLM(
    source=TextFiles(train='none'), tokenizer=Bytes(), length=LENGTH, packing=FullRows
  )
  body = part(Decoder, stack=stack, input_dropout=0.2, final_dropout=0.2)
  embedding = part(TokenEmbedding, vocab_size=264)
  model = LanguageModel(d_model=WIDTH, embedding=embedding, body=body, rngs=nnx.Rngs(0))
  return task, moved(model, 0.3, 0)


def mixers():
  block = sublayers(
    dense=ATTENTION,
    tiles=part(ATTENTION, kernel=Blockwise(4, 4)),
    light=part(LightweightConvolution, num_heads=2, kernel_size=3, **RATE),
    dynamic=part(DynamicConvolution, num_heads=2, kernel_size=3, **RATE),
    hashed=part(LSHAttention, num_heads=2, num_buckets=2, chunk=4, **RATE),
    routed=part(RoutingAttention, num_heads=2, num_clusters=2, window=3, **RATE),
    sorted=part(SinkhornAttention, num_heads=2, block=4, **RATE),
    compressed=part(MemoryCompressedAttention, num_heads=2, **RATE),
    gated=part(GatedMLP, hidden_dim=16, **RATE),
    experts=part(SwitchFeedForward, num_experts=2, hidden_dim=16, **RATE),
  )
  return language_model(part(Stack, num_layers=2, blocks=[block], stochastic_depth=0.3))


def streams():
  block = part(
    Block, mixer=ATTENTION, feed_forward=FEED_FORWARD, wiring=part(HyperConnections, **RATE)
  )
  return language_model(part(Stack, num_layers=2, blocks=[block], stochastic_depth=0.3))


def reversible():
  block = part(Block, mixer=ATTENTION, feed_forward=FEED_FORWARD, wiring=WIRING)
  return language_model(part(ReversibleStack, num_layers=2, blocks=[block], stochastic_depth=0.3))


def recurrent():
  block = part(Block, mixer=ATTENTION, feed_forward=FEED_FORWARD, wiring=WIRING)
  stack = part(Stack, num_layers=2, blocks=[block], remat='full', stochastic_depth=0.3)
  return language_model(part(Segments, stack=stack, length=4, memory=4))


def images():
  block = sublayers(
    projected=part(Linformer, num_heads=2, max_length=5, projected_length=3, **RATE),
    clusters=part(RoutingAttention, num_heads=2, num_clusters=2, window=3, **RATE),
    feed_forward=FEED_FORWARD,
  )
  stack = part(Stack, num_layers=2, blocks=[block, PARALLEL], stochastic_depth=0.3)
  model = VisionTransformer(
    d_model=WIDTH,
    embedding=part(PatchEmbedding, patch_size=2, channels=1),
    positions=part(SinusoidalGrid, num_extra=1),
    body=part(Encoder, stack=stack, final_dropout=0.2),
    input_dropout=0.2,
    head=part(PooledClassifier, num_classes=7, input_dropout=0.2, **RATE),
    rngs=nnx.Rngs(0),
  )
  settings = {'image_shape': (4, 4, 1), 'num_classes': 7, 'label_smoothing': 0.1}
  return ImageClassification(source=Digits(), mixing=MixUp(alpha=1.0), **settings), moved(
    model, 0.3, 0
  )


EXPERIMENTS = {
  'mixers': mixers,
  'several streams': streams,
  'a reversible stack': reversible,
  'segments': recurrent,
  'images with MixUp': images,
}


def batch_of_rows(task):
  """Equal rows of text, so that only what is drawn differs between them; different images, for MixUp."""
  rng = np.random.default_rng(1)
  if isinstance(task, ImageClassification):
    return {
      'image': jnp.asarray(rng.normal(size=(ROWS, 4, 4, 1)), jnp.float32),
      'label': jnp.asarray(rng.integers(0, 7, ROWS), jnp.int32),
      'weight': jnp.asarray(np.arange(ROWS) % 3 > 0, jnp.float32),
    }
  rows = {
    'tokens': rng.integers(5, 261, LENGTH),
    'segments': np.ones(LENGTH),
    'positions': np.arange(LENGTH),
  }
  return {name: jnp.asarray(np.tile(row, (ROWS, 1)), jnp.int32) for name, row in rows.items()}
