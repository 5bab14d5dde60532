"""Parameter initialisers: frozen dataclasses called with (key, shape, dtype); `std(shape)` is the standard deviation.

Projections pass the shape of their two-dimensional matrix [inputs, outputs], so fan-in and fan-out are
those of the matrix. Initialisers that depend on depth read it from the `BuildContext`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size
from t2x.layers.building import residual_branches

__all__ = [
  'depth_scaled',
  'fixup',
  'he_normal',
  'lecun_normal',
  'normal',
  'ones',
  'truncated_normal',
  'variance_scaling',
  'width_normal',
  'xavier_uniform',
  'zeros',
]


def std_of(init: Callable[..., Array], shape: Sequence[int]) -> float:
  """Returns the standard deviation of the values of an initialiser; NaN if it has no method `std`."""
  std = getattr(init, 'std', None)
  return math.nan if std is None else float(std(tuple(shape)))


@dataclasses.dataclass(frozen=True)
class normal:
  """Normal distribution with mean 0 and standard deviation `stddev`."""

  stddev: Positive = 0.02

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    return jax.random.normal(key, tuple(shape), dtype) * self.stddev

  def std(self, shape: Sequence[int]) -> float:
    return self.stddev


@dataclasses.dataclass(frozen=True)
class width_normal:
  """Normal distribution with mean 0 and standard deviation width^(-1/2), for embeddings that are multiplied
  by sqrt(width) (https://arxiv.org/abs/1706.03762, section 3.4).

  Attributes:
    width: width of the embeddings; bind it to the macro that sets the model's width.
  """

  width: Size

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    return normal(self.width**-0.5)(key, shape, dtype)

  def std(self, shape: Sequence[int]) -> float:
    return self.width**-0.5


@dataclasses.dataclass(frozen=True)
class truncated_normal:
  """Normal distribution truncated at two standard deviations and rescaled to standard deviation `stddev`."""

  stddev: Positive = 0.02

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    # The standard deviation of a standard normal truncated to (-2, 2).
    scale = self.stddev / 0.87962566103423978
    return jax.random.truncated_normal(key, -2.0, 2.0, tuple(shape), dtype) * scale

  def std(self, shape: Sequence[int]) -> float:
    return self.stddev


@dataclasses.dataclass(frozen=True)
class variance_scaling:
  """Distribution with variance scale / fan, the family of Xavier, LeCun and He initialisation.

  Attributes:
    scale: factor of the variance.
    mode: the fan that divides the variance. For an embedding table [vocab, d_model], 'fan_out' is d_model.
    distribution: 'truncated_normal' is truncated at two standard deviations, 'normal' is not.
  """

  scale: Positive
  mode: Literal['fan_in', 'fan_out', 'fan_avg']
  distribution: Literal['normal', 'truncated_normal', 'uniform']

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    init = jax.nn.initializers.variance_scaling(self.scale, self.mode, self.distribution)
    return init(key, tuple(shape), dtype)

  def std(self, shape: Sequence[int]) -> float:
    if len(shape) < 2:
      return math.nan
    # As in JAX, leading dimensions are those of a convolution.
    receptive = math.prod(shape[:-2])
    fan_in, fan_out = receptive * shape[-2], receptive * shape[-1]
    fan = {'fan_in': fan_in, 'fan_out': fan_out, 'fan_avg': (fan_in + fan_out) / 2}[self.mode]
    return (self.scale / fan) ** 0.5


class _FixedVariance:
  """Base class of members of `variance_scaling` with names of their own."""

  family: ClassVar[variance_scaling]

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    return self.family(key, shape, dtype)

  def std(self, shape: Sequence[int]) -> float:
    return self.family.std(shape)


@dataclasses.dataclass(frozen=True)
class xavier_uniform(_FixedVariance):
  """Uniform distribution with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""

  family = variance_scaling(1.0, 'fan_avg', 'uniform')


@dataclasses.dataclass(frozen=True)
class lecun_normal(_FixedVariance):
  """Truncated normal distribution with variance 1 / fan_in (LeCun et al. 1998)."""

  family = variance_scaling(1.0, 'fan_in', 'truncated_normal')


@dataclasses.dataclass(frozen=True)
class he_normal(_FixedVariance):
  """Truncated normal distribution with variance 2 / fan_in (https://arxiv.org/abs/1502.01852)."""

  family = variance_scaling(2.0, 'fan_in', 'truncated_normal')


@dataclasses.dataclass(frozen=True)
class zeros:
  """Zeros."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    return jnp.zeros(tuple(shape), dtype)

  def std(self, shape: Sequence[int]) -> float:
    return 0.0


@dataclasses.dataclass(frozen=True)
class ones:
  """Ones."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    return jnp.ones(tuple(shape), dtype)

  def std(self, shape: Sequence[int]) -> float:
    return 0.0


class DepthFactor:
  """Base class: multiplies the values of `init` by a function of the depth; subclasses define both."""

  init: Callable[..., Array]

  def factor(self) -> float:
    """Returns the factor of the values."""
    raise NotImplementedError

  def __call__(self, key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    return self.init(key, shape, dtype) * self.factor()

  def std(self, shape: Sequence[int]) -> float:
    return std_of(self.init, shape) * self.factor()


@dataclasses.dataclass(frozen=True)
class depth_scaled(DepthFactor):
  """Divides the values of `init` by the square root of the number of residual branches of the body, for
  projections into the residual stream (GPT-2: Radford et al. 2019, section 2.3).

  A layer has two branches, or three with cross-attention.

  Attributes:
    init: initialiser to scale.
  """

  init: Callable[..., Array] = normal(0.02)

  def factor(self) -> float:
    return residual_branches('depth_scaled') ** -0.5


@dataclasses.dataclass(frozen=True)
class fixup(DepthFactor):
  """Multiplies the values of `init` by num_branches^(-1 / (2 branch_layers - 2)), for all layers of the
  residual branches of a network without norms except the last, whose initialiser is `zeros`
  (https://arxiv.org/abs/1901.09321).

  Attributes:
    num_branches: number of residual branches. None: those of the stack, two per layer, or three with
      cross-attention.
    branch_layers: number of weight layers in a branch; at least 2. Attention has two: values and output.
    init: initialiser to scale.
  """

  num_branches: Size | None = None
  branch_layers: Size = 2
  init: Callable[..., Array] = he_normal()

  def __post_init__(self):
    if (self.num_branches is not None and self.num_branches < 1) or self.branch_layers < 2:
      raise UserError(
        f'fixup.num_branches = {self.num_branches} must be at least 1, and fixup.branch_layers = '
        f'{self.branch_layers} at least 2'
      )

  def factor(self) -> float:
    num_branches = self.num_branches or residual_branches('fixup')
    return num_branches ** (-1 / (2 * self.branch_layers - 2))
