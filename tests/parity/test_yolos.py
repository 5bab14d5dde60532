"""YOLOS with its loss against transformers."""

import functools

import jax
import jax.numpy as jnp
import pytest
from detectors import CLASSES, QUERIES, check_detector, task
from flax import nnx

from t2x.domains.detection import YOLOS, BoxHead
from t2x.layers import (
  MLP,
  LayerNorm,
  LearnedGrid,
  MultiHeadAttention,
  PatchEmbedding,
  PreNorm,
  gelu_exact,
)
from t2x.models import Block, Encoder, Stack

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, LAYERS, HIDDEN, HEIGHT, SIDE, PATCH = 16, 2, 2, 24, 12, 8, 4
part = functools.partial


def ours():
  norm = part(LayerNorm, epsilon=1e-12)
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=HEADS),
    feed_forward=part(MLP, hidden_dim=HIDDEN, activation=gelu_exact),
    wiring=part(PreNorm, norm=norm),
  )
  stack = part(Stack, num_layers=LAYERS, blocks=[block])
  return YOLOS(
    d_model=WIDTH,
    num_queries=QUERIES,
    embedding=part(PatchEmbedding, patch_size=PATCH, num_registers=QUERIES),
    positions=part(LearnedGrid, height=HEIGHT // PATCH, width=SIDE // PATCH),
    body=part(Encoder, stack=stack, final_norm=norm),
    head=part(BoxHead, num_classes=CLASSES, class_layers=3),
    rngs=nnx.Rngs(0),
  )


def renamed(own):
  """Our parameters. A detection token is the sum of theirs and of its position vector."""
  embeddings = 'vit.embeddings'
  own.take('embedding.class_token', f'{embeddings}.cls_token', shape=(WIDTH,))
  table = own.left.pop(f'{embeddings}.position_embeddings')[0]
  tokens = own.left.pop(f'{embeddings}.detection_tokens')[0]
  own.found['positions.table'] = table[:-QUERIES]
  own.found['embedding.registers'] = tokens + table[-QUERIES:]
  own.convolution('embedding.projection', f'{embeddings}.patch_embeddings.projection')

  def layer(own, name, their):
    attention = f'{their}.attention'
    for short, long in {'q': 'query', 'k': 'key', 'v': 'value'}.items():
      own.linear(f'{name}.mixer.{short}', f'{attention}.attention.{long}', outputs=(HEADS, -1))
    own.linear(f'{name}.mixer.out', f'{attention}.output.dense', inputs=(HEADS, -1))
    own.norm(f'{name}.mixer_wiring.norm', f'{their}.layernorm_before')
    own.linear(f'{name}.feed_forward.up', f'{their}.intermediate.dense')
    own.linear(f'{name}.feed_forward.down', f'{their}.output.dense')
    own.norm(f'{name}.feed_forward_wiring.norm', f'{their}.layernorm_after')

  layers = [f'vit.encoder.layer.{n}' for n in range(LAYERS)]
  own.stacked('body.stack.blocks.0', layer, layers)
  own.norm('body.final_norm', 'vit.layernorm')
  for name, their in (('classes', 'class_labels_classifier'), ('boxes', 'bbox_predictor')):
    for i in range(3):
      own.linear(f'box_head.{name}.{i}', f'{their}.layers.{i}')


def test_outputs_matches_losses_and_gradients_equal_yolos_of_transformers(compared, perturbed):
  config = transformers.YolosConfig(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    image_size=[HEIGHT, SIDE],
    patch_size=PATCH,
    num_detection_tokens=QUERIES,
    num_labels=CLASSES,
    use_mid_position_embeddings=False,
  )
  theirs = perturbed(transformers.YolosForObjectDetection(config), 0.1)
  names = 'YOLOS', 'transformers YolosForObjectDetection'
  shapes = jax.eval_shape(ours)
  slopes = check_detector(
    compared, *names, torch, task(HEIGHT, SIDE), shapes, renamed, theirs, theirs
  )
  assert all(jnp.abs(slope).max() > 0 for name, slope in slopes.items() if 'key.bias' not in name)
