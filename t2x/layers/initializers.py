"""How a parameter starts: frozen objects called with (key, shape, dtype), equal when their numbers are.

A projection hands in its two-dimensional matrix [inputs, outputs], so fans are those of the matrix. The
depth comes from the stack that is being built.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t2x.errors import UserError
from t2x.ranges import Positive, Size


@dataclasses.dataclass(frozen=True)
class Place:
  """Where parameters are made.

  Attributes:
    vocab_size: rows that the task needs in a table of tokens.
    num_layers: of the stack.
    num_branches: residual branches of a layer.
  """

  vocab_size: int | None = None
  num_layers: int | None = None
  num_branches: int | None = None


_PLACE: contextvars.ContextVar[Place] = contextvars.ContextVar('place')


def place() -> Place:
  """The place of what is being built; all None outside of `building`."""
  return _PLACE.get(Place())


@contextlib.contextmanager
def building(**known: int | None) -> Iterator[None]:
  """Parameters made inside know these attributes of their `Place`."""
  token = _PLACE.set(dataclasses.replace(place(), **known))
  try:
    yield
  finally:
    _PLACE.reset(token)


def _residual_branches(name: str) -> int:
  """Residual branches, one after the other, of the stack that is being built.

  Raises:
    UserError: nothing is being built inside a stack.
  """
  num_layers, num_branches = place().num_layers, place().num_branches
  if num_layers is None or num_branches is None:
    raise UserError(f'{name} depends on the depth of a stack: use it in the sublayers of a Block')
  return num_layers * num_branches


@dataclasses.dataclass(frozen=True)
class normal:
  """Normal with mean 0 and standard deviation `stddev`."""

  stddev: Positive = 0.02

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return jax.random.normal(key, tuple(shape), dtype) * self.stddev


@dataclasses.dataclass(frozen=True)
class width_normal:
  """Normal with mean 0 and standard deviation width^(-1/2), for embeddings that are multiplied by
  sqrt(width) (https://arxiv.org/abs/1706.03762, section 3.4).

  Attributes:
    width: bind it to the macro that sets the model's width.
  """

  width: Size

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return normal(self.width**-0.5)(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class truncated_normal:
  """Normal cut at two standard deviations, its spread corrected so that it is `stddev` after it."""

  stddev: Positive = 0.02

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    # The standard deviation of a standard normal truncated to (-2, 2).
    spread = self.stddev / 0.87962566103423978
    return jax.random.truncated_normal(key, -2.0, 2.0, tuple(shape), dtype) * spread


@dataclasses.dataclass(frozen=True)
class variance_scaling:
  """Variance scale / fan: the family that Xavier, LeCun and He initialisation belong to.

  Attributes:
    scale: multiplies the variance.
    mode: which fan divides it. For an embedding table [vocab, d_model], 'fan_out' is d_model.
    distribution: 'normal' is not cut, 'truncated_normal' is cut at two standard deviations.
  """

  scale: Positive
  mode: Literal['fan_in', 'fan_out', 'fan_avg']
  distribution: Literal['normal', 'truncated_normal', 'uniform']

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    init = jax.nn.initializers.variance_scaling(self.scale, self.mode, self.distribution)
    return init(key, tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class xavier_uniform:
  """Uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return variance_scaling(1.0, 'fan_avg', 'uniform')(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class lecun_normal:
  """Truncated normal with variance 1 / fan_in (LeCun et al. 1998)."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return variance_scaling(1.0, 'fan_in', 'truncated_normal')(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class he_normal:
  """Truncated normal with variance 2 / fan_in (https://arxiv.org/abs/1502.01852)."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return variance_scaling(2.0, 'fan_in', 'truncated_normal')(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class zeros:
  """All 0."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return jnp.zeros(tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class ones:
  """All 1."""

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return jnp.ones(tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class depth_scaled:
  """Another initialiser divided by the square root of the number of residual branches of the stack, for
  the projections into the residual stream (GPT-2: Radford et al. 2019, section 2.3).

  The branches are two for each layer, three with cross-attention.

  Attributes:
    init: what is scaled.
  """

  init: Callable[..., Array] = normal(0.02)

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    return self.init(key, shape, dtype) * _residual_branches('depth_scaled') ** -0.5


@dataclasses.dataclass(frozen=True)
class fixup:
  """Another initialiser times num_branches^(-1 / (2 branch_layers - 2)), for all but the last layer of
  the residual branches of a network without norms; the last one starts with `zeros`
  (https://arxiv.org/abs/1901.09321).

  Attributes:
    num_branches: residual branches one after the other. None: those of the stack, two for each layer,
      three with cross-attention.
    branch_layers: weight layers in a branch; at least 2. Attention has two as well: values and output.
    init: what is scaled.
  """

  num_branches: Size | None = None
  branch_layers: Size = 2
  init: Callable[..., Array] = he_normal()

  def __post_init__(self):
    if (self.num_branches is not None and self.num_branches < 1) or self.branch_layers < 2:
      raise UserError(
        f'fixup.num_branches = {self.num_branches}, fixup.branch_layers = {self.branch_layers}: '
        'at least 1, and at least 2'
      )

  def __call__(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    num_branches = self.num_branches or _residual_branches('fixup')
    scale = num_branches ** (-1 / (2 * self.branch_layers - 2))
    return self.init(key, shape, dtype) * scale
