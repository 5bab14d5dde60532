"""Towers of DINOv3 of configs/models, at a small width, against transformers."""

from pathlib import Path

import numpy as np
import pytest

from t2x.experiments import read_config
from t2x.train.params import Blueprint
from tests.helpers.renamed import logits_and_gradients

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
WIDTH, HEADS, HIDDEN, TOKENS = 24, 3, 40, 1 + 2 + 2 * 3
rng = np.random.default_rng(0)
# A grid of 2 x 3 patches.
IMAGES = rng.normal(size=(2, 8, 12, 3)).astype(np.float32)
# A class for each token, so that each hidden vector has a gradient.
LABELS = rng.integers(0, WIDTH, (2, TOKENS))
OVERRIDES = [
  f'd_model={WIDTH}',
  'num_layers=2',
  f'MultiHeadAttention.num_heads={HEADS}',
  'PatchEmbedding.patch_size=4',
  'PatchEmbedding.num_registers=2',
]
# Settings of transformers at full size that differ from its defaults, which are those of ViT-S.
SIZES = {
  'dinov3_s16': {},
  'dinov3_7b16': {
    'hidden_size': 4096,
    'num_hidden_layers': 40,
    'num_attention_heads': 32,
    'intermediate_size': 8192,
    'use_gated_mlp': True,
    'hidden_act': 'silu',
    'query_bias': False,
    'value_bias': False,
  },
}


def rename(own, config):
  own.convolution('embedding.projection', 'embeddings.patch_embeddings')
  own.take('embedding.class_token', 'embeddings.cls_token', shape=(WIDTH,))
  own.take('embedding.registers', 'embeddings.register_tokens', shape=(2, WIDTH))
  own.norm('body.final_norm', 'norm')
  split, gates = (HEADS, WIDTH // HEADS), {'up': 'up_proj', 'down': 'down_proj'}
  biases = {'q': config.query_bias, 'k': False, 'v': config.value_bias}

  def layer(own, name, theirs):
    for letter, bias in biases.items():
      own.linear(
        f'{name}.mixer.{letter}', f'{theirs}.attention.{letter}_proj', outputs=split, bias=bias
      )
    own.linear(f'{name}.mixer.out', f'{theirs}.attention.o_proj', inputs=split)
    for ours, its in (gates | ({'gate': 'gate_proj'} if config.use_gated_mlp else {})).items():
      own.linear(f'{name}.feed_forward.{ours}', f'{theirs}.mlp.{its}')
    for number, branch in enumerate(('mixer', 'feed_forward'), 1):
      own.norm(f'{name}.{branch}_wiring.norm', f'{theirs}.norm{number}')
      own.take(f'{name}.{branch}_wiring.gamma', f'{theirs}.layer_scale{number}.lambda1')

  own.stacked('body.stack.blocks.0', layer, ['model.layer.0', 'model.layer.1'])


@pytest.mark.parametrize('name', SIZES)
def test_hidden_vectors_and_gradients_equal_dinov3_of_transformers(name, compared, perturbed):
  small = {
    'hidden_size': WIDTH,
    'num_hidden_layers': 2,
    'num_attention_heads': HEADS,
    'intermediate_size': HIDDEN,
    'patch_size': 4,
    'num_register_tokens': 2,
  }
  config = transformers.DINOv3ViTConfig(**SIZES[name] | small)
  their = transformers.DINOv3ViTModel(config)
  # Evaluation does not rescale the coordinates.
  their = perturbed(their, 0.1).double().eval()
  hidden = their(torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double()).last_hidden_state
  torch.nn.functional.cross_entropy(hidden.flatten(0, 1), torch.tensor(LABELS.ravel())).backward()
  parameters = {n: p for n, p in their.named_parameters() if 'mask_token' not in n}
  part = 'GatedMLP' if config.use_gated_mlp else 'MLP'
  overrides = [*OVERRIDES, f'{part}.hidden_dim={HIDDEN}']
  shapes = read_config([MODELS / f'{name}.gin'], overrides).build().shapes()
  ours, slopes = logits_and_gradients(
    shapes,
    lambda own: rename(own, config),
    {name: parameter.detach().numpy() for name, parameter in parameters.items()},
    IMAGES,
    LABELS,
    apply=lambda model, images: model.hidden(images).x,
  )
  system = 'DINOv3', 'transformers DINOv3ViTModel'
  compared(*system, ours, hidden.detach().numpy())
  for own, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    tolerance = 1e-5 * np.abs(wanted).max()
    compared(*system, slopes[own], wanted, atol=tolerance, of='gradients')


@pytest.mark.parametrize('name', SIZES)
def test_full_sizes_have_the_parameters_of_transformers_apart_from_the_mask_token(name):
  with torch.device('meta'):
    their = transformers.DINOv3ViTModel(
      transformers.DINOv3ViTConfig(num_register_tokens=4, **SIZES[name])
    )
  sizes = [p.numel() for n, p in their.named_parameters() if 'mask_token' not in n]
  assert Blueprint(read_config([MODELS / f'{name}.gin']).build().shapes()).size == sum(sizes)
