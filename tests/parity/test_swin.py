"""Swin Transformer against transformers: windows that do not divide the map, shifts, biases, merging."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  GridBias,
  LayerNorm,
  MultiHeadAttention,
  NoPositions,
  PatchEmbedding,
  PatchMerging,
  PreNorm,
  Windowed,
  gelu_exact,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Classifier, Encoder, Stack, Stages, VisionTransformer, mean_tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, HIDDEN, SIZE, CLASSES = 8, 2, 2, 4, 5
LABELS = np.array([4, 1])
part = functools.partial
norm = part(LayerNorm, epsilon=1e-5)


def stage(heads, depth):
  """Blocks of which every second is shifted."""
  blocks = [
    part(
      Block,
      mixer=part(Windowed, mixer=part(MultiHeadAttention, num_heads=heads), size=SIZE, shift=shift),
      feed_forward=part(MLP, hidden_dim=HIDDEN * WIDTH * heads // HEADS, activation=gelu_exact),
      wiring=part(PreNorm, norm=norm),
      encoding=part(GridBias, num_heads=heads, height=SIZE, width=SIZE),
    )
    for shift in (0, SIZE // 2)
  ]
  return part(Stack, num_layers=depth, blocks=blocks)


def ours(*depths):
  stages = [stage(HEADS * 2**i, depth) for i, depth in enumerate(depths)]
  stack = part(Stages, stages=stages, merge=part(PatchMerging, norm=norm))
  return VisionTransformer(
    d_model=WIDTH,
    embedding=part(PatchEmbedding, patch_size=2, channels=1, class_token=False),
    positions=NoPositions,
    body=part(Encoder, stack=stack, input_norm=norm, final_norm=norm),
    pool=mean_tokens,
    head=part(Classifier, num_classes=CLASSES),
    rngs=nnx.Rngs(0),
  )


def theirs(*depths):
  """Every parameter perturbed by N(0, 0.3)."""
  config = transformers.SwinConfig(
    image_size=24,
    patch_size=2,
    num_channels=1,
    embed_dim=WIDTH,
    depths=depths,
    num_heads=[HEADS * 2**i for i in range(len(depths))],
    window_size=SIZE,
    mlp_ratio=HIDDEN,
    num_labels=CLASSES,
  )
  torch.manual_seed(0)
  # In float64: the errors of float32 are ours only.
  model = transformers.SwinForImageClassification(config).eval().double()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(torch.randn(parameter.shape) * 0.3)
  return model


def arrays(tensors, depths):
  """The values, or gradients, of their parameters by the names of ours."""
  get = dict(tensors)

  def linear(name, their):
    return {
      f'{name}.kernel': get.pop(f'{their}.weight').T,
      f'{name}.bias': get.pop(f'{their}.bias'),
    }

  def norm(name, their):
    return {f'{name}.scale': get.pop(f'{their}.weight'), f'{name}.bias': get.pop(f'{their}.bias')}

  def layer(their, heads):
    attention, split = {}, (-1, heads, WIDTH // HEADS)
    for ours, name in zip(('q', 'k', 'v'), 'qkv', strict=True):
      for kind, value in linear(ours, f'{their}.attention.{name}_proj').items():
        attention[f'mixer.mixer.{kind}'] = value.reshape(split if 'kernel' in kind else split[1:])
    out = linear('mixer.mixer.out', f'{their}.attention.o_proj')
    out['mixer.mixer.out.kernel'] = out['mixer.mixer.out.kernel'].reshape(*split[1:], -1)
    bias = f'{their}.attention.relative_position_bias.relative_position_bias_table'
    return {
      **attention,
      **out,
      'encoding.table': get.pop(bias),
      **linear('feed_forward.up', f'{their}.mlp.fc1'),
      **linear('feed_forward.down', f'{their}.mlp.fc2'),
      **norm('mixer_wiring.norm', f'{their}.layernorm_before'),
      **norm('feed_forward_wiring.norm', f'{their}.layernorm_after'),
    }

  kernel = get.pop('swin.embeddings.patch_embeddings.projection.weight').transpose(2, 3, 1, 0)
  found = {
    'embedding.projection.kernel': kernel,
    'embedding.projection.bias': get.pop('swin.embeddings.patch_embeddings.projection.bias'),
    **norm('body.input_norm', 'swin.embeddings.norm'),
    **norm('body.final_norm', 'swin.layernorm'),
    **linear('head.out', 'classifier'),
  }
  for i, depth in enumerate(depths):
    theirs = f'swin.encoder.layers.{i}'
    if i:
      merge, before = f'body.stack.merges.{i - 1}', f'swin.encoder.layers.{i - 1}.downsample'
      found[f'{merge}.projection.kernel'] = get.pop(f'{before}.reduction.weight').T
      found |= norm(f'{merge}.norm', f'{before}.norm')
    layers = [layer(f'{theirs}.blocks.{n}', HEADS * 2**i) for n in range(depth)]
    for place in (0, 1):
      for name in layers[0]:
        stacked = np.stack([one[name] for one in layers[place::2]])
        found[f'body.stack.stages.{i}.blocks.{place}.{name}'] = stacked
  assert not get, list(get)
  return found


@pytest.mark.parametrize(
  ('depths', 'image'),
  [
    # Maps of 12 x 10 and 6 x 5 patches: zeros fill up the second and both sides.
    ((4, 2), (24, 20)),
    # A map of one window has no shift.
    ((2,), (8, 8)),
  ],
)
def test_logits_and_gradients_equal_swin_of_transformers(depths, image, compared):
  images = np.random.default_rng(0).normal(size=(2, *image, 1)).astype(np.float32)
  their = theirs(*depths)
  out = their(
    pixel_values=torch.tensor(images.transpose(0, 3, 1, 2)).double(), labels=torch.tensor(LABELS)
  )
  out.loss.backward()
  values = {name: p.detach().numpy() for name, p in their.named_parameters()}
  values = arrays(values, depths)
  model = jax.eval_shape(lambda: ours(*depths))
  names = [name for name, _ in named_leaves(model)]
  assert sorted(names) == sorted(values)
  leaves = [jnp.asarray(values[name], jnp.float32) for name in names]
  model = jax.tree.unflatten(jax.tree.structure(model), leaves)

  def loss(model):
    logits = model(jnp.asarray(images)).x
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean(), logits

  (_, logits), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(model)
  system = 'Swin', 'transformers SwinForImageClassification'
  compared(*system, logits, out.logits.detach().numpy())
  gradients = arrays({name: p.grad.numpy() for name, p in their.named_parameters()}, depths)
  largest = max(np.abs(g).max() for g in gradients.values())
  for name, slope in named_leaves(slopes):
    wanted = gradients[name]
    if name.endswith('.k.bias'):
      # It changes all scores of a query by the same number.
      assert max(np.abs(slope).max(), np.abs(wanted).max()) < 1e-6 * largest
    else:
      compared(*system, slope, wanted, atol=1e-5 * np.abs(wanted).max(), of='gradients')
