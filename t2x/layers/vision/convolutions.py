"""Convolutions over a grid of tokens, and the residual networks that consist of them (ResNet,
https://arxiv.org/abs/1512.03385; squeeze-and-excitation, https://arxiv.org/abs/1709.01507; ConvNeXt,
https://arxiv.org/abs/2201.03545).

Parts are `Merge`s: each may change the width of the tokens and their grid. `GridStem` embeds an image by a sequence of
them, `GridBranch` is a sequence inside a residual connection, and `ResidualMerge` begins a stage.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Epsilon, NonEmpty, Positive, Size
from t2x.layers.attention.head_projections import check_no_source
from t2x.layers.composites import set_part
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes, broadcast, with_rank
from t2x.layers.embeddings.inputs import Embedder, Input
from t2x.layers.initializers import build_context, ones, variance_scaling, zeros
from t2x.layers.interfaces import Call, Merge, Norm, Result, Sublayer
from t2x.layers.keys import named_key
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.tokens import Tokens
from t2x.layers.vision.grids import check_full, grid_of

__all__ = [
  'Affine',
  'GridBranch',
  'GridConvolution',
  'GridNorm',
  'GridStem',
  'GroupNorm',
  'MaxPool',
  'ResidualMerge',
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


class Affine(nnx.Module):
  """Scale and bias of each feature: x * scale + bias. It is what batch normalisation is after training: import folds
  the running statistics into both.

  Args:
    d_model: size of the last dimension.
  """

  implements = (Norm, GridNorm)

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


class GroupNorm(Affine):
  """Normalises each group of features over the whole grid of a row (https://arxiv.org/abs/1803.08494), then multiplies by
  a scale and adds a bias. Unlike batch normalisation it has no running statistics, and rows do not affect each other.

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
    sides = grid_of(self, call.tokens)
    if len(sides) != 2:
      raise UserError(
        f'{type(self).__name__} needs rows and columns, but the tokens have the grid {sides}'
      )
    y = self.transform(x.reshape(len(x), *sides, -1))
    tokens = Tokens.row(y.shape[1] * y.shape[2], grid=y.shape[1:3])
    y = y.reshape(len(y), -1, y.shape[-1])
    return Result(constrain(y, 'batch', 'length', 'embed'), tokens=tokens)


class GridConvolution(_GridPart):
  """Convolution over a grid, with optional norms before and after it and an activation.

  Zeros surround the grid: half of an odd kernel on each side, as in PyTorch ('SAME' of XLA differs with a stride), and
  none for an even kernel, which covers whole patches.

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
    UserError: width and factor are both set, the width is not a whole number, group_size does not divide d_model, or the
      number of groups does not divide the width.
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
    self.input_norm: Any = input_norm and input_norm(d_model, rngs=rngs)
    self.convolution = Linear(
      (kernel_size, kernel_size, group_size),
      (self.output_dim,),
      ('taps', 'taps', 'channels', 'embed'),
      init=init,
      use_bias=use_bias,
      kind='filter',
      rngs=rngs,
    )
    self.norm: Any = norm and norm(self.output_dim, rngs=rngs)

  def transform(self, x):
    x = x if self.input_norm is None else self.input_norm(x)
    kernel = self.convolution.kernel[...]
    size = len(kernel)
    around = size // 2 if size % 2 else 0
    y = jax.lax.conv_general_dilated(
      x.astype(kernel.dtype),
      kernel,
      (self.stride, self.stride),
      [(around, around)] * 2,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=self.num_groups,
    )
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


class _Sequence(nnx.Module):
  """Base class of parts that apply named `Merge`s in sequence, which are attributes.

  Attributes:
    names: names of the parts.
  """

  names: tuple[str, ...]
  num_merged: int
  output_dim: int

  def _build(self, width: int, parts: Mapping[str, Callable[..., Merge]], rngs: nnx.Rngs) -> None:
    self.names = tuple(parts)
    for name, build in parts.items():
      part = build(width, rngs=rngs)
      set_part(self, name, part)
      width = part.output_dim
    self.output_dim = width
    self.num_merged = functools.reduce(operator.mul, (part.num_merged for part in self._parts), 1)

  @property
  def _parts(self) -> list[Any]:
    return [vars(self)[name] for name in self.names]

  def _apply(self, x: Array, call: Call) -> Result:
    result = Result(x)
    for name, part in zip(self.names, self._parts, strict=True):
      new = part(result.x, dataclasses.replace(call, key=named_key(call.key, name)))
      tokens = new.tokens or call.tokens
      result = dataclasses.replace(new, tokens=tokens, aux=result.aux + new.aux)
      call = dataclasses.replace(call, tokens=tokens)
    return result


class GridBranch(_Sequence):
  """Parts over a grid in sequence, as a sublayer: a bottleneck of three convolutions in a residual connection.

  Args:
    d_model: width of the input and output.
    parts: builders of the parts by name, in the order of application.

  Raises:
    UserError: a name is taken, or the parts change the grid or do not return to the width d_model; when called, the
      tokens do not fill a grid, the pattern is not Full(), or there is a source.
  """

  implements = (Sublayer,)
  reads = frozenset({'pattern'})
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Merge]], NonEmpty],
    rngs: nnx.Rngs,
  ):
    self._build(d_model, parts, rngs)
    if self.output_dim != d_model or self.num_merged > 1:
      raise UserError(
        f'GridBranch.parts return {self.output_dim} features of a {self.num_merged}th of the tokens for a residual '
        f'stream of {d_model}: begin the stage with @ResidualMerge, whose shortcut does the same'
      )

  def init_cache(self, batch: int, num_slots: int, dtype: Any, source: Any = None) -> None:
    """Raises UserError: a token depends on later ones."""
    raise UserError(
      'GridBranch cannot decode token by token, because a token depends on later ones: use it in an Encoder'
    )

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies the parts to the grid of each row."""
    check_no_source(self, call)
    check_full(self, call)
    return dataclasses.replace(self._apply(x, call), tokens=None)


class ResidualMerge(_Sequence):
  """Residual block that changes the width or the grid: activation(shortcut(x) + branch(x)).

  Args:
    d_model: width of the input.
    parts: builders of the parts of the branch by name, in the order of application.
    shortcut: builds the part beside them.
    activation: activation of the sum.

  Raises:
    UserError: a name is taken, or branch and shortcut differ in width or in the number of tokens.
  """

  implements = (Merge,)
  keeps_tokens = False

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Merge]], NonEmpty],
    shortcut: Callable[..., Merge],
    activation: Callable[[Array], Array] = jax.nn.relu,
    rngs: nnx.Rngs,
  ):
    self.activation = activation
    self._build(d_model, parts, rngs)
    self.shortcut = shortcut(d_model, rngs=rngs)
    sizes = [(part.output_dim, part.num_merged) for part in (self, self.shortcut)]
    if sizes[0] != sizes[1]:
      raise UserError(
        'ResidualMerge adds {} features of a {}th of the tokens to {} of a {}th: give shortcut and parts the same '
        'width and stride'.format(*sizes[0], *sizes[1])
      )

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Result:
    """Returns the sum, and the metadata of its tokens."""
    branch = self._apply(x, call)
    beside = self.shortcut(x, dataclasses.replace(call, key=named_key(call.key, 'shortcut')))
    y = self.activation(beside.x + branch.x)
    return dataclasses.replace(branch, x=y, aux=branch.aux + beside.aux)


class GridStem(_Sequence):
  """Embeds images by a sequence of parts over the grid of pixels, such as a convolution and a pooling.

  Args:
    d_model: width of the tokens, which is that of the last part.
    parts: builders of the parts by name, in the order of application.
    channels: number of channels of the images.

  Raises:
    UserError: a name is taken, or the width of the last part is not d_model; when called, images have another number
      of channels.
  """

  implements = (Embedder,)
  input: Input
  num_extra = 0

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Merge]], NonEmpty],
    channels: Size = 3,
    rngs: nnx.Rngs,
  ):
    self._build(channels, parts, rngs)
    self.input = Input('image', (None, None, channels), 'float32')
    if self.output_dim != d_model:
      raise UserError(
        f'GridStem.parts return vectors of {self.output_dim}, but d_model = {d_model}: set the width of the last part'
      )

  def __call__(
    self, images: Float[Array, 'batch height width channels'], tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors of the grid, row by row from the top left, and their metadata."""
    batch, height, width, channels = images.shape
    if channels != self.input.shape[-1]:
      raise UserError(
        f'images of {channels} channels, but GridStem.channels = {self.input.shape[-1]}: make them equal'
      )
    row = Tokens.row(height * width, grid=(height, width))
    result = self._apply(images.reshape(batch, height * width, channels), Call(row))
    assert result.tokens is not None
    return result.x, result.tokens
