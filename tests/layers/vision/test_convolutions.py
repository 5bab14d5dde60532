"""Convolutions over grids: norms, groups, pooling, refusals. (Networks: parity/test_convolutional_networks.)"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.step import plain_operations
from t2x.layers import (
  ActivatedResidual,
  Call,
  Causal,
  GridBranch,
  GridConvolution,
  GridStem,
  GroupNorm,
  LayerNorm,
  LayerScale,
  MaxPool,
  ResidualMerge,
  Result,
  SqueezeExcitation,
  Tokens,
)

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
part = functools.partial
SIDES, WIDTH = (5, 4), 6
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 20, WIDTH)), jnp.float32)
CALL = Call(Tokens.row(20, grid=SIDES))


def built(build, width=WIDTH):
  """The part with every parameter perturbed."""
  module = build(width, rngs=nnx.Rngs(0))
  keys = nnx.Rngs(1)

  def moved(x):
    return x + 0.3 * jax.random.normal(keys.params(), x.shape)

  return jax.tree.map(moved, module)


def as_image(x, sides=SIDES):
  """[batch, features, rows, columns], as in PyTorch."""
  return torch.tensor(np.asarray(x).reshape(len(x), *sides, -1).transpose(0, 3, 1, 2))


def test_a_grouped_convolution_with_a_stride_equals_torch():
  layer = built(part(GridConvolution, group_size=3, width=4, stride=2))
  image = as_image(X)
  kernel = torch.tensor(np.asarray(layer.convolution.kernel[...]).transpose(3, 2, 0, 1))
  bias = torch.tensor(np.asarray(layer.convolution.bias[...]))
  expected = torch.nn.functional.conv2d(image, kernel, bias, stride=2, padding=1, groups=2)
  result = layer(X, CALL)
  assert result.tokens.grid == (3, 2)
  np.testing.assert_allclose(as_image(result.x, (3, 2)), expected, rtol=0, atol=1e-6)


def test_an_even_kernel_covers_patches():
  layer = built(part(GridConvolution, kernel_size=2, stride=2, factor=2.0))
  result = layer(X, CALL)
  assert (result.tokens.grid, result.x.shape) == ((2, 2), (2, 4, 12))
  # The last row of five is in no patch.
  grid = X.reshape(2, *SIDES, WIDTH)[:, :4].reshape(2, 2, 2, 2, 2, WIDTH).swapaxes(2, 3)
  kernel = layer.convolution.kernel[...].reshape(-1, 12)
  bias = np.asarray(layer.convolution.bias[...])
  expected = np.asarray(grid.reshape(2, 4, -1) @ kernel) + bias
  np.testing.assert_allclose(result.x, expected, rtol=0, atol=1e-5)


def test_norms_and_activation_surround_the_convolution():
  plain = built(GridConvolution)
  norm = built(part(GroupNorm, num_groups=3, epsilon=0.1))
  layer = built(part(GridConvolution, input_norm=LayerNorm, norm=LayerNorm, activation=jax.nn.relu))
  layer.convolution, layer.input_norm, layer.norm = plain.convolution, norm, norm

  def normalised(x):
    return norm(x.reshape(2, *SIDES, -1)).reshape(x.shape)

  expected = jax.nn.relu(normalised(plain(normalised(X), CALL).x))
  np.testing.assert_allclose(layer(X, CALL).x, expected, rtol=0, atol=1e-6)


def test_group_norm_equals_torch():
  norm = built(part(GroupNorm, num_groups=3, epsilon=0.1))
  image = as_image(3 * X + 1)
  scale, bias = (torch.tensor(np.asarray(a[...])) for a in (norm.scale, norm.bias))
  expected = torch.nn.functional.group_norm(image, 3, scale, bias, eps=0.1)
  got = norm((3 * X + 1).reshape(2, *SIDES, WIDTH))
  np.testing.assert_allclose(got, expected.permute(0, 2, 3, 1), rtol=0, atol=2e-6)


@pytest.mark.parametrize(('size', 'stride'), [(3, 2), (5, 1)])
def test_max_pool_equals_torch(size, stride):
  layer = MaxPool(WIDTH, size=size, stride=stride, rngs=nnx.Rngs(0))
  image = as_image(X - 5)
  expected = torch.nn.functional.max_pool2d(image, size, stride, padding=size // 2)
  got = layer(X - 5, CALL)
  np.testing.assert_array_equal(as_image(got.x, got.tokens.grid), expected)


@pytest.mark.parametrize(
  ('size', 'stride', 'group_size', 'width'),
  [(3, 1, 1, 6), (7, 1, 1, 6), (2, 2, 6, 4)],
)
def test_a_convolution_on_one_cpu_and_its_gradients_equal_torch_and_the_plain_operation(
  size, stride, group_size, width
):
  settings = {'kernel_size': size, 'stride': stride, 'group_size': group_size, 'width': width}
  layer = built(part(GridConvolution, **settings))
  sides = layer(X, CALL).tokens.grid
  weights = np.random.default_rng(1).normal(size=(2, sides[0] * sides[1], width))
  weights = weights.astype(np.float32)

  def loss(layer, x):
    return (layer(x, CALL).x * weights).sum()

  def plain(layer, x):
    with plain_operations():
      return loss(layer, x)

  gradient = jax.jit(jax.value_and_grad(loss, (0, 1)))
  other = jax.jit(jax.value_and_grad(plain, (0, 1)))
  assert 'stablehlo.convolution' not in gradient.lower(layer, X).as_text()
  assert 'stablehlo.convolution' in other.lower(layer, X).as_text()
  kernel = torch.tensor(np.asarray(layer.convolution.kernel[...]).transpose(3, 2, 0, 1)).double()
  bias = torch.tensor(np.asarray(layer.convolution.bias[...])).double()
  image = as_image(X).double()
  for tensor in (kernel, bias, image):
    tensor.requires_grad_()
  y = torch.nn.functional.conv2d(
    image, kernel, bias, stride, padding=size // 2 * (size % 2), groups=WIDTH // group_size
  )
  expected = (y * as_image(weights, sides)).sum()
  expected.backward()
  for function in (gradient, other):
    total, (changes, dx) = function(layer, X)
    found = changes.convolution
    np.testing.assert_allclose(total, expected.detach(), rtol=1e-5)
    np.testing.assert_allclose(as_image(dx), image.grad, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
      found.kernel[...].transpose(3, 2, 0, 1), kernel.grad, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(found.bias[...], bias.grad, rtol=1e-5, atol=1e-5)


def test_squeeze_and_excitation_has_one_factor_per_feature_and_row():
  layer = built(part(SqueezeExcitation, reduction=3))
  factors = layer(X, CALL).x / X
  mean = np.asarray(X, np.float64).mean(axis=1)
  (a, b), (c, d) = (
    (np.asarray(one.kernel[...], np.float64), np.asarray(one.bias[...], np.float64))
    for one in (layer.squeeze, layer.excite)
  )
  assert a.shape == (6, 2)
  expected = 1 / (1 + np.exp(-(np.maximum(mean @ a + b, 0) @ c + d)))
  np.testing.assert_allclose(
    factors, np.broadcast_to(expected[:, None], X.shape), rtol=1e-5, atol=0
  )


def test_a_residual_merge_is_the_activated_sum():
  layer = built(
    part(
      ResidualMerge,
      parts={'a': part(GridConvolution, stride=2), 'b': part(GridConvolution, width=3)},
      shortcut=part(GridConvolution, kernel_size=1, stride=2, factor=0.5),
      activation=jnp.tanh,
    )
  )
  result = layer(X, CALL)
  first = layer.a(X, CALL)
  inner = layer.b(first.x, dataclasses.replace(CALL, tokens=first.tokens)).x
  expected = jnp.tanh(inner + layer.shortcut(X, CALL).x)
  np.testing.assert_array_equal(result.x, expected)
  assert result.tokens.grid == (3, 2)
  assert (layer.output_dim, layer.num_merged) == (3, 4)


def test_wirings_without_norm():
  def sublayer(x):
    return Result(3 * x)

  activated = ActivatedResidual(WIDTH, activation=jnp.tanh, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(activated(X, sublayer).x, jnp.tanh(4 * X), rtol=1e-6)
  scaled = LayerScale(WIDTH, norm=None, initial_value=0.5, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(scaled(X, sublayer).x, 2.5 * X, rtol=1e-6)


BRANCH = {'convolution': GridConvolution}


@pytest.mark.parametrize(
  ('build', 'message'),
  [
    (part(GridConvolution, width=3, factor=2.0), 'both set the width'),
    (part(GridConvolution, factor=0.3), 'not a whole number'),
    (part(GridConvolution, group_size=4), 'group_size = 4 must divide'),
    (part(GridConvolution, group_size=1, width=3), 'divides that of the output, 3'),
    (part(GroupNorm, num_groups=4), 'num_groups = 4 does not divide the width 6'),
    (part(MaxPool, size=2), 'must be odd'),
    (part(SqueezeExcitation, reduction=4), 'reduction = 4 does not divide'),
    (part(GridBranch, parts={'a': part(GridConvolution, stride=2)}), 'begin the stage with'),
    (part(GridBranch, parts={'names': GridConvolution}), "cannot have the name 'names'"),
    (
      part(ResidualMerge, parts=BRANCH, shortcut=part(GridConvolution, stride=2)),
      'the same width and stride',
    ),
    (part(GridStem, parts=BRANCH), 'set the width of the last part'),
  ],
)
def test_settings_that_do_not_fit_are_refused(build, message):
  with pytest.raises(UserError, match=message):
    build(WIDTH, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'tokens': Tokens.row(20)}, 'needs one grid of tokens per row'),
    ({'tokens': Tokens.row(20, grid=(20,))}, 'needs rows and columns'),
    ({'tokens': Tokens.row(20, grid=(4, 4), num_extra=4)}, '4 before it'),
    ({'pattern': Causal()}, 'does not support the pattern'),
  ],
)
def test_rows_without_a_grid_and_patterns_are_refused(change, message):
  layer = GridBranch(WIDTH, parts=BRANCH, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=message):
    layer(X, dataclasses.replace(CALL, **change))


def test_a_stem_refuses_other_channels_and_generation_is_refused():
  stem = GridStem(8, parts={'a': part(GridConvolution, width=8)}, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='images of 1 channels'):
    stem(jnp.zeros((1, 4, 4, 1)))
  with pytest.raises(UserError, match='cannot decode token by token'):
    GridBranch(WIDTH, parts=BRANCH, rngs=nnx.Rngs(0)).init_cache(1, 4, jnp.float32)
