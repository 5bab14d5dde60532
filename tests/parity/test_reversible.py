"""The reversible stack against the Reformer of transformers, whose backward pass also inverts its layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import MLP, Causal, LayerNorm, MultiHeadAttention, PreNorm, relu
from t2x.models import Block, Decoder, ReversibleStack, concatenated_streams

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

part = functools.partial
WIDTH, HEADS, HIDDEN, LENGTH, NUM_LAYERS = 16, 4, 24, 10, 3
EPSILON = 1e-6
SYSTEM = 'reversible layers', 'transformers ReformerEncoder'


def reformer():
  """Reformer layers of full attention: their chunk is the row. In float64, with random parameters."""
  from transformers import ReformerConfig
  from transformers.models.reformer.modeling_reformer import ReformerEncoder

  config = ReformerConfig(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    attention_head_size=WIDTH // HEADS,
    attn_layers=['local'] * NUM_LAYERS,
    local_attn_chunk_length=LENGTH,
    feed_forward_size=HIDDEN,
    hidden_act='relu',
    layer_norm_eps=EPSILON,
    hidden_dropout_prob=0.0,
    local_attention_probs_dropout_prob=0.0,
    is_decoder=True,
  )
  torch.manual_seed(0)
  encoder = ReformerEncoder(config).double().train()
  for name, parameter in encoder.named_parameters():
    mean = 1.0 if 'layer_norm.weight' in name else 0.0
    torch.nn.init.normal_(parameter, mean, 0.3)
  return encoder


def norm(ours, theirs):
  return [(ours.scale, theirs.weight, ()), (ours.bias, theirs.bias, ())]


def linear(ours, theirs, shape=None):
  pairs = [(ours.kernel, theirs.weight, shape)]
  return pairs if ours.bias is None else [*pairs, (ours.bias, theirs.bias, ())]


def pairs(body, encoder, layer):
  """(our stacked parameter, that of a layer of theirs, the shape of a matrix) for all parameters of the layer."""
  block, theirs = body.stack.blocks[0], encoder.layers[layer]
  attention, feed_forward = theirs.attention, theirs.feed_forward
  heads = WIDTH, HEADS, WIDTH // HEADS
  return [
    *norm(block.mixer_wiring.norm, attention.layer_norm),
    *linear(block.mixer.q, attention.self_attention.query, heads),
    *linear(block.mixer.k, attention.self_attention.key, heads),
    *linear(block.mixer.v, attention.self_attention.value, heads),
    *linear(block.mixer.out, attention.output.dense, (*heads[1:], WIDTH)),
    *norm(block.feed_forward_wiring.norm, feed_forward.layer_norm),
    *linear(block.feed_forward.up, feed_forward.dense.dense, (WIDTH, HIDDEN)),
    *linear(block.feed_forward.down, feed_forward.output.dense, (HIDDEN, WIDTH)),
  ]


def converted(tensor, shape):
  array = tensor.detach().numpy()
  return array.T.reshape(shape) if shape else array


@pytest.fixture
def check(compared):
  def close(ours, theirs, of='gradients'):
    assert np.linalg.norm(ours - theirs) < 2e-6 * np.linalg.norm(theirs)
    compared(*SYSTEM, ours, theirs, atol=2e-6 * np.linalg.norm(theirs), of=of)

  return close


def decoder():
  ln = part(LayerNorm, epsilon=EPSILON)
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=HEADS, use_bias=False, out_bias=False),
    feed_forward=part(MLP, hidden_dim=HIDDEN, activation=relu),
    wiring=part(PreNorm, norm=ln),
  )
  stack = part(ReversibleStack, num_layers=NUM_LAYERS, blocks=[block], merge=concatenated_streams)
  return Decoder(WIDTH, stack=stack, final_norm=ln, pattern=Causal(), rngs=nnx.Rngs(0))


def test_outputs_and_gradients_equal_those_of_the_reformer_of_transformers(check):
  encoder = reformer()
  x = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32).astype(np.float64)
  weights = np.random.default_rng(1).normal(size=(2, LENGTH, 2 * WIDTH))
  theirs_x = torch.tensor(x, requires_grad=True)
  theirs = encoder(theirs_x).hidden_states
  (theirs * torch.tensor(weights)).sum().backward()
  body = decoder()
  for layer in range(NUM_LAYERS):
    for ours, tensor, shape in pairs(body, encoder, layer):
      ours[...] = ours[...].at[layer].set(converted(tensor, shape))
  for ours, tensor, _ in norm(body.final_norm, encoder.layer_norm):
    ours[...] = jnp.asarray(tensor.detach().numpy(), jnp.float32)

  def loss(body, x):
    y = body(x).x
    return (y * weights).sum(), y

  gradient = jax.value_and_grad(loss, (0, 1), has_aux=True)
  (_, y), (d_body, d_x) = gradient(body, jnp.asarray(x, jnp.float32))
  check(y, theirs.detach().numpy(), 'outputs')
  check(d_x, theirs_x.grad.numpy())
  for layer in range(NUM_LAYERS):
    for ours, tensor, shape in pairs(d_body, encoder, layer):
      check(ours[...][layer], converted(tensor.grad, shape))
