"""The decoder layer of DETR, whose keys of the source have addresses of their own, against transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.layers import (
  MLP,
  AddressPositions,
  Call,
  Full,
  LayerNorm,
  LearnedPositions,
  MultiHeadAttention,
  PostNorm,
  Source,
  Tokens,
  relu,
)
from t2x.models import Block

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
pytest.importorskip('transformers', reason="the extra 'parity' is not installed")
pytestmark = pytest.mark.nightly

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
    call = Call(Tokens.row(QUERIES), Full(), own, Source(source, tokens, of_source))
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
