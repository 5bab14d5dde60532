"""Swin Transformer V2 of configs/models, at a small width, against transformers."""

from pathlib import Path

import numpy as np
import pytest

from t2x.experiments import read_config
from tests.helpers.renamed import logits_and_gradients

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FILE = Path(__file__).parents[2] / 'configs' / 'models' / 'swin_v2_t.gin'
WIDTH = 8
LABELS = np.array([4, 1])
# Maps of 12 x 10 and 6 x 5 patches: zeros fill up the second side of the first, and both of the second.
IMAGES = np.random.default_rng(0).normal(size=(2, 24, 20, 1)).astype(np.float32)
OVERRIDES = [
  f'd_model={WIDTH}',
  'window=4',
  'shift=2',
  'Stages.stages=[@s1/Stack, @s2/Stack]',
  'PatchEmbedding.patch_size=2',
  'PatchEmbedding.channels=1',
  'Classifier.num_classes=5',
  *(
    f's{stage}/{setting}={2**stage * factor}'
    for stage in (1, 2)
    for setting, factor in (
      ('MultiHeadAttention.num_heads', 1),
      ('LogGridBias.num_heads', 1),
      ('MLP.hidden_dim', WIDTH),
    )
  ),
]


def layer(own, name, theirs, heads):
  attention, mixer = f'{theirs}.attention.self', f'{name}.mixer.mixer'
  split = heads, WIDTH // 2
  own.linear(f'{mixer}.q', f'{attention}.query', outputs=split)
  own.linear(f'{mixer}.k', f'{attention}.key', outputs=split, bias=False)
  own.linear(f'{mixer}.v', f'{attention}.value', outputs=split)
  own.take(f'{mixer}.scores.logit', f'{attention}.logit_scale', shape=(heads,))
  own.linear(f'{mixer}.out', f'{theirs}.attention.output.dense', inputs=split)
  bias = f'{attention}.continuous_position_bias_mlp'
  own.linear(f'{name}.encoding.up', f'{bias}.0')
  own.linear(f'{name}.encoding.down', f'{bias}.2', bias=False)
  own.linear(f'{name}.feed_forward.up', f'{theirs}.intermediate.dense')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.output.dense')
  own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.layernorm_before')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.layernorm_after')


def rename(own):
  own.convolution('embedding.projection', 'swinv2.embeddings.patch_embeddings.projection')
  own.norm('body.input_norm', 'swinv2.embeddings.norm')
  own.norm('body.final_norm', 'swinv2.layernorm')
  own.linear('head.out', 'classifier')
  for stage in (0, 1):
    theirs, ours = f'swinv2.encoder.layers.{stage}', f'body.stack.stages.{stage}.blocks'
    for place in (0, 1):
      own.stacked(
        f'{ours}.{place}',
        lambda own, name, theirs, stage=stage: layer(own, name, theirs, 2 * 2**stage),
        [f'{theirs}.blocks.{place}'],
      )
  # A projection of the four patches of a square, column by column, is a convolution.
  merge, theirs = 'body.stack.merges.0', 'swinv2.encoder.layers.0.downsample'
  kernel = own.left.pop(f'{theirs}.reduction.weight').reshape(2 * WIDTH, 2, 2, WIDTH)
  own.found[f'{merge}.convolution.kernel'] = kernel.transpose(2, 1, 3, 0)
  own.norm(f'{merge}.norm', f'{theirs}.norm')


def keep_from_kinks(their):
  """Moves the biases for which a ReLU of the position MLP is so close to 0 that rounding decides its derivative."""
  for module in their.modules():
    if hasattr(module, 'continuous_position_bias_mlp'):
      first, table = module.continuous_position_bias_mlp[0], module.relative_coords_table.double()
      with torch.no_grad():
        while (near := (first(table).abs() < 1e-4).flatten(0, -2).any(0)).any():
          first.bias += 1e-3 * near


def test_logits_and_gradients_equal_swin_v2_of_transformers(compared, perturbed):
  config = transformers.Swinv2Config(
    image_size=24,
    patch_size=2,
    num_channels=1,
    embed_dim=WIDTH,
    depths=(2, 2),
    num_heads=(2, 4),
    window_size=4,
    mlp_ratio=2.0,
    num_labels=5,
  )
  their = transformers.Swinv2ForImageClassification(config)
  with torch.no_grad():
    for name, parameter in their.named_parameters():
      if name.endswith('logit_scale'):
        # A factor of ten would multiply the rounding of float32.
        parameter.zero_()
  their = perturbed(their, 0.1).double()
  keep_from_kinks(their)
  pixels = torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double()
  out = their(pixel_values=pixels, labels=torch.tensor(LABELS))
  out.loss.backward()
  arrays = {name: parameter.detach().numpy() for name, parameter in their.named_parameters()}
  shapes = read_config([FILE], OVERRIDES).build().shapes()
  logits, slopes = logits_and_gradients(shapes, rename, arrays, IMAGES, LABELS)
  system = 'Swin V2', 'transformers Swinv2ForImageClassification'
  compared(*system, logits, out.logits.detach().numpy())
  for name, parameter in their.named_parameters():
    wanted = parameter.grad.numpy()
    tolerance = 1e-5 * np.abs(wanted).max()
    compared(*system, slopes[name], wanted, atol=tolerance, of='gradients')
