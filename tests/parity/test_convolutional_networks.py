"""ResNet, SE-ResNet and ConvNeXt of configs/models, at small widths, against transformers and timm.

Batch normalisation of the references is in evaluation mode, with running statistics that are perturbed as all
parameters are (`FrozenBatchNorm`). Gradients are of the references' parameters.
"""

import functools
from pathlib import Path

import numpy as np
import pytest

from t2x.experiments import read_config
from tests.helpers.renamed import in_transformers_resnet, logits_and_gradients, normalised

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
timm = pytest.importorskip('timm', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
LABELS = np.array([4, 1])
# Odd sides: the zeros around the image and around each strided convolution matter.
IMAGES = np.random.default_rng(0).normal(size=(2, 37, 42, 3)).astype(np.float32)
TWO_STAGES = ['Classifier.num_classes=5', 's1/Stack.num_layers=1', 's2/Stack.num_layers=1']
SMALL_RESNET = ['Stages.stages=[@s1/Stack, @s2/Stack]', 'GridConvolution.norm=@FrozenBatchNorm']


def dense_of_one_tap(own, name, theirs):
  """A linear layer that the reference writes as a convolution with a kernel of 1 x 1."""
  kernel = own.left.pop(f'{theirs}.weight')
  own.found[f'{name}.kernel'] = kernel[:, :, 0, 0].T
  own.take(f'{name}.bias', f'{theirs}.bias')


def resnet(own, bottleneck):
  stem = 'resnet.embedder.embedder'
  normalised(own, 'embedding.convolution', f'{stem}.convolution', f'{stem}.normalization')
  for stage in (0, 1):
    layers = f'resnet.encoder.stages.{stage}.layers'
    begins = bottleneck or stage
    if begins:
      merge = f'body.stack.merges.{stage - 1}' if stage else 'embedding.block'
      in_transformers_resnet(own, merge, f'{layers}.0.layer')
      shortcut = f'{layers}.0.shortcut'
      normalised(own, f'{merge}.shortcut', f'{shortcut}.convolution', f'{shortcut}.normalization')
    own.stacked(
      f'body.stack.stages.{stage}.blocks.0',
      lambda own, name, theirs: in_transformers_resnet(own, f'{name}.mixer', theirs),
      [f'{layers}.{1 if begins else 0}.layer'],
    )
  own.linear('head.out', 'classifier.1')


def in_timm_resnet(own, name, theirs):
  for i, part in enumerate(('first', 'second', 'third'), start=1):
    normalised(own, f'{name}.{part}', f'{theirs}.conv{i}', f'{theirs}.bn{i}')
  dense_of_one_tap(own, f'{name}.scale.squeeze', f'{theirs}.se.fc1')
  dense_of_one_tap(own, f'{name}.scale.excite', f'{theirs}.se.fc2')


def se_resnet(own):
  normalised(own, 'embedding.convolution', 'conv1', 'bn1')
  for stage in (0, 1):
    merge = f'body.stack.merges.{stage - 1}' if stage else 'embedding.block'
    layer = f'layer{stage + 1}'
    in_timm_resnet(own, merge, f'{layer}.0')
    normalised(own, f'{merge}.shortcut', f'{layer}.0.downsample.0', f'{layer}.0.downsample.1')
    own.stacked(
      f'body.stack.stages.{stage}.blocks.0',
      lambda own, name, theirs: in_timm_resnet(own, f'{name}.mixer', theirs),
      [f'{layer}.1'],
    )
  own.linear('head.out', 'fc')


def in_transformers_convnext(own, name, theirs):
  convolution = f'{name}.mixer.convolution.depthwise'
  own.convolution(f'{convolution}.convolution', f'{theirs}.dwconv')
  own.norm(f'{convolution}.norm', f'{theirs}.layernorm')
  own.linear(f'{name}.mixer.mlp.up', f'{theirs}.pwconv1')
  own.linear(f'{name}.mixer.mlp.down', f'{theirs}.pwconv2')
  own.take(f'{name}.mixer_wiring.gamma', f'{theirs}.layer_scale_parameter')


def convnext(own):
  stem = 'convnext.embeddings'
  own.convolution('embedding.patches.convolution', f'{stem}.patch_embeddings')
  own.norm('embedding.patches.norm', f'{stem}.layernorm')
  for stage in (0, 1):
    theirs = f'convnext.encoder.stages.{stage}'
    if stage:
      own.norm('body.stack.merges.0.input_norm', f'{theirs}.downsampling_layer.0')
      own.convolution('body.stack.merges.0.convolution', f'{theirs}.downsampling_layer.1')
    own.stacked(
      f'body.stack.stages.{stage}.blocks.0', in_transformers_convnext, [f'{theirs}.layers.0']
    )
  own.norm('head.norm', 'convnext.layernorm')
  own.linear('head.out', 'classifier')


def resnet_of_transformers(kind, sizes, depths):
  config = transformers.ResNetConfig(
    embedding_size=8, hidden_sizes=sizes, depths=depths, layer_type=kind, num_labels=5
  )
  return transformers.ResNetForImageClassification(config)


def basic():
  overrides = [
    'Stages.stages=[@first/Stack, @Stack]',
    'first/Stack.num_layers=1',
    'VisionTransformer.d_model=8',
    'stem/GridConvolution.width=8',
    'GridConvolution.norm=@FrozenBatchNorm',
    'Classifier.num_classes=5',
  ]
  model = resnet_of_transformers('basic', [8, 16], [1, 2])
  return 'resnet_18', overrides, model, functools.partial(resnet, bottleneck=False)


def bottleneck():
  overrides = [
    *TWO_STAGES,
    *SMALL_RESNET,
    'VisionTransformer.d_model=32',
    'stem/GridConvolution.width=8',
  ]
  model = resnet_of_transformers('bottleneck', [32, 64], [2, 2])
  return 'resnet_50', overrides, model, functools.partial(resnet, bottleneck=True)


def squeeze_excitation():
  overrides = [
    *TWO_STAGES,
    *SMALL_RESNET,
    'VisionTransformer.d_model=32',
    # The stem of timm always has 64 features, here more than the first stage.
    'same/GridConvolution.factor=0.125',
    'beside/GridConvolution.factor=0.5',
  ]
  layer = functools.partial(timm.layers.SEModule, rd_divisor=1)
  block = timm.models.resnet.Bottleneck
  model = timm.models.resnet.ResNet(
    block, (2, 2), num_classes=5, channels=(8, 16), block_args={'attn_layer': layer}
  )
  model.layer3 = model.layer4 = torch.nn.Identity()
  return 'se_resnet_50', overrides, model, se_resnet


def convolutional_transformer():
  overrides = [
    *TWO_STAGES,
    'Stages.stages=[@s1/Stack, @s2/Stack]',
    'VisionTransformer.d_model=8',
    'stem/GridConvolution.width=8',
    's1/MLP.hidden_dim=32',
    's2/MLP.hidden_dim=64',
  ]
  config = transformers.ConvNextConfig(
    hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=5, layer_norm_eps=1e-6
  )
  model = transformers.ConvNextForImageClassification(config)
  return 'convnext_t', overrides, model, convnext


@pytest.mark.parametrize(
  ('system', 'reference', 'case'),
  [
    ('ResNet', 'transformers ResNetForImageClassification (basic)', basic),
    ('ResNet', 'transformers ResNetForImageClassification (bottleneck)', bottleneck),
    ('SE-ResNet', 'timm ResNet(attn_layer=SEModule)', squeeze_excitation),
    ('ConvNeXt', 'transformers ConvNextForImageClassification', convolutional_transformer),
  ],
)
def test_logits_and_gradients_equal(system, reference, case, compared, perturbed):
  name, overrides, their, rename = case()
  their = perturbed(their, 0.1).double()
  generator = torch.Generator().manual_seed(1)
  for buffer_name, buffer in their.named_buffers():
    noise = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
    if 'running' in buffer_name:
      buffer.copy_(0.5 + noise if buffer_name.endswith('var') else noise)
  logits = their(torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double())
  logits = getattr(logits, 'logits', logits)
  torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS)).backward()
  statistics = {name: buffer.numpy() for name, buffer in their.named_buffers()}
  shapes = read_config([MODELS / f'{name}.gin'], overrides).build().shapes()

  arrays = {name: parameter.detach().numpy() for name, parameter in their.named_parameters()}
  ours, slopes = logits_and_gradients(shapes, rename, arrays, IMAGES, LABELS, statistics)
  wanted = logits.detach().numpy()
  compared(system, reference, ours, wanted, atol=1e-5 * np.abs(wanted).max())
  for name, parameter in their.named_parameters():
    slope = parameter.grad.numpy()
    tolerance = 1e-5 * np.abs(slope).max()
    compared(system, reference, slopes[name], slope, atol=tolerance, of='gradients')
