"""Transformers of videos against transformers (TimeSformer, ViViT) and vit-pytorch (the factorised models of ViViT)."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from renamed import logits_and_gradients

from t2x.experiments import read_config

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
WIDTH, HEADS, LAYERS, HIDDEN, CLASSES = 16, 2, 2, 24, 5
FRAMES, SIDE, PATCH, CHANNELS = 4, 12, 4, 3
GRID = SIDE // PATCH
SPLIT = HEADS, WIDTH // HEADS
SIZES = {
  'hidden_size': WIDTH,
  'num_hidden_layers': LAYERS,
  'num_attention_heads': HEADS,
  'intermediate_size': HIDDEN,
  'image_size': SIDE,
  'num_frames': FRAMES,
  'num_labels': CLASSES,
}
OVERRIDES = [
  f'd_model={WIDTH}',
  f'num_layers={LAYERS}',
  f'num_heads={HEADS}',
  f'hidden_dim={HIDDEN}',
  f'Tubelets.patch_size={PATCH}',
  f'grid={GRID}',
  f'Classifier.num_classes={CLASSES}',
]
VIDEOS = np.random.default_rng(0).normal(size=(2, FRAMES, SIDE, SIDE, CHANNELS)).astype(np.float32)
LABELS = np.array([3, 1])


def shapes_of(name, *overrides):
  return read_config([MODELS / f'{name}.gin'], [*OVERRIDES, *overrides]).build().shapes()


def check(compared, names, shapes, rename, theirs, logits, videos):
  """Compares logits, and the gradients of their cross-entropy in all parameters of the reference."""
  torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS)).backward()
  parameters = dict(theirs.named_parameters())
  arrays = {name: one.detach().numpy() for name, one in parameters.items()}
  ours, slopes = logits_and_gradients(shapes, rename, arrays, videos, LABELS)
  compared(*names, ours, logits.detach().numpy())
  largest = max(float(one.grad.abs().max()) for one in parameters.values())
  for name, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    # A bias of keys has no gradient.
    scale = largest if name.endswith('k_proj.bias') else np.abs(wanted).max()
    compared(*names, slopes[name], wanted, atol=1e-5 * scale, of='gradients')


def attention_of_timesformer(own, name, theirs):
  for array, shape in (('weight', (WIDTH, *SPLIT)), ('bias', SPLIT)):
    stacked = own.left.pop(f'{theirs}.attention.qkv.{array}')
    for part, one in zip('qkv', jnp.split(stacked, 3), strict=True):
      kind = 'kernel' if array == 'weight' else 'bias'
      own.found[f'{name}.{part}.{kind}'] = one.T.reshape(shape)
  own.linear(f'{name}.out', f'{theirs}.output.dense', inputs=SPLIT)


def layer_of_timesformer(own, name, theirs):
  attention_of_timesformer(own, f'{name}.time.mixer.attention', f'{theirs}.temporal_attention')
  own.linear(f'{name}.time.mixer.projection.out', f'{theirs}.temporal_dense')
  own.norm(f'{name}.time_wiring.norm', f'{theirs}.temporal_layernorm')
  attention_of_timesformer(own, f'{name}.space.mixer', f'{theirs}.attention')
  own.norm(f'{name}.space_wiring.norm', f'{theirs}.layernorm_before')
  own.linear(f'{name}.feed_forward.up', f'{theirs}.intermediate.dense')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.output.dense')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.layernorm_after')


def rename_timesformer(own):
  embeddings = 'timesformer.embeddings'
  own.take('embedding.class_token', f'{embeddings}.cls_token', shape=(WIDTH,))
  projection = f'{embeddings}.patch_embeddings.projection'
  kernel = own.left.pop(f'{projection}.weight').transpose(2, 3, 1, 0)
  own.found['embedding.projection.kernel'] = kernel[None]
  own.take('embedding.projection.bias', f'{projection}.bias')
  for i, table in enumerate(('position_embeddings', 'time_embeddings')):
    own.take(f'positions.parts.{i}.table', f'{embeddings}.{table}', shape=(-1, WIDTH))
  layers = [f'timesformer.encoder.layer.{i}' for i in range(LAYERS)]
  own.stacked('body.stack.blocks.0', layer_of_timesformer, layers)
  own.norm('body.final_norm', 'timesformer.layernorm')
  own.linear('head.out', 'classifier')


def test_logits_and_gradients_equal_timesformer_of_transformers(compared, perturbed):
  """The map after the attention over time is not 0."""
  config = transformers.TimesformerConfig(patch_size=PATCH, **SIZES)
  theirs = perturbed(transformers.TimesformerForVideoClassification(config), 0.1)
  logits = theirs(torch.tensor(VIDEOS.transpose(0, 1, 4, 2, 3))).logits
  names = 'TimeSformer', 'transformers TimesformerForVideoClassification'
  shapes = shapes_of('timesformer_b16', f'frames={FRAMES}')
  check(compared, names, shapes, rename_timesformer, theirs, logits, VIDEOS)


def layer_of_vivit(own, name, theirs):
  for part in 'qkv':
    own.linear(f'{name}.mixer.{part}', f'{theirs}.attention.{part}_proj', outputs=SPLIT)
  own.linear(f'{name}.mixer.out', f'{theirs}.attention.o_proj', inputs=SPLIT)
  own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.layernorm_before')
  own.linear(f'{name}.feed_forward.up', f'{theirs}.mlp.fc1')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.mlp.fc2')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.layernorm_after')


def rename_vivit(own):
  embeddings = 'vivit.embeddings'
  own.take('embedding.class_token', f'{embeddings}.cls_token', shape=(WIDTH,))
  projection = f'{embeddings}.patch_embeddings.projection'
  own.take('embedding.projection.kernel', f'{projection}.weight', (2, 3, 4, 1, 0))
  own.take('embedding.projection.bias', f'{projection}.bias')
  own.take('positions.table', f'{embeddings}.position_embeddings', shape=(-1, WIDTH))
  layers = [f'vivit.layers.{i}' for i in range(LAYERS)]
  own.stacked('body.stack.blocks.0', layer_of_vivit, layers)
  own.norm('body.final_norm', 'vivit.layernorm')
  own.linear('head.out', 'classifier')


def test_logits_and_gradients_equal_vivit_of_transformers(compared, perturbed):
  config = transformers.VivitConfig(tubelet_size=[2, PATCH, PATCH], **SIZES)
  theirs = perturbed(transformers.VivitForVideoClassification(config), 0.1)
  logits = theirs(torch.tensor(VIDEOS.transpose(0, 1, 4, 2, 3))).logits
  names = 'ViViT', 'transformers VivitForVideoClassification'
  shapes = shapes_of('vivit_b16x2', f'frames={FRAMES // 2}')
  check(compared, names, shapes, rename_vivit, theirs, logits, VIDEOS)


def factorised(variant, perturbed):
  """vit-pytorch's model of embedded tokens, [batch, frames, patches, width]; its embedding has norms, ViViT's none."""
  vivit = pytest.importorskip('vit_pytorch.vivit', reason="the extra 'references' is not installed")
  theirs = vivit.ViViT(
    image_size=(GRID, GRID),
    image_patch_size=1,
    frames=FRAMES,
    frame_patch_size=1,
    num_classes=CLASSES,
    dim=WIDTH,
    spatial_depth=LAYERS,
    temporal_depth=LAYERS,
    heads=HEADS,
    dim_head=WIDTH // HEADS,
    mlp_dim=HIDDEN,
    pool='mean',
    variant=variant,
  )
  theirs.to_patch_embedding = torch.nn.Identity()
  theirs = perturbed(theirs, 0.1)
  tokens = np.random.default_rng(1).normal(size=(2, FRAMES, GRID, GRID, WIDTH)).astype(np.float32)
  logits = theirs(torch.tensor(tokens.reshape(2, FRAMES, GRID * GRID, WIDTH)))
  return theirs, logits, tokens


# Of tubelets of one pixel with one channel per feature, the map is the identity.
TOKENS = (
  f'Tubelets.channels={WIDTH}',
  'Tubelets.patch_size=1',
  'Tubelets.frames=1',
  'Tubelets.use_bias=False',
  f'LearnedGrid.frames={FRAMES}',
  'MultiHeadAttention.use_bias=False',
  'MLP.activation=@gelu_exact',
  'LayerNorm.epsilon=1e-5',
)


def attention_of_vit_pytorch(own, name, wiring, theirs):
  stacked = own.left.pop(f'{theirs}.to_qkv.weight')
  for part, one in zip('qkv', jnp.split(stacked, 3), strict=True):
    own.found[f'{name}.{part}.kernel'] = one.T.reshape(WIDTH, *SPLIT)
  own.linear(f'{name}.out', f'{theirs}.to_out.0', inputs=SPLIT)
  own.norm(f'{wiring}.norm', f'{theirs}.norm')


def rest_of_vit_pytorch(own, name, theirs):
  own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.net.0')
  own.linear(f'{name}.feed_forward.up', f'{theirs}.net.1')
  own.linear(f'{name}.feed_forward.down', f'{theirs}.net.4')


def rename_tokens(own):
  own.found['embedding.projection.kernel'] = jnp.eye(WIDTH).reshape(1, 1, 1, WIDTH, WIDTH)
  own.take('positions.table', 'pos_embedding', shape=(-1, WIDTH))
  own.linear('head.out', 'mlp_head')


def test_logits_and_gradients_equal_the_factorised_attention_of_vit_pytorch(compared, perturbed):
  def layer(own, name, theirs):
    for i, part in enumerate(('space', 'time')):
      attention_of_vit_pytorch(
        own, f'{name}.{part}.mixer', f'{name}.{part}_wiring', f'{theirs}.{i}'
      )
    rest_of_vit_pytorch(own, name, f'{theirs}.2')

  def rename(own):
    rename_tokens(own)
    layers = [f'factorized_transformer.layers.{i}' for i in range(LAYERS)]
    own.stacked('body.stack.blocks.0', layer, layers)
    own.norm('body.final_norm', 'factorized_transformer.norm')

  theirs, logits, tokens = factorised('factorized_self_attention', perturbed)
  shapes = shapes_of('vivit_b16x2_factorised_attention', *TOKENS)
  names = 'ViViT, factorised attention', 'vit-pytorch'
  check(compared, names, shapes, rename, theirs, logits, tokens)


def test_logits_and_gradients_equal_the_factorised_encoder_of_vit_pytorch(compared, perturbed):
  """Its second encoder has no positions; that of the config adds them to the means."""

  def layer(mixer):
    def one(own, name, theirs):
      attention_of_vit_pytorch(own, f'{name}.{mixer}', f'{name}.mixer_wiring', f'{theirs}.0')
      rest_of_vit_pytorch(own, name, f'{theirs}.1')

    return one

  def rename(own):
    rename_tokens(own)
    for i, (part, mixer) in enumerate((('spatial', 'mixer.mixer'), ('temporal', 'mixer'))):
      layers = [f'{part}_transformer.layers.{j}' for j in range(LAYERS)]
      own.stacked(f'body.stack.stages.{i}.blocks.0', layer(mixer), layers)
      own.norm(f'body.stack.norms.{i}', f'{part}_transformer.norm')

  theirs, logits, tokens = factorised('factorized_encoder', perturbed)
  sizes = f'num_time_layers={LAYERS}', 'Stages.encoding=None'
  shapes = shapes_of('vivit_b16x2_factorised_encoder', *TOKENS, *sizes)
  check(
    compared, ('ViViT, factorised encoder', 'vit-pytorch'), shapes, rename, theirs, logits, tokens
  )
