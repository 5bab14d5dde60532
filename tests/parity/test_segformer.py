"""SegFormer of configs/models, at small widths, against transformers: logits, and the loss of the
task with its gradients.

Batch normalisation of the head is in evaluation mode, with perturbed running statistics (`FrozenBatchNorm`).
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.domains.segmentation import SemanticSegmentation
from t2x.experiments import read_config
from tests.helpers.renamed import model_of

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FILE = Path(__file__).parents[2] / 'configs' / 'models' / 'segformer_b0.gin'
WIDTHS, HEADS, RATIOS, FACTOR, DECODER, CLASSES = (
  (8, 12, 16, 20),
  (1, 2, 2, 4),
  (8, 4, 2, 1),
  2,
  12,
  5,
)
# Maps of 18 x 20, 9 x 10, 5 x 5 and 3 x 3 tokens: squares of keys leave out rows and columns.
IMAGES = np.random.default_rng(0).normal(size=(2, 69, 78, 3)).astype(np.float32)
MASKS = np.random.default_rng(1).integers(0, CLASSES + 1, (2, 69, 78))
MASKS = np.where(MASKS == CLASSES, 255, MASKS)
OVERRIDES = [
  f'PixelClassifier.d_model={WIDTHS[0]}',
  f'stem/GridConvolution.width={WIDTHS[0]}',
  f'AllMLP.width={DECODER}',
  'AllMLP.norm=@FrozenBatchNorm',
  f'Classifier.num_classes={CLASSES}',
  'Stack.num_layers=1',
  *(f'm{i}/GridConvolution.width={width}' for i, width in enumerate(WIDTHS, 1) if i > 1),
  *(f's{i}/MultiHeadAttention.num_heads={number}' for i, number in enumerate(HEADS, 1)),
  *(f's{i}/GridMLP.hidden_dim={FACTOR * width}' for i, width in enumerate(WIDTHS, 1)),
]


def layer(own, name, theirs, heads, ratio):
  mixer, key_values = f'{name}.mixer', f'{name}.mixer' + ('.key_values' if ratio > 1 else '')
  own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.layernorm_before')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.layernorm_after')
  for place, one in ((mixer, 'q'), (key_values, 'k'), (key_values, 'v')):
    own.linear(f'{place}.{one}', f'{theirs}.attention.{one}_proj', outputs=heads)
  own.linear(f'{mixer}.out', f'{theirs}.attention.o_proj', inputs=heads)
  if ratio > 1:
    reduction = f'{theirs}.attention.sequence_reduction'
    own.convolution(f'{key_values}.reduction.convolution', f'{reduction}.sequence_reduction')
    own.norm(f'{key_values}.reduction.norm', f'{reduction}.layer_norm')
  own.linear(f'{name}.feed_forward.up', f'{theirs}.mlp.fc1')
  own.convolution(f'{name}.feed_forward.convolution.convolution', f'{theirs}.mlp.dwconv.dwconv')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.mlp.fc2')


def rename(own):
  for i, (width, heads, ratio) in enumerate(zip(WIDTHS, HEADS, RATIOS, strict=True)):
    theirs, patches = f'segformer.stages.{i}', f'body.stack.merges.{i - 1}'
    patches = patches if i else 'embedding.patches'
    own.convolution(f'{patches}.convolution', f'{theirs}.patch_embeddings.proj')
    own.norm(f'{patches}.norm', f'{theirs}.patch_embeddings.layer_norm')
    own.stacked(
      f'body.stack.stages.{i}.blocks.0',
      lambda own, name, theirs, split=(heads, width // heads), ratio=ratio: layer(
        own, name, theirs, split, ratio
      ),
      [f'{theirs}.blocks.0'],
    )
    own.norm(f'body.stack.norms.{i}', f'{theirs}.layer_norm')
    own.linear(f'body.stack.join.projections.{i}', f'decode_head.linear_projections.{i}.proj')
  fuse = own.left.pop('decode_head.linear_fuse.weight')
  own.found['body.stack.join.fuse.kernel'] = fuse[:, :, 0, 0].T
  own.norm('body.stack.join.norm', 'decode_head.batch_norm')
  for ours, theirs in (('mean', 'running_mean'), ('variance', 'running_var')):
    statistic = own.statistics[f'decode_head.batch_norm.{theirs}']
    own.found[f'body.stack.join.norm.{ours}'] = jnp.asarray(statistic, jnp.float32)
  own.found['head.out.kernel'] = own.left.pop('decode_head.classifier.weight')[:, :, 0, 0].T
  own.take('head.out.bias', 'decode_head.classifier.bias')


def test_logits_loss_and_gradients_equal_segformer_of_transformers(compared, perturbed):
  config = transformers.SegformerConfig(
    depths=[1] * 4,
    hidden_sizes=WIDTHS,
    num_attention_heads=HEADS,
    mlp_ratios=[FACTOR] * 4,
    decoder_hidden_size=DECODER,
    num_labels=CLASSES,
    semantic_loss_ignore_index=255,
  )
  their = perturbed(transformers.SegformerForSemanticSegmentation(config), 0.1).double()
  generator = torch.Generator().manual_seed(1)
  norm = their.decode_head.batch_norm
  norm.running_mean += 0.1 * torch.randn(DECODER, generator=generator)
  norm.running_var += 0.1 * torch.randn(DECODER, generator=generator).abs()
  pixels = torch.tensor(IMAGES.transpose(0, 3, 1, 2)).double()
  out = their(pixel_values=pixels, labels=torch.tensor(MASKS))
  out.loss.backward()
  parameters = dict(their.named_parameters())
  statistics = {name: buffer.numpy() for name, buffer in their.named_buffers()}

  shapes = read_config([FILE], OVERRIDES).build().shapes()
  task = SemanticSegmentation(image_shape=IMAGES.shape[1:], num_classes=CLASSES)
  batch = {'image': jnp.asarray(IMAGES), 'mask': jnp.asarray(MASKS), 'weight': jnp.ones(2)}

  def loss(arrays):
    model = model_of(shapes, rename, arrays, statistics)
    total, weight = task.sums(model, batch, None).metrics['loss']
    return total / weight, model(batch['image']).x

  arrays = {name: one.detach().float().numpy() for name, one in parameters.items()}
  (value, logits), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
  system = 'SegFormer', 'transformers SegformerForSemanticSegmentation'
  compared(*system, logits, out.logits.detach().numpy().transpose(0, 2, 3, 1))
  compared(*system, value, out.loss.item())
  largest = max(float(one.grad.abs().max()) for one in parameters.values())
  for name, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    # A bias of keys has no gradient.
    scale = largest if name.endswith('k_proj.bias') else np.abs(wanted).max()
    compared(*system, slopes[name], wanted, atol=1e-5 * scale, of='gradients')
