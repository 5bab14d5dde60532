"""DeiT of configs/models, at a small width, against transformers."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from t2x.experiments import read_config
from tests.helpers.renamed import logits_and_gradients

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FILE = Path(__file__).parents[2] / 'configs' / 'models' / 'deit_ti16.gin'
WIDTH, HEADS, CLASSES = 24, 3, 5
rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(3, 8, 8, 3)).astype(np.float32)
# Labels of the mean, of the head of the class token and of that of the distillation token.
LABELS = rng.integers(0, CLASSES, (3, 3))
OVERRIDES = [
  f'd_model={WIDTH}',
  'num_layers=2',
  'grid=2',
  f'MultiHeadAttention.num_heads={HEADS}',
  'MLP.hidden_dim=40',
  'PatchEmbedding.patch_size=4',
  f'Classifier.num_classes={CLASSES}',
]


def rename(own):
  own.convolution('embedding.projection', 'deit.embeddings.patch_embeddings.projection')
  own.take('embedding.class_token', 'deit.embeddings.cls_token', shape=(WIDTH,))
  own.take('embedding.registers', 'deit.embeddings.distillation_token', shape=(1, WIDTH))
  own.take('positions.table', 'deit.embeddings.position_embeddings', shape=(6, WIDTH))
  own.norm('body.final_norm', 'deit.layernorm')
  own.linear('head.out', 'cls_classifier')
  own.linear('teacher_head.out', 'distillation_classifier')
  split = HEADS, WIDTH // HEADS

  def layer(own, name, theirs):
    for letter in 'qkv':
      own.linear(f'{name}.mixer.{letter}', f'{theirs}.attention.{letter}_proj', outputs=split)
    own.linear(f'{name}.mixer.out', f'{theirs}.attention.o_proj', inputs=split)
    own.linear(f'{name}.feed_forward.up', f'{theirs}.mlp.fc1')
    own.linear(f'{name}.feed_forward.down', f'{theirs}.mlp.fc2')
    own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.layernorm_before')
    own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.layernorm_after')

  own.stacked('body.stack.blocks.0', layer, ['deit.layers.0', 'deit.layers.1'])


def of_all_heads(model, images):
  out = model(images)
  return jnp.stack([out.x, out.heads['labels'], out.heads['teacher']], axis=1)


def test_logits_of_both_heads_and_gradients_equal_deit_of_transformers(compared, perturbed):
  config = transformers.DeiTConfig(
    hidden_size=WIDTH,
    num_hidden_layers=2,
    num_attention_heads=HEADS,
    intermediate_size=40,
    image_size=8,
    patch_size=4,
    num_labels=CLASSES,
    layer_norm_eps=1e-6,
  )
  their = transformers.DeiTForImageClassificationWithTeacher(config)
  their = perturbed(their, 0.1).double()
  out = their(torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double())
  logits = torch.stack([out.logits, out.cls_logits, out.distillation_logits], dim=1)
  torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(LABELS.ravel())).backward()
  parameters = dict(their.named_parameters())
  ours, slopes = logits_and_gradients(
    read_config([FILE], OVERRIDES).build().shapes(),
    rename,
    {name: parameter.detach().numpy() for name, parameter in parameters.items()},
    IMAGES,
    LABELS,
    apply=of_all_heads,
  )
  system = 'DeiT', 'transformers DeiTForImageClassificationWithTeacher'
  compared(*system, ours, logits.detach().numpy())
  largest = max(np.abs(parameter.grad.numpy()).max() for parameter in parameters.values())
  for name, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    # Key biases have no gradient: what is compared are rounding errors.
    tolerance = max(1e-5 * np.abs(wanted).max(), 1e-7 * largest)
    compared(*system, slopes[name], wanted, atol=tolerance, of='gradients')
