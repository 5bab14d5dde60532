"""Residual connections against the packages of their authors, or against their equations in PyTorch in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  Call,
  Full,
  LayerNorm,
  MultiHeadAttention,
  NoNorm,
  PreNorm,
  ResiDual,
  ReZero,
  Tokens,
  relu,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Encoder, Stack
from t2x.testing.subject import perturbed

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

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


NORM = functools.partial(LayerNorm, epsilon=1e-5)
SEGMENTS = np.asarray([[1] * LENGTH, [1] * 7 + [0] * 3])


class Equations:
  """Layers of an encoder in PyTorch in float64, with the parameters of a body of t2x by name."""

  def __init__(self, body):
    self.parameters = {
      name: torch.tensor(np.asarray(leaf, np.float64), requires_grad=True)
      for name, leaf in named_leaves(body)
    }

  def norm(self, x, name, layer=()):
    scale, bias = (self.parameters[f'{name}.{part}'][layer] for part in ('scale', 'bias'))
    return torch.nn.functional.layer_norm(x, (WIDTH,), scale, bias, 1e-5)

  def of_layer(self, layer):
    """Returns attention, feed-forward layer and norms of a layer."""

    def parameter(name):
      return self.parameters[f'stack.blocks.0.{name}'][layer]

    def attention(x):
      q, k, v = (
        torch.einsum('bld,dhe->bhle', x, parameter(f'mixer.{n}.kernel'))
        + parameter(f'mixer.{n}.bias')[:, None]
        for n in 'qkv'
      )
      present = torch.tensor(SEGMENTS > 0)[:, None, None]
      y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=present)
      out = torch.einsum('bhle,hed->bld', y, parameter('mixer.out.kernel'))
      return out + parameter('mixer.out.bias')

    def feed_forward(x):
      h = x @ parameter('feed_forward.up.kernel') + parameter('feed_forward.up.bias')
      return h.relu() @ parameter('feed_forward.down.kernel') + parameter('feed_forward.down.bias')

    def norm(x, sublayer):
      return self.norm(x, f'stack.blocks.0.{sublayer}_wiring.norm', layer)

    return {'mixer': attention, 'feed_forward': feed_forward}, norm


def residual_pair(equations, x):
  """Xie et al. 2023, equation 3, and the sum of both streams after the last layer."""
  d = x
  for layer in range(3):
    functions, norm = equations.of_layer(layer)
    for name, function in functions.items():
      y = function(x)
      d = d + y
      x = norm(x + y, name)
  return x + equations.norm(d, 'stack.ends.norm')


def first_without_norm(equations, x):
  for layer in range(3):
    functions, norm = equations.of_layer(layer)
    x = x + functions['mixer'](x)
    x = x + functions['feed_forward'](norm(x, 'feed_forward'))
  return equations.norm(x, 'final_norm')


@pytest.mark.parametrize(
  ('system', 'wiring', 'equation'),
  [
    ('ResiDual', functools.partial(ResiDual, norm=NORM), residual_pair),
    (
      None,
      {'mixer': NoNorm, 'feed_forward': functools.partial(PreNorm, norm=NORM)},
      first_without_norm,
    ),
  ],
)
def test_bodies_equal_the_equations_of_their_wirings(system, wiring, equation, compared):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
    feed_forward=functools.partial(MLP, hidden_dim=HIDDEN, activation=relu),
    wiring=wiring,
  )
  stack = functools.partial(Stack, num_layers=3, blocks=[block])
  settings = {'final_norm': NORM} if equation is first_without_norm else {}
  body = perturbed(Encoder(WIDTH, stack=stack, **settings, rngs=nnx.Rngs(0)), scale=0.1)
  equations = Equations(body)
  x = torch.tensor(X.astype(np.float64), requires_grad=True)
  weights = WEIGHTS * (SEGMENTS > 0)[:, :, None]
  y = equation(equations, x)
  (y * torch.tensor(weights)).sum().backward()

  def weighted(body, x):
    y = body(x, tokens=Tokens.row(LENGTH, segments=jnp.asarray(SEGMENTS))).x
    return (y * weights).sum(), y

  gradients, ours = jax.jit(jax.grad(weighted, (0, 1), has_aux=True))(body, X)
  present = SEGMENTS > 0

  def check(ours, wanted, of='outputs', atol=1e-5, rtol=0.0):
    if system is None:
      np.testing.assert_allclose(ours, wanted, rtol=rtol, atol=atol)
    else:
      compared(system, 'torch, float64', ours, wanted, rtol=rtol, atol=atol, of=of)

  check(ours[present], y.detach().numpy()[present])
  check(gradients[1], x.grad.numpy(), 'gradients', rtol=1e-5)
  for name, gradient in named_leaves(gradients[0]):
    wanted = equations.parameters[name].grad.numpy()
    bound = 1e-5 * max(1.0, np.abs(wanted).max())
    check(gradient, wanted, 'gradients', bound)
