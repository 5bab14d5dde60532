"""A block with its sublayers side by side: against GPT-NeoX in transformers."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  Call,
  Causal,
  LayerNorm,
  MultiHeadAttention,
  RoPE,
  Tokens,
  gelu_exact,
)
from t2x.models import ParallelBlock

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytest.importorskip('transformers', reason="the extra 'references' is not installed")
from transformers import GPTNeoXConfig  # noqa: E402
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer, GPTNeoXRotaryEmbedding  # noqa: E402

WIDTH, HEADS, HIDDEN, LENGTH = 32, 4, 48, 7
EPSILON = 1e-5


def neox_layer():
  """A layer with random vectors, and the arguments that its attention needs."""
  config = GPTNeoXConfig(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    intermediate_size=HIDDEN,
    hidden_act='gelu',
    layer_norm_eps=EPSILON,
    use_parallel_residual=True,
    rope_parameters={'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    attn_implementation='eager',
  )
  torch.manual_seed(0)
  layer = GPTNeoXLayer(config, 0).eval()
  for parameter in layer.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
  return layer, GPTNeoXRotaryEmbedding(config)


def copied(block, layer):
  """Puts the weights of the layer into the block."""
  state = {name: value.detach().numpy() for name, value in layer.named_parameters()}
  # Query, key and value of a head follow each other.
  kernels = state.pop('attention.query_key_value.weight').reshape(HEADS, 3, -1, WIDTH)
  biases = state.pop('attention.query_key_value.bias').reshape(HEADS, 3, -1)
  values = {
    'mixer.out.kernel': state.pop('attention.dense.weight').T.reshape(HEADS, -1, WIDTH),
    'mixer.out.bias': state.pop('attention.dense.bias'),
    'feed_forward.up.kernel': state.pop('mlp.dense_h_to_4h.weight').T,
    'feed_forward.up.bias': state.pop('mlp.dense_h_to_4h.bias'),
    'feed_forward.down.kernel': state.pop('mlp.dense_4h_to_h.weight').T,
    'feed_forward.down.bias': state.pop('mlp.dense_4h_to_h.bias'),
    'norm.scale': state.pop('input_layernorm.weight'),
    'norm.bias': state.pop('input_layernorm.bias'),
    'feed_forward_norm.scale': state.pop('post_attention_layernorm.weight'),
    'feed_forward_norm.bias': state.pop('post_attention_layernorm.bias'),
  }
  for i, name in enumerate('qkv'):
    values[f'mixer.{name}.kernel'] = np.moveaxis(kernels[:, i], -1, 0)
    values[f'mixer.{name}.bias'] = biases[:, i]
  assert not state
  for path, value in values.items():
    part = block
    for name in path.split('.'):
      part = getattr(part, name)
    assert part.shape == value.shape, path
    part[...] = jnp.asarray(value)


def test_two_norms_side_by_side_are_the_layer_of_gpt_neox():
  layer, rotary = neox_layer()
  norm = functools.partial(LayerNorm, epsilon=EPSILON)
  block = ParallelBlock(
    WIDTH,
    mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
    feed_forward=functools.partial(MLP, hidden_dim=HIDDEN, activation=gelu_exact),
    norm=norm,
    feed_forward_norm=norm,
    encoding=functools.partial(RoPE, fraction=0.5),
    rngs=nnx.Rngs(0),
  )
  copied(block, layer)
  x = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
  mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
  with torch.no_grad():
    positions = rotary(torch.from_numpy(x), torch.arange(LENGTH)[None])
    expected = layer(torch.from_numpy(x), attention_mask=mask, position_embeddings=positions)
  y = block(jnp.asarray(x), Call(Tokens.row(LENGTH), Causal())).x
  np.testing.assert_allclose(y, expected.numpy(), atol=1e-5, rtol=1e-5)
