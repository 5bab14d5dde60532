"""DETR with its losses, and its decoder layer, whose source keys have their own addresses, against transformers."""

import functools
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from detectors import CLASSES, check_detector, task
from detectors import QUERIES as OBJECTS
from flax import nnx
from renamed import in_transformers_resnet, normalised

from t2x.experiments import read_config
from t2x.layers import (
  MLP,
  AddressPositions,
  Call,
  Full,
  LayerNorm,
  LearnedPositions,
  MultiHeadAttention,
  PostNorm,
  SourceSequence,
  Tokens,
  relu,
)
from t2x.models import Block

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, HIDDEN, QUERIES, PIXELS = 8, 2, 12, 4, 7
rng = np.random.default_rng(0)
X, WEIGHTS = (rng.normal(size=(2, QUERIES, WIDTH)).astype(np.float32) for _ in range(2))
SOURCE = rng.normal(size=(2, PIXELS, WIDTH)).astype(np.float32)
SEGMENTS = (np.arange(PIXELS) < np.asarray([[7], [5]])).astype(np.int32)
part = functools.partial
WIRING = part(PostNorm, norm=part(LayerNorm, epsilon=1e-5))


def as_theirs(block):
  """The arrays of a block, or of its gradient, by the names of transformers."""
  arrays = {}
  for ours, theirs in (('mixer', 'self_attn'), ('cross', 'encoder_attn')):
    attention = getattr(block, ours)
    for name in ('q', 'k', 'v', 'out'):
      projection, other = getattr(attention, name), f'{theirs}.{name[0]}_proj'
      arrays[f'{other}.weight'] = np.reshape(projection.kernel[...], (WIDTH, WIDTH)).T
      arrays[f'{other}.bias'] = np.reshape(projection.bias[...], WIDTH)
  for ours, theirs in (('up', 'fc1'), ('down', 'fc2')):
    projection = getattr(block.feed_forward, ours)
    arrays[f'mlp.{theirs}.weight'] = np.asarray(projection.kernel[...]).T
    arrays[f'mlp.{theirs}.bias'] = np.asarray(projection.bias[...])
  norms = 'self_attn_layer_norm', 'encoder_attn_layer_norm', 'final_layer_norm'
  for name, theirs in zip(block.names, norms, strict=True):
    norm = getattr(block, f'{name}_wiring').norm
    arrays[f'{theirs}.weight'], arrays[f'{theirs}.bias'] = norm.scale[...], norm.bias[...]
  return arrays


@pytest.mark.nightly
def test_a_decoder_layer_of_detr_equals_transformers(compared):
  from transformers import DetrConfig, ResNetConfig
  from transformers.models.detr.modeling_detr import DetrDecoderLayer

  attention = part(MultiHeadAttention, num_heads=HEADS)
  feed_forward = part(MLP, hidden_dim=HIDDEN, activation=relu)
  parts = {'mixer': attention, 'cross': attention, 'feed_forward': feed_forward}
  block = moved(Block(WIDTH, **parts, wiring=WIRING, rngs=nnx.Rngs(0)), scale=0.1)
  positions = part(AddressPositions, WIDTH, positions=part(LearnedPositions, max_length=PIXELS))
  own, of_source = (moved(positions(rngs=nnx.Rngs(seed)), scale=0.5) for seed in (1, 2))
  backbone = ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1], layer_type='basic')
  sizes = {'d_model': WIDTH, 'decoder_attention_heads': HEADS, 'decoder_ffn_dim': HIDDEN}
  settings = {'dropout': 0.0, 'use_timm_backbone': False, 'backbone_config': backbone}
  config = DetrConfig(
    **sizes, **settings, activation_function='relu', use_pretrained_backbone=False
  )
  config._attn_implementation = 'eager'
  theirs = DetrDecoderLayer(config)
  parameters = dict(theirs.named_parameters())
  assert parameters.keys() == as_theirs(block).keys()
  with torch.no_grad():
    for name, array in as_theirs(block).items():
      parameters[name].copy_(torch.tensor(np.array(array)))
  tables = [np.asarray(e.positions.table[...]) for e in (own, of_source)]
  inputs = x, source, q_table, k_table = [
    torch.tensor(a, requires_grad=True) for a in (X, SOURCE, tables[0], tables[1])
  ]
  mask = torch.tensor(np.where(SEGMENTS[:, None, None] > 0, 0, -1e9).astype(np.float32))
  expected = theirs(
    x,
    spatial_position_embeddings=k_table[None],
    object_queries_position_embeddings=q_table[None, :QUERIES],
    encoder_hidden_states=source,
    encoder_attention_mask=mask,
  )
  expected = expected[0] if isinstance(expected, tuple) else expected
  (expected * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(block, x, source, own, of_source):
    tokens = Tokens.row(PIXELS, segments=jnp.asarray(SEGMENTS))
    call = Call(Tokens.row(QUERIES), Full(), own, SourceSequence(source, tokens, of_source))
    y = block(x, call).x
    return (y * WEIGHTS).sum(), y

  gradients, y = jax.grad(weighted, range(5), has_aux=True)(block, X, SOURCE, own, of_source)
  reference = 'transformers DetrDecoderLayer'
  compared('DETR decoder layer', reference, y, expected.detach().numpy())
  found = as_theirs(gradients[0])
  for name, gradient in found.items():
    # Softmax ignores a constant of the scores: the gradient of the key bias is zero, whose relative size is noise.
    system = None if name.endswith('k_proj.bias') else 'DETR decoder layer'
    compared(system, reference, gradient, parameters[name].grad.numpy(), of='gradients')
  tables = [e.positions.table[...] for e in gradients[3:]]
  for gradient, tensor in zip([*gradients[1:3], *tables], inputs, strict=True):
    compared('DETR decoder layer', reference, gradient, tensor.grad.numpy(), of='gradients')


MODEL = Path(__file__).parents[2] / 'configs' / 'models' / 'small_detr.gin'
# Not square, so that rows and columns differ; the features are 4 x 3.
HEIGHT, SIDE = 32, 24
OVERRIDES = [
  f'd_model={WIDTH}',
  f'num_classes={CLASSES}',
  f'num_queries={OBJECTS}',
  'width=4',
  f'MLP.hidden_dim={HIDDEN}',
  f'MultiHeadAttention.num_heads={HEADS}',
  'LayerNorm.epsilon=1e-5',
  'GridStem.channels=3',
  "GridStem.parts={'convolution': @stem/GridConvolution, 'pool': @MaxPool}",
  'stem/GridConvolution.kernel_size=7',
  'GridConvolution.norm=@FrozenBatchNorm',
]


def renamed(own):
  """Our parameters. Scales, biases and statistics of batch normalisation are no parameters of theirs."""
  for name in ('weight', 'bias'):
    own.left |= {key: array for key, array in own.statistics.items() if key.endswith(name)}
  body = 'model.backbone.model'
  stem = f'{body}.embedder.embedder'
  normalised(own, 'backbone.embedding.convolution', f'{stem}.convolution', f'{stem}.normalization')
  stack, stages = 'backbone.body.stack', f'{body}.encoder.stages'
  for stage, layer in ((0, 0), (1, 1)):
    own.stacked(
      f'{stack}.stages.{stage}.blocks.0',
      lambda own, name, their: in_transformers_resnet(own, f'{name}.mixer', their),
      [f'{stages}.{stage}.layers.{layer}.layer'],
    )
  in_transformers_resnet(own, f'{stack}.merges.0', f'{stages}.1.layers.0.layer')
  shortcut = f'{stages}.1.layers.0.shortcut'
  normalised(
    own, f'{stack}.merges.0.shortcut', f'{shortcut}.convolution', f'{shortcut}.normalization'
  )
  kernel = own.left.pop('model.input_projection.weight')
  own.found['projection.kernel'] = kernel[:, :, 0, 0].T
  own.take('projection.bias', 'model.input_projection.bias')
  own.take('decoder.encoding.positions.table', 'model.query_position_embeddings.weight')
  for side, sublayers in (('encoder', ('mixer',)), ('decoder', ('mixer', 'cross'))):
    own.stacked(
      f'{side}.stack.blocks.0',
      functools.partial(transformer_layer, sublayers=sublayers),
      [f'model.{side}.layers.{i}' for i in range(2)],
    )
  own.norm('norm', 'model.decoder.layernorm')
  own.linear('box_head.classes.0', 'class_labels_classifier')
  for i in range(3):
    own.linear(f'box_head.boxes.{i}', f'bbox_predictor.layers.{i}')


def transformer_layer(own, name, their, sublayers):
  for ours, theirs in zip(sublayers, ('self_attn', 'encoder_attn'), strict=False):
    for short in 'qkv':
      own.linear(f'{name}.{ours}.{short}', f'{their}.{theirs}.{short}_proj', outputs=(HEADS, -1))
    own.linear(f'{name}.{ours}.out', f'{their}.{theirs}.o_proj', inputs=(HEADS, -1))
    own.norm(f'{name}.{ours}_wiring.norm', f'{their}.{theirs}_layer_norm')
  own.linear(f'{name}.feed_forward.up', f'{their}.mlp.fc1')
  own.linear(f'{name}.feed_forward.down', f'{their}.mlp.fc2')
  own.norm(f'{name}.feed_forward_wiring.norm', f'{their}.final_layer_norm')


def detr_of_transformers():
  config = transformers.DetrConfig(
    d_model=WIDTH,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=HIDDEN,
    decoder_ffn_dim=HIDDEN,
    num_queries=OBJECTS,
    num_labels=CLASSES,
    dropout=0.0,
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone_config=transformers.ResNetConfig(
      embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type='basic'
    ),
  )
  return transformers.DetrForObjectDetection(config)


def with_losses_of_all_layers(model, pixel_values, labels):
  """The outputs and losses of all layers, as the authors' code has them: the norm of a layer is that
  of its prediction only.

  `DetrConfig.auxiliary_loss` of transformers also gives the normalised vectors to the next layer.
  """
  hidden = []
  hooks = [
    layer.register_forward_hook(lambda layer, inputs, output: hidden.append(output))
    for layer in model.model.decoder.layers
  ]
  out = model(pixel_values=pixel_values)
  for hook in hooks:
    hook.remove()
  hidden = model.model.decoder.layernorm(torch.stack(hidden))
  classes, boxes = model.class_labels_classifier(hidden), model.bbox_predictor(hidden).sigmoid()
  torch.testing.assert_close(classes[-1], out.logits)
  config = types.SimpleNamespace(**{**vars(model.config), 'auxiliary_loss': True})
  config.num_labels = CLASSES
  loss, losses, others = model.loss_function(
    out.logits, labels, model.device, out.pred_boxes, config, classes, boxes
  )
  return types.SimpleNamespace(
    loss=loss,
    loss_dict=losses,
    auxiliary_outputs=others,
    logits=out.logits,
    pred_boxes=out.pred_boxes,
  )


def test_outputs_matches_losses_and_gradients_equal_detr_of_transformers(compared, perturbed):
  """Of both layers, with a frozen ResNet of two stages, whose statistics are perturbed."""
  model = detr_of_transformers().requires_grad_(True)
  model = perturbed(model, 0.1)
  generator = torch.Generator().manual_seed(1)
  statistics = {}
  for name, buffer in model.named_buffers():
    if name.startswith('model.backbone'):
      buffer.add_(0.1 * torch.randn(buffer.shape, generator=generator).abs())
      statistics[name] = jnp.asarray(buffer.numpy())
  own = task(HEIGHT, SIDE)
  shapes = read_config([MODEL], overrides=OVERRIDES).build().shapes()
  names = 'DETR', 'transformers DetrForObjectDetection'
  slopes = check_detector(
    compared,
    *names,
    torch,
    own,
    shapes,
    renamed,
    model,
    functools.partial(with_losses_of_all_layers, model),
    statistics,
  )
  # The queries of the first layer are zeros, so that their self-attention is that of equal values.
  without = [name for name, slope in slopes.items() if not jnp.abs(slope).max() > 0]
  assert all('decoder.layers.0.self_attn' in name for name in without), without
