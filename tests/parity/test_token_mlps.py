"""MLP-Mixer and gMLP of configs/models, at small widths, against timm; the causal gate."""

import functools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from t2x.experiments import read_config
from tests.helpers.renamed import logits_and_gradients

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
mlp_mixer = pytest.importorskip('timm.models.mlp_mixer', reason="the extra 'references' is missing")

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
WIDTH, HIDDEN, LENGTH, LAYERS = 8, 32, 6, 2
LABELS = np.array([4, 1])
IMAGES = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
OVERRIDES = [
  f'length={LENGTH}',
  f'VisionTransformer.d_model={WIDTH}',
  'PatchEmbedding.patch_size=2',
  f'Stack.num_layers={LAYERS}',
  'Classifier.num_classes=5',
]


def mixer_layer(own, name, theirs):
  own.linear(f'{name}.mixer.up', f'{theirs}.mlp_tokens.fc1')
  own.linear(f'{name}.mixer.down', f'{theirs}.mlp_tokens.fc2')
  own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.norm1')
  own.linear(f'{name}.feed_forward.up', f'{theirs}.mlp_channels.fc1')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.mlp_channels.fc2')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.norm2')


def gmlp_layer(own, name, theirs):
  mlp, mixer = f'{theirs}.mlp_channels', f'{name}.mixer'
  own.linear(f'{mixer}.up', f'{mlp}.fc1', outputs=(2, HIDDEN // 2))
  own.norm(f'{mixer}.norm', f'{mlp}.gate.norm')
  own.take(f'{mixer}.weights', f'{mlp}.gate.proj.weight')
  own.take(f'{mixer}.bias', f'{mlp}.gate.proj.bias')
  own.linear(f'{mixer}.down', f'{mlp}.fc2')
  own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.norm')


def rename(own, layer, is_causal):
  blocks = 'body.stack.blocks.0'
  own.convolution('embedding.projection', 'stem.proj')
  own.stacked(blocks, layer, [f'blocks.{i}' for i in range(LAYERS)])
  own.norm('body.final_norm', 'norm')
  own.linear('head.out', 'head')
  if is_causal:
    # What is above the diagonal must not matter.
    own.found[f'{blocks}.mixer.weights'] += jnp.triu(jnp.ones((LENGTH, LENGTH)), 1)


CASES = {
  'mixer_s16': (
    mlp_mixer.MixerBlock,
    (0.5, 4.0),
    mlp_mixer.Mlp,
    mixer_layer,
    ['TokenMLP.hidden_dim=4', f'MLP.hidden_dim={HIDDEN}'],
  ),
  'gmlp_s16': (
    mlp_mixer.SpatialGatingBlock,
    4.0,
    mlp_mixer.GatedMlp,
    gmlp_layer,
    # timm's norm of the gate has PyTorch's epsilon; that of the paper is not known.
    [
      f'SpatialGating.hidden_dim={HIDDEN}',
      'SpatialGating.norm=@gate/LayerNorm',
      'gate/LayerNorm.epsilon=1e-5',
    ],
  ),
}


@pytest.mark.parametrize(
  ('system', 'file', 'is_causal'),
  [('MLP-Mixer', 'mixer_s16', False), ('gMLP', 'gmlp_s16', False), (None, 'gmlp_s16', True)],
)
def test_logits_and_gradients_equal_timm(system, file, is_causal, compared, perturbed):
  block, ratio, mlp, layer, overrides = CASES[file]
  their = mlp_mixer.MlpMixer(
    5, (4, 6), 3, 2, LAYERS, WIDTH, ratio, block_layer=block, mlp_layer=mlp
  )
  their = perturbed(their, 0.3).double()
  if is_causal:
    with torch.no_grad():
      for one in their.blocks:
        one.mlp_channels.gate.proj.weight.tril_()
    overrides = [*overrides, 'Encoder.pattern=@Causal()']
  logits = their(torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double())
  torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS)).backward()
  shapes = read_config([MODELS / f'{file}.gin'], [*OVERRIDES, *overrides]).build().shapes()

  arrays = {name: parameter.detach().numpy() for name, parameter in their.named_parameters()}
  named = functools.partial(rename, layer=layer, is_causal=is_causal)
  ours, slopes = logits_and_gradients(shapes, named, arrays, IMAGES, LABELS)
  compared(system, 'timm MlpMixer', ours, logits.detach().numpy())
  largest = max(np.abs(slope).max() for slope in slopes.values())
  for name, parameter in their.named_parameters():
    wanted = parameter.grad.numpy()
    wanted = np.tril(wanted) if is_causal and name.endswith('gate.proj.weight') else wanted
    if name.endswith('mlp_tokens.fc2.bias'):
      # It adds the same number to all features of a token, which all later norms subtract.
      assert max(np.abs(slopes[name]).max(), np.abs(wanted).max()) < 1e-6 * largest
      continue
    tolerance = 1e-5 * np.abs(wanted).max()
    compared(system, 'timm MlpMixer', slopes[name], wanted, atol=tolerance, of='gradients')
