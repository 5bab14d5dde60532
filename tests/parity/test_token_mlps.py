"""MLP-Mixer and gMLP of configs/models, at small widths, against timm; the causal gate."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.experiments import read_config
from t2x.layers.arrays import named_leaves

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
mlp_mixer = pytest.importorskip('timm.models.mlp_mixer', reason="the extra 'references' is missing")

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
WIDTH, LENGTH, LAYERS = 8, 6, 2
LABELS = np.array([4, 1])
IMAGES = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
OVERRIDES = [
  f'length={LENGTH}',
  f'VisionTransformer.d_model={WIDTH}',
  'PatchEmbedding.patch_size=2',
  f'Stack.num_layers={LAYERS}',
  'Classifier.num_classes=5',
]


def linear(get, theirs):
  return {'kernel': get(f'{theirs}.weight').T, 'bias': get(f'{theirs}.bias')}


def norm(get, theirs):
  return {'scale': get(f'{theirs}.weight'), 'bias': get(f'{theirs}.bias')}


def mixer_layer(get, layer):
  return {
    'mixer.up': linear(get, f'{layer}.mlp_tokens.fc1'),
    'mixer.down': linear(get, f'{layer}.mlp_tokens.fc2'),
    'mixer_wiring.norm': norm(get, f'{layer}.norm1'),
    'feed_forward.up': linear(get, f'{layer}.mlp_channels.fc1'),
    'feed_forward.down': linear(get, f'{layer}.mlp_channels.fc2'),
    'feed_forward_wiring.norm': norm(get, f'{layer}.norm2'),
  }


def gmlp_layer(get, layer):
  up = linear(get, f'{layer}.mlp_channels.fc1')
  gate = f'{layer}.mlp_channels.gate'
  return {
    'mixer.up': {
      'kernel': up['kernel'].reshape(WIDTH, 2, -1),
      'bias': up['bias'].reshape(2, -1),
    },
    'mixer': {'weights': get(f'{gate}.proj.weight'), 'bias': get(f'{gate}.proj.bias')},
    'mixer.norm': norm(get, f'{gate}.norm'),
    'mixer.down': linear(get, f'{layer}.mlp_channels.fc2'),
    'mixer_wiring.norm': norm(get, f'{layer}.norm'),
  }


def values(parameters, layer):
  """Values of all parameters of ours by name."""
  parameters = dict(parameters)
  get = parameters.pop
  groups = {
    'embedding.projection': {
      'kernel': get('stem.proj.weight').transpose(2, 3, 1, 0),
      'bias': get('stem.proj.bias'),
    },
    'body.final_norm': norm(get, 'norm'),
    'head.out': linear(get, 'head'),
  }
  layers = [layer(get, f'blocks.{i}') for i in range(LAYERS)]
  for name in layers[0]:
    groups[f'body.stack.blocks.0.{name}'] = {
      kind: jnp.stack([one[name][kind] for one in layers]) for kind in layers[0][name]
    }
  assert not parameters
  return {f'{name}.{kind}': a for name, group in groups.items() for kind, a in group.items()}


def model_of(shapes, values):
  names = [name for name, _ in named_leaves(shapes)]
  assert sorted(names) == sorted(values)
  return jax.tree.unflatten(jax.tree.structure(shapes), [values[name] for name in names])


CASES = {
  'mixer_s16': (
    mlp_mixer.MixerBlock,
    (0.5, 4.0),
    mlp_mixer.Mlp,
    mixer_layer,
    ['TokenMLP.hidden_dim=4', 'MLP.hidden_dim=32'],
  ),
  'gmlp_s16': (
    mlp_mixer.SpatialGatingBlock,
    4.0,
    mlp_mixer.GatedMlp,
    gmlp_layer,
    # timm's norm of the gate has PyTorch's epsilon; that of the paper is not known.
    [
      'SpatialGating.hidden_dim=32',
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

  def loss(parameters):
    arrays = values(parameters, layer)
    if is_causal:
      # What is above the diagonal must not matter.
      name = 'body.stack.blocks.0.mixer.weights'
      arrays[name] += jnp.triu(jnp.ones_like(arrays[name]), 1)
    logits = model_of(shapes, arrays)(jnp.asarray(IMAGES)).x
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean(), logits

  arrays = {n: jnp.asarray(p.detach().numpy(), jnp.float32) for n, p in their.named_parameters()}
  (_, ours), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
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
