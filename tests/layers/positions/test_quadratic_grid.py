"""A convolution by attention heads, whose scores are quadratic in the offset, against that of PyTorch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Call, MultiHeadAttention, QuadraticGridBias, Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

ROWS, COLUMNS, WIDTH, KERNEL = 5, 6, 4, 3
TAPS = list(itertools.product(range(-1, 2), repeat=2))


def attention(kernel, sharpness):
  """Nine heads, each with the values of one tap of the kernel [outputs, inputs, 3, 3]."""
  part = MultiHeadAttention(WIDTH, num_heads=9, head_dim=WIDTH, use_bias=False, rngs=nnx.Rngs(0))
  part.q.kernel = part.q.kernel.replace(jnp.zeros_like(part.q.kernel[...]))
  part.v.kernel = part.v.kernel.replace(jnp.repeat(jnp.eye(WIDTH)[:, None], 9, axis=1))
  taps = kernel.reshape(WIDTH, WIDTH, 9).transpose(2, 1, 0)
  part.out.kernel = part.out.kernel.replace(jnp.asarray(taps))
  bias = QuadraticGridBias(WIDTH, num_heads=9, sharpness=sharpness, rngs=nnx.Rngs(0))
  bias.centres = bias.centres.replace(jnp.array(TAPS, jnp.float32))
  return part, bias


def test_nine_heads_become_a_convolution_as_their_scores_sharpen():
  """At the edge of the grid a head that looks beyond it sees the nearest patch."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, ROWS, COLUMNS, WIDTH)).astype(np.float32)
  kernel = rng.normal(size=(WIDTH, WIDTH, KERNEL, KERNEL)).astype(np.float32)
  edged = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode='edge').transpose(0, 3, 1, 2)
  wanted = torch.nn.functional.conv2d(torch.tensor(edged), torch.tensor(kernel))
  wanted = wanted.numpy().transpose(0, 2, 3, 1)
  tokens = Tokens.row(ROWS * COLUMNS, grid=(ROWS, COLUMNS))
  errors = []
  for sharpness in (1.0, 4.0, 30.0):
    part, bias = attention(kernel, sharpness)
    y = part(jnp.asarray(images.reshape(2, -1, WIDTH)), Call(tokens, encoding=bias)).x
    errors.append(np.abs(y.reshape(wanted.shape) - wanted).max())
  assert errors[0] > errors[1] > errors[2]
  assert errors[2] < 1e-5 * np.abs(wanted).max()


def test_centres_and_sharpness_have_the_gradient_of_the_formula():
  bias = QuadraticGridBias(WIDTH, num_heads=2, rngs=nnx.Rngs(1))
  tokens = Tokens.row(6, grid=(2, 3))
  weights = np.random.default_rng(0).normal(size=(2, 6, 6))

  def loss(bias):
    return (bias.scores(None, None, tokens, tokens, scale=1.0)[0] * weights).sum()

  slopes = jax.grad(loss)(bias)
  places = np.array(list(itertools.product(range(2), range(3))), float)
  away = places[None, None] - places[None, :, None] - np.asarray(bias.centres[...])[:, None, None]
  wanted = 2 * np.einsum('h,hqk,hqkc->hc', np.asarray(bias.sharpness[...]), weights, away)
  np.testing.assert_allclose(slopes.centres[...], wanted, rtol=1e-5)
  wanted = -(weights * np.square(away).sum(-1)).sum((1, 2))
  np.testing.assert_allclose(slopes.sharpness[...], wanted, rtol=1e-5)


@pytest.mark.parametrize('fields', [{}, {'grid': (1, 3), 'num_extra': 1}])
def test_tokens_that_are_no_plain_grid_are_refused(fields):
  bias = QuadraticGridBias(WIDTH, num_heads=2, rngs=nnx.Rngs(0))
  tokens = Tokens.row(4, **fields)
  with pytest.raises(UserError, match='QuadraticGridBias has offsets in a grid'):
    bias.scores(None, None, tokens, tokens, scale=1.0)
