"""What every layer is made of: parameters with logical axes, projections, dropout, and what is
known of a token beside its vector."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

__all__ = [
  'Context',
  'Linear',
  'Tokens',
  'dropout',
  'param',
  'split_key',
]

Initializer = Callable[..., Array]
Key = Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
  """What is known of each token beside its vector. Every field may be None.

  Attributes:
    positions: place in its own segment, from 0. None: 0 .. length - 1.
    segments: 1, 2, ... for the examples packed into a row, 0 for padding. None: one segment.
    prefix: True where the pattern `Prefix()` lets every query see the token.
  """

  positions: Int[Array, '#batch length'] | None = None
  segments: Int[Array, '#batch length'] | None = None
  prefix: Bool[Array, '#batch length'] | None = None

  def index(self, length: int) -> Int[Array, '#batch length']:
    """The positions, counted from 0 where none were given."""
    return jnp.arange(length)[None] if self.positions is None else self.positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
  """What cross-attention reads: the other sequence's vectors and what is known of its tokens."""

  x: Float[Array, 'batch source d_model']
  tokens: Tokens = dataclasses.field(default_factory=Tokens)


def param(
  init: Initializer, shape: Sequence[int], axes: Sequence[str | None], rngs: nnx.Rngs
) -> nnx.Param:
  """A float32 parameter that carries its logical axes.

  Stacked layers have one more leading dimension than `axes` has names: it is 'layers'.
  """
  if len(axes) != len(shape):
    raise ValueError(f'axes {tuple(axes)} do not name the dimensions of shape {tuple(shape)}')
  return nnx.Param(init(rngs.params(), tuple(shape), jnp.float32), axes=tuple(axes))


def split_key(key: Key | None, num: int) -> Sequence[Key | None]:
  """`num` keys, or `num` times None when there is no randomness to share."""
  return [None] * num if key is None else list(jax.random.split(key, num))


def dropout(x: Float[Array, '*shape'], rate: float, key: Key | None) -> Float[Array, '*shape']:
  """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate)."""
  if key is None or rate == 0.0:
    return x
  keep = jax.random.bernoulli(key, jnp.asarray(1.0 - rate, jnp.float32), x.shape)
  return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


class Linear(nnx.Module):
  """A projection of the last dimensions: [..., *inputs] -> [..., *outputs].

  The initializer sees the two-dimensional matrix [prod(inputs), prod(outputs)], so that fan-in and
  fan-out are those of the projection whatever the shape of its heads.
  """

  def __init__(
    self,
    inputs: Sequence[int],
    outputs: Sequence[int],
    axes: Sequence[str | None],
    *,
    init: Initializer,
    use_bias: bool = True,
    rngs: nnx.Rngs,
  ):
    self.num_inputs = len(inputs)

    def init_matrix(key, shape, dtype):
      return init(key, (math.prod(inputs), math.prod(outputs)), dtype).reshape(shape)

    self.kernel = param(init_matrix, (*inputs, *outputs), axes, rngs)
    zeros = nnx.initializers.zeros
    self.bias = param(zeros, outputs, axes[len(inputs) :], rngs) if use_bias else None

  def __call__(self, x: Float[Array, '...']) -> Float[Array, '...']:
    kernel = self.kernel[...].astype(x.dtype)
    contracted = tuple(range(x.ndim - self.num_inputs, x.ndim)), tuple(range(self.num_inputs))
    y = jax.lax.dot_general(x, kernel, (contracted, ((), ())))
    if self.bias is not None:
      y = y + self.bias[...].astype(x.dtype)
    return y
