"""Convolutions over a grid of tokens, norms and pooling (ResNet, https://arxiv.org/abs/1512.03385;
squeeze-and-excitation, https://arxiv.org/abs/1709.01507; ConvNeXt, https://arxiv.org/abs/2201.03545).

Parts are `Merge`s: each may change the width of the tokens and their grid. `GridStem` embeds an image by a sequence of
them, `GridBranch` is a sequence inside a residual connection, and `ResidualMerge` begins a stage.
"""

import functools
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Epsilon, Positive, Size
from t2x.layers.building import build_context
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes, with_rank
from t2x.layers.initializers import ones, variance_scaling, zeros
from t2x.layers.interfaces import Call, Merge, Norm, Result
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.products import broadcast
from t2x.layers.rules import Fixed
from t2x.layers.tokens import Tokens
from t2x.layers.vision.convolve import convolve
from t2x.layers.vision.grids import filled_grid

__all__ = [
  'FrozenBatchNorm',
  'GridConvolution',
  'GridNorm',
  'GroupNorm',
  'MaxPool',
  'SqueezeExcitation',
]

Grid = Float[Array, 'batch rows columns d_model']


@runtime_checkable
class GridNorm(Protocol):
  """Normalisation of a grid of tokens, such as `GroupNorm`, or of each of its tokens, such as `LayerNorm`. Built as
  `norm(size, rngs=rngs)`."""

  def __call__(self, x: Grid) -> Grid:
    """Returns the normalised vectors in the dtype of `x`."""
    ...


class _Affine(nnx.Module):
  """Scale and bias of each feature."""

  def __init__(self, d_model: int, *, rngs: nnx.Rngs):
    make = functools.partial(param, kind='vector', keep_float32=True)
    axes = (build_context().axis,)
    self.scale = make(ones(), (d_model,), axes, rngs)
    self.bias = make(zeros(), (d_model,), axes, rngs)

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    scale, bias = (
      with_rank(one[...].astype(Dtypes.reductions), x.ndim) for one in (self.scale, self.bias)
    )
    return (x.astype(Dtypes.reductions) * scale + bias).astype(x.dtype)


class FrozenBatchNorm(_Affine):
  """Batch normalisation as it is after training (https://arxiv.org/abs/1502.03167): the running statistics of an
  imported model normalise each feature and do not change; its scale and bias are trained.

  Args:
    d_model: size of the last dimension.
    epsilon: added to the variance.
  """

  implements: tuple[type, ...] = (Norm, GridNorm)

  def __init__(self, d_model: int, *, epsilon: Epsilon = 1e-5, rngs: nnx.Rngs):
    super().__init__(d_model, rngs=rngs)
    self.epsilon = epsilon
    fixed = functools.partial(param, kind='rule', rule=Fixed())
    axes = (build_context().axis,)
    self.mean = fixed(zeros(), (d_model,), axes, rngs)
    self.variance = fixed(ones(), (d_model,), axes, rngs)

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    mean, variance = (
      with_rank(jax.lax.stop_gradient(one[...]).astype(Dtypes.reductions), x.ndim)
      for one in (self.mean, self.variance)
    )
    y = (x.astype(Dtypes.reductions) - mean) * jax.lax.rsqrt(variance + self.epsilon)
    return super().__call__(y).astype(x.dtype)


class GroupNorm(_Affine):
  """Normalises each group of features over the whole grid of a row (https://arxiv.org/abs/1803.08494), then
  multiplies by a scale and adds a bias. Unlike batch normalisation it has no running statistics, and rows do
  not affect each other.

  Args:
    d_model: size of the last dimension.
    num_groups: number of groups of neighbouring features.
    epsilon: added to the variance.

  Raises:
    UserError: num_groups does not divide d_model.
  """

  implements = (GridNorm,)

  def __init__(
    self, d_model: int, *, num_groups: Size = 32, epsilon: Epsilon = 1e-5, rngs: nnx.Rngs
  ):
    if d_model % num_groups:
      raise UserError(f'GroupNorm.num_groups = {num_groups} does not divide the width {d_model}')
    super().__init__(d_model, rngs=rngs)
    self.num_groups, self.epsilon = num_groups, epsilon

  def __call__(self, x: Grid) -> Grid:
    y = x.astype(Dtypes.reductions)
    y = y.reshape(*x.shape[:3], self.num_groups, -1)
    y = y - y.mean(axis=(1, 2, 4), keepdims=True)
    variance = jnp.square(y).mean(axis=(1, 2, 4), keepdims=True)
    y = y * jax.lax.rsqrt(variance + self.epsilon)
    return super().__call__(y.reshape(x.shape)).astype(x.dtype)


class _GridPart(nnx.Module):
  """Base class of parts whose output is a grid of vectors; subclasses define `transform`."""

  implements = (Merge,)
  keeps_tokens = False
  num_merged: int
  output_dim: int

  def transform(self, x: Grid) -> Float[Array, 'batch out_rows out_columns output_dim']:
    raise NotImplementedError

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Result:
    """Returns the vectors row by row from the top left, and their metadata.

    Raises:
      UserError: the tokens do not fill a grid of rows and columns, or are packed.
    """
    sides = filled_grid(self, call.tokens)
    y = self.transform(x.reshape(len(x), *sides, -1))
    tokens = Tokens.row(y.shape[1] * y.shape[2], grid=y.shape[1:3])
    y = y.reshape(len(y), -1, y.shape[-1])
    return Result(constrain(y, 'batch', 'length', 'embed'), tokens=tokens)


class GridConvolution(_GridPart):
  """Convolution over a grid, with optional norms before and after it and an activation.

  Zeros surround the grid: half of an odd kernel on each side, as in PyTorch ('SAME' of XLA differs with a stride), and
  none for an even kernel, which covers whole patches: rows and columns that fill no patch are left out, as there.

  Args:
    d_model: width of the input.
    width: width of the output; None: d_model * factor.
    factor: width of the output divided by that of the input, so that all stages of a network can share a part.
    kernel_size: number of rows and columns of the kernel.
    stride: distance between the centres of neighbouring outputs.
    group_size: number of neighbouring input features that an output feature depends on (ResNeXt,
      https://arxiv.org/abs/1611.05431); 1: depthwise. None: all.
    input_norm: builds the norm of the input; None: no norm.
    norm: builds the norm of the output; None: no norm.
    activation: activation after the norm; None: none.
    use_bias: whether the convolution has a bias.
    init: initialiser of the kernel.

  Raises:
    UserError: width and factor are both set, the width is not a whole number, group_size does not divide d_model, or
      the number of groups does not divide the width.
  """

  def __init__(
    self,
    d_model: int,
    *,
    width: Size | None = None,
    factor: Positive = 1.0,
    kernel_size: Size = 3,
    stride: Size = 1,
    group_size: Size | None = None,
    input_norm: Callable[..., Norm | GridNorm] | None = None,
    norm: Callable[..., Norm | GridNorm] | None = None,
    activation: Callable[[Array], Array] | None = None,
    use_bias: bool = True,
    init: Initializer = variance_scaling(2.0, 'fan_in', 'normal'),
    rngs: nnx.Rngs,
  ):
    if width is not None and factor != 1:
      raise UserError(
        f'GridConvolution.width = {width} and GridConvolution.factor = {factor} both set the width: leave one out'
      )
    if factor * d_model % 1:
      raise UserError(
        f'GridConvolution.factor = {factor} times the width {d_model} is not a whole number'
      )
    group_size = group_size or d_model
    self.output_dim = width or int(factor * d_model)
    self.num_groups, rest = divmod(d_model, group_size)
    if rest or self.output_dim % self.num_groups:
      raise UserError(
        f'GridConvolution.group_size = {group_size} must divide the width {d_model} of the input into groups whose '
        f'number divides that of the output, {self.output_dim}'
      )
    self.stride, self.num_merged = stride, stride**2
    self.activation = activation
    self.input_norm: Norm | None = input_norm and input_norm(d_model, rngs=rngs)
    self.convolution = Linear(
      (kernel_size, kernel_size, group_size),
      (self.output_dim,),
      ('taps', 'taps', 'channels', 'embed'),
      init=init,
      use_bias=use_bias,
      kind='filter',
      rngs=rngs,
    )
    self.norm: Norm | None = norm and norm(self.output_dim, rngs=rngs)

  def transform(self, x):
    x = x if self.input_norm is None else self.input_norm(x)
    kernel = self.convolution.kernel[...]
    y = convolve(x.astype(kernel.dtype), kernel, self.stride)
    bias = self.convolution.bias
    if bias is not None:
      y = y + broadcast(bias[...], y.shape, y.dtype)
    y = y if self.norm is None else self.norm(y)
    return y if self.activation is None else self.activation(y)


class MaxPool(_GridPart):
  """Largest value of each feature in windows of a grid; nothing beyond the grid is one.

  Args:
    d_model: width of the input and output.
    size: number of rows and columns of a window; odd.
    stride: distance between the centres of neighbouring windows.

  Raises:
    UserError: size is even.
  """

  def __init__(self, d_model: int, *, size: Size = 3, stride: Size = 2, rngs: nnx.Rngs):
    if size % 2 == 0:
      raise UserError(f'MaxPool.size = {size}: must be odd')
    self.output_dim, self.size, self.stride = d_model, size, stride
    self.num_merged = stride**2

  def transform(self, x):
    around = self.size // 2
    padding = [(0, 0), (around, around), (around, around), (0, 0)]
    window, strides = ((1, n, n, 1) for n in (self.size, self.stride))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)


class SqueezeExcitation(_GridPart):
  """Factor of each feature between 0 and 1, computed from the mean over the grid by two layers
  (https://arxiv.org/abs/1709.01507, section 3).

  Args:
    d_model: width of the input and output.
    reduction: d_model divided by the width between the layers.
    init: initialiser of both layers.

  Raises:
    UserError: reduction does not divide d_model.
  """

  num_merged = 1

  def __init__(
    self,
    d_model: int,
    *,
    reduction: Size = 16,
    init: Initializer = variance_scaling(2.0, 'fan_in', 'normal'),
    rngs: nnx.Rngs,
  ):
    if d_model % reduction:
      raise UserError(
        f'SqueezeExcitation.reduction = {reduction} does not divide the width {d_model}'
      )
    self.output_dim, hidden_dim = d_model, d_model // reduction
    linear = functools.partial(Linear, init=init, rngs=rngs)
    self.squeeze = linear((d_model,), (hidden_dim,), ('embed', 'mlp'))
    self.excite = linear((hidden_dim,), (d_model,), ('mlp', 'embed'))

  def transform(self, x):
    hidden = jax.nn.relu(self.squeeze(x.mean(axis=(1, 2))))
    return x * jax.nn.sigmoid(self.excite(hidden))[:, None, None]
