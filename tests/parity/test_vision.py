"""Vision transformers against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

IMAGES = np.random.default_rng(0).normal(size=(2, 12, 8, 3)).astype(np.float32)
LABELS = np.array([4, 1])
THEIRS = IMAGES.transpose(0, 3, 1, 2)
VIT = {
  'hidden_size': 24,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'intermediate_size': 40,
  'image_size': (12, 8),
  'patch_size': 4,
}


def test_vit(agree, gradients):
  config = transformers.ViTConfig(**VIT, num_labels=5, qkv_bias=True)

  def theirs(model):
    return model(pixel_values=torch.tensor(THEIRS)).logits

  compiled = jax.jit(lambda model: model(jnp.asarray(IMAGES)).x)

  def ours(model):
    return np.asarray(compiled(model))

  def their_loss(model):
    return model(pixel_values=torch.tensor(THEIRS), labels=torch.tensor(LABELS)).loss

  def our_loss(model):
    logits = model(jnp.asarray(IMAGES)).x
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(LABELS)).mean()

  def make():
    return transformers.ViTForImageClassification(config)

  model, mine = agree('ViT', make, theirs, ours)
  gradients('ViT', model, mine, their_loss, our_loss, vanishing=r'key\.bias$')


def test_vit_without_classes(agree):
  config = transformers.ViTConfig(**VIT, qkv_bias=False, layer_norm_eps=1e-3)

  def theirs(model):
    hidden = model(pixel_values=torch.tensor(THEIRS)).last_hidden_state
    return hidden, hidden[:, 0]

  @jax.jit
  def compiled(model):
    return model.hidden(jnp.asarray(IMAGES)).x, model(jnp.asarray(IMAGES)).x

  def ours(model):
    return tuple(map(np.asarray, compiled(model)))

  def make():
    return transformers.ViTModel(config, add_pooling_layer=False)

  agree('ViT, no classes', make, theirs, ours, add_pooling_layer=False)


@pytest.mark.parametrize('name', ['DeiT', 'DeiT, one head'])
def test_deit(name, agree):
  """The logits are the mean of both heads, or those of the class token."""
  config = transformers.DeiTConfig(**VIT, num_labels=5, layer_norm_eps=1e-6)
  kind = '' if name.endswith('one head') else 'WithTeacher'
  compiled = jax.jit(lambda model: model(jnp.asarray(IMAGES)).x)
  agree(
    name,
    lambda: getattr(transformers, f'DeiTForImageClassification{kind}')(config),
    lambda model: model(pixel_values=torch.tensor(THEIRS)).logits,
    lambda model: np.asarray(compiled(model)),
  )


DINO = {
  'hidden_size': 24,
  'num_hidden_layers': 2,
  'num_attention_heads': 3,
  'patch_size': 4,
}
V2 = 'Dinov2', DINO | {'image_size': (8, 8)}
V3 = 'DINOv3ViT', DINO | {'intermediate_size': 40, 'num_register_tokens': 2}
# name -> class, fields.
DINOS = {
  'DINOv2': (*V2, {}),
  'DINOv2, gated': (*V2, {'use_swiglu_ffn': True, 'qkv_bias': False, 'mlp_ratio': 2}),
  'DINOv3': (*V3, {}),
  'DINOv3, gated': (
    *V3,
    {'use_gated_mlp': True, 'hidden_act': 'silu', 'query_bias': False, 'value_bias': False}
    | {'num_register_tokens': 1, 'mlp_bias': False, 'layer_norm_eps': 1e-3},
  ),
}


@pytest.mark.parametrize('name', DINOS)
def test_dino(agree, gradients, name):
  kind, fields, more = DINOS[name]
  config = getattr(transformers, f'{kind}Config')(**fields | more)
  images = IMAGES[:, :8]
  weights = np.random.default_rng(1).normal(size=(2, 24)).astype(np.float32)

  def run(model):
    hidden = model(pixel_values=torch.tensor(images.transpose(0, 3, 1, 2))).last_hidden_state
    return hidden, hidden[:, 0]

  @jax.jit
  def ours(model):
    return model.hidden(jnp.asarray(images)).x, model(jnp.asarray(images)).x

  make = getattr(transformers, f'{kind}Model')
  model, mine = agree(name, lambda: make(config), run, lambda m: tuple(map(np.asarray, ours(m))))
  if ',' not in name:
    gradients(
      name,
      model,
      mine,
      lambda m: (run(m)[0].mean(1) * torch.tensor(weights)).sum(),
      lambda m: (m.hidden(jnp.asarray(images)).x.mean(1) * weights).sum(),
      vanishing=r'key\.bias$',
    )
