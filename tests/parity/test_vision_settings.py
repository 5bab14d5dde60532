"""Settings of vision transformers against transformers: outputs and all gradients."""

import functools
import operator

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from torch_arrays import linear, norm

from t2x.layers import (
  MLP,
  LayerNorm,
  LayerScale,
  LearnedGrid,
  MultiHeadAttention,
  PatchEmbedding,
  PreNorm,
  gelu,
  gelu_exact,
)
from t2x.models import AttentionPool, Block, Classifier, Encoder, Stack, VisionTransformer

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH = 24
part = functools.partial


IMAGES = np.random.default_rng(2).normal(size=(2, 8, 8, 3)).astype(np.float32)
VIT = {
  'hidden_size': WIDTH,
  'num_hidden_layers': 2,
  'num_attention_heads': 3,
  'image_size': 8,
  'patch_size': 4,
  'intermediate_size': 40,
}


def vision(epsilon, mixer, wiring, **settings):
  """A vision transformer of two layers for `IMAGES`."""
  norm = part(LayerNorm, epsilon=epsilon)
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=3, **mixer),
    feed_forward=part(
      MLP,
      hidden_dim=settings.pop('hidden_dim'),
      activation=settings.pop('activation', gelu_exact),
    ),
    wiring=part(wiring, norm=norm),
  )
  body = part(
    Encoder,
    stack=part(Stack, num_layers=2, blocks=[block]),
    final_norm=settings.pop('final_norm', norm),
  )
  return VisionTransformer(d_model=WIDTH, body=body, **settings, rngs=nnx.Rngs(0))


def encoder_arrays(layers, get, *, attention, out, norms, scales=()):
  """Parameters of the blocks, stacked.

  Args:
    layers: their layers.
    get: reads a parameter.
    attention: name of the attention in a layer.
    out: name of its output projection.
    norms: names of the norms before attention and MLP.
    scales: names of the factors of their branches.
  """
  branches = 'mixer', 'feed_forward'

  def of(layer):
    own = getattr(layer, attention)
    found = linear('mixer.out', getattr(own, out), get)
    for name in 'qkv':
      found |= linear(f'mixer.{name}', getattr(own, f'{name}_proj'), get)
    for name, theirs in (('up', 'fc1'), ('down', 'fc2')):
      found |= linear(f'feed_forward.{name}', getattr(layer.mlp, theirs), get)
    for name, before in zip(branches, norms, strict=True):
      found |= norm(f'{name}_wiring.norm', getattr(layer, before), get)
    for name, scale in zip(branches, scales, strict=False):
      found[f'{name}_wiring.gamma'] = get(operator.attrgetter(scale)(layer))
    return found

  found = [of(layer) for layer in layers]
  return {f'body.stack.blocks.0.{n}': np.stack([one[n] for one in found]) for n in found[0]}


def patches(projection, get):
  kernel = get(projection.weight).transpose(2, 3, 1, 0)
  return {'embedding.projection.kernel': kernel, 'embedding.projection.bias': get(projection.bias)}


def mean_patches(d_model, *, rngs):
  return lambda x, segments=None, key=None: x[:, 1:].mean(axis=1)


def test_keys_without_biases_and_a_norm_of_the_pooled_vector_equal_beit(equal):
  config = transformers.BeitConfig(
    **VIT,
    use_absolute_position_embeddings=True,
    use_mask_token=False,
    use_mean_pooling=True,
    layer_scale_init_value=0.5,
    num_labels=5,
    layer_norm_eps=1e-6,
  )
  theirs = transformers.BeitForImageClassification(config)
  ours = vision(
    1e-6,
    {'use_bias': ('q', 'v')},
    LayerScale,
    hidden_dim=40,
    final_norm=None,
    embedding=part(PatchEmbedding, patch_size=4),
    positions=part(LearnedGrid, height=2, width=2),
    pool=mean_patches,
    head=part(Classifier, num_classes=5, norm=part(LayerNorm, epsilon=1e-6)),
  )

  def arrays(get):
    beit = theirs.beit
    return {
      **encoder_arrays(
        beit.layers,
        get,
        attention='attention',
        out='o_proj',
        norms=('layernorm_before', 'layernorm_after'),
        scales=('lambda_1', 'lambda_2'),
      ),
      **patches(beit.embeddings.patch_embeddings.projection, get),
      'embedding.class_token': get(beit.embeddings.cls_token),
      'positions.table': get(beit.embeddings.position_embeddings),
      **norm('head.norm', beit.pooler.layernorm, get),
      **linear('head.out', theirs.classifier, get),
    }

  equal(
    None,
    'transformers BeitForImageClassification',
    theirs,
    ours,
    arrays,
    lambda m: m(torch.tensor(IMAGES.transpose(0, 3, 1, 2))).logits,
    lambda m: m(jnp.asarray(IMAGES)).x,
  )


def test_registers_equal_dinov2_with_registers(equal):
  config = transformers.Dinov2WithRegistersConfig(
    **{name: value for name, value in VIT.items() if name != 'intermediate_size'},
    mlp_ratio=2,
    num_register_tokens=3,
    layer_norm_eps=1e-6,
    layerscale_value=0.5,
  )
  theirs = transformers.Dinov2WithRegistersModel(config)
  ours = vision(
    1e-6,
    {},
    LayerScale,
    hidden_dim=2 * WIDTH,
    embedding=part(PatchEmbedding, patch_size=4, num_registers=3),
    positions=part(LearnedGrid, height=2, width=2),
    head=None,
  )

  def arrays(get):
    return {
      **encoder_arrays(
        theirs.encoder.layer,
        get,
        attention='attention',
        out='o_proj',
        norms=('norm1', 'norm2'),
        scales=('layer_scale1.lambda1', 'layer_scale2.lambda1'),
      ),
      **patches(theirs.embeddings.patch_embeddings.projection, get),
      'embedding.class_token': get(theirs.embeddings.cls_token),
      'embedding.registers': get(theirs.embeddings.register_tokens),
      'positions.table': get(theirs.embeddings.position_embeddings),
      **norm('body.final_norm', theirs.layernorm, get),
    }

  equal(
    'ViT with registers',
    'transformers Dinov2WithRegistersModel',
    theirs,
    ours,
    arrays,
    lambda m: m(torch.tensor(IMAGES.transpose(0, 3, 1, 2))).last_hidden_state,
    lambda m: m.hidden(jnp.asarray(IMAGES)).x,
  )


def test_attention_pooling_equals_siglip(equal):
  config = transformers.SiglipVisionConfig(**VIT, layer_norm_eps=1e-6)
  theirs = transformers.SiglipVisionModel(config)
  pool = part(
    AttentionPool,
    attention=part(MultiHeadAttention, num_heads=3),
    norm=part(LayerNorm, epsilon=1e-6),
    feed_forward=part(MLP, hidden_dim=40, activation=gelu),
  )
  ours = vision(
    1e-6,
    {},
    PreNorm,
    activation=gelu,
    hidden_dim=40,
    embedding=part(PatchEmbedding, patch_size=4, class_token=False),
    positions=part(LearnedGrid, height=2, width=2, num_extra=0),
    pool=pool,
    head=None,
  )

  def arrays(get):
    head = theirs.head
    found = {
      **encoder_arrays(
        theirs.encoder.layers,
        get,
        attention='self_attn',
        out='out_proj',
        norms=('layer_norm1', 'layer_norm2'),
      ),
      **patches(theirs.embeddings.patch_embedding, get),
      'positions.table': get(theirs.embeddings.position_embedding.weight),
      **norm('body.final_norm', theirs.post_layernorm, get),
      'pool.query': get(head.probe),
      **linear('pool.attention.out', head.attention.out_proj, get),
      **norm('pool.norm', head.layernorm, get),
      **linear('pool.feed_forward.up', head.mlp.fc1, get),
      **linear('pool.feed_forward.down', head.mlp.fc2, get),
    }
    weights = np.split(get(head.attention.in_proj_weight), 3)
    biases = np.split(get(head.attention.in_proj_bias), 3)
    for name, weight, bias in zip('qkv', weights, biases, strict=True):
      found |= {f'pool.attention.{name}.kernel': weight.T, f'pool.attention.{name}.bias': bias}
    return found

  equal(
    'attention pooling',
    'transformers SiglipVisionModel',
    theirs,
    ours,
    arrays,
    lambda m: m(torch.tensor(IMAGES.transpose(0, 3, 1, 2))).pooler_output,
    lambda m: m(jnp.asarray(IMAGES)).x,
  )
