"""Residual connections against the packages of their authors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import MLP, Call, Full, MultiHeadAttention, ReZero, Tokens, relu
from t2x.models import Block

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")

WIDTH, HEADS, HIDDEN, LENGTH = 24, 3, 40, 10
HEAD = WIDTH // HEADS
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)


def copied(theirs):
  """Our block with the weights of an RZTXEncoderLayer, whose two branches share one factor."""
  block = Block(
    WIDTH,
    mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
    feed_forward=functools.partial(MLP, hidden_dim=HIDDEN, activation=relu),
    wiring=ReZero,
    rngs=nnx.Rngs(0),
  )
  parameters = {name: p.detach().numpy() for name, p in theirs.named_parameters()}
  split = parameters['self_attn.in_proj_weight'].reshape(3, HEADS, HEAD, WIDTH)
  biases = parameters['self_attn.in_proj_bias'].reshape(3, HEADS, HEAD)
  for name, weight, bias in zip('qkv', split, biases, strict=True):
    projection = getattr(block.mixer, name)
    projection.kernel[...] = jnp.asarray(weight.transpose(2, 0, 1))
    projection.bias[...] = jnp.asarray(bias)
  out = parameters['self_attn.out_proj.weight'].T.reshape(HEADS, HEAD, WIDTH)
  block.mixer.out.kernel[...] = jnp.asarray(out)
  block.mixer.out.bias[...] = jnp.asarray(parameters['self_attn.out_proj.bias'])
  for ours, name in ((block.feed_forward.up, 'linear1'), (block.feed_forward.down, 'linear2')):
    ours.kernel[...] = jnp.asarray(parameters[f'{name}.weight'].T)
    ours.bias[...] = jnp.asarray(parameters[f'{name}.bias'])
  for wiring in block.wirings.values():
    wiring.alpha[...] = jnp.asarray(parameters['resweight'][0])
  return block


def test_rezero_equals_the_package_rezero(compared):
  package = pytest.importorskip(
    'rezero.transformer', reason="the extra 'references' is not installed"
  )
  torch.manual_seed(0)
  theirs = package.RZTXEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0)
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter += 0.3 * torch.randn_like(parameter)
    theirs.resweight.fill_(0.7)
  x = torch.tensor(X.swapaxes(0, 1), requires_grad=True)
  y = theirs(x).transpose(0, 1)
  (y * torch.tensor(WEIGHTS)).sum().backward()

  def weighted(block, x):
    y = block(x, Call(Tokens.row(LENGTH), Full())).x
    return (y * WEIGHTS).sum(), y

  (gradient, x_gradient), y_ours = jax.grad(weighted, (0, 1), has_aux=True)(copied(theirs), X)
  system, tolerance = ('ReZero', 'rezero RZTXEncoderLayer'), {'rtol': 1e-5, 'atol': 1e-5}
  compared(*system, y_ours, y.detach().numpy(), **tolerance)
  x_expected = x.grad.numpy().swapaxes(0, 1)
  compared(*system, x_gradient, x_expected, **tolerance, of='gradients')
  # The two branches share the package's factor, so its gradient is the sum of both.
  alphas = sum(float(wiring.alpha[...]) for wiring in gradient.wirings.values())
  alpha_expected = theirs.resweight.grad.item()
  compared(*system, alphas, alpha_expected, rtol=1e-5, atol=0, of='gradients')
