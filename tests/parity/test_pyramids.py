"""Folders of Swin, ResNet and ConvNeXt against transformers. tests/parity/test_swin.py
and test_convolutional_networks.py compare gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")


def swin():
  """With a shift, and a map of the second stage that windows do not divide."""
  config = transformers.SwinConfig(
    image_size=32,
    patch_size=2,
    embed_dim=8,
    depths=[2, 4],
    num_heads=[2, 4],
    window_size=4,
    mlp_ratio=3.0,
    qkv_bias=False,
    num_labels=5,
  )
  return transformers.SwinForImageClassification(config), (24, 20)


def resnet(kind, sizes, depths):
  """With running statistics other than 0 and 1."""
  config = transformers.ResNetConfig(
    num_channels=1,
    embedding_size=8,
    hidden_sizes=sizes,
    depths=depths,
    layer_type=kind,
    num_labels=5,
  )
  model = transformers.ResNetForImageClassification(config)
  for name, buffer in model.named_buffers():
    if name.endswith('running_mean'):
      torch.nn.init.normal_(buffer)
    elif name.endswith('running_var'):
      torch.nn.init.uniform_(buffer, 0.5, 1.5)
  return model, (37, 42)


def convnext():
  """The norm of the classifier has another epsilon than all others."""
  config = transformers.ConvNextConfig(
    num_stages=3,
    patch_size=2,
    hidden_sizes=[4, 8, 16],
    depths=[1, 2, 1],
    layer_norm_eps=1e-2,
    num_labels=5,
  )
  return transformers.ConvNextForImageClassification(config), (28, 25)


CASES = {
  'Swin': swin,
  'ResNet, basic': lambda: resnet('basic', [8, 16, 32], [1, 3, 2]),
  'ResNet, bottleneck': lambda: resnet('bottleneck', [32, 64], [3, 2]),
  'ConvNeXt': convnext,
}


@pytest.mark.parametrize('name', CASES)
def test_a_folder_gives_the_same_logits_in_and_out(name, agree):
  model, sides = CASES[name]()
  shape = 2, *sides, model.config.num_channels
  images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  compiled = jax.jit(lambda model: model(jnp.asarray(images)).x)
  agree(
    name,
    lambda: CASES[name]()[0],
    lambda model: model(pixel_values=torch.tensor(images.transpose(0, 3, 1, 2))).logits,
    lambda model: np.asarray(compiled(model)),
  )
