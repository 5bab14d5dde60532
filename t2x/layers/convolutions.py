"""Convolutions over a row in place of attention (Wu et al. 2019, https://arxiv.org/abs/1901.10430)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2x.errors import UserError
from t2x.layers.attention import AttentionCache, CrossCache
from t2x.layers.base import Context, Initializer, Linear, Tokens, dropout, param
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.patterns import Pattern, check_marks
from t2x.layers.position_encoding import PositionEncoding
from t2x.ranges import Size, TunableRate

__all__ = ['DynamicConvolution', 'LightweightConvolution']


class _Convolution(nnx.Module):
  """What the two share; they differ in where the kernels come from."""

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    kernel_size: Size = 9,
    use_bias: bool = True,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    name = type(self).__name__
    if num_heads < 1 or d_model % num_heads:
      raise UserError(f'{name}.num_heads = {num_heads} does not divide d_model = {d_model}')
    if kernel_size < 1:
      raise UserError(f'{name}.kernel_size must be at least 1, not {kernel_size}')
    self.d_model = d_model
    self.num_heads = num_heads
    self.kernel_size = kernel_size
    self.dropout_rate = dropout_rate
    linear = functools.partial(Linear, init=kernel_init, use_bias=use_bias, rngs=rngs)
    self.gate = linear((d_model,), (2, d_model), ('embed', None, 'mlp'))
    self.out = linear((d_model,), (d_model,), ('mlp', 'embed'))
    self.kernel: Any = self.make_kernel(kernel_init, rngs)

  def make_kernel(self, init: Initializer, rngs: nnx.Rngs) -> nnx.Param | Linear:
    """What `logits` makes the kernels of."""
    raise NotImplementedError

  def logits(
    self, x: Float[Array, 'batch length d_model']
  ) -> Float[Array, '#batch #length heads taps']:
    """The kernels before their softmax; `x` is what they are laid over."""
    raise NotImplementedError

  def init_cache(self, batch: int, length: int, dtype: Any = jnp.float32) -> AttentionCache:
    """An empty cache with `length` slots for what the kernels are laid over."""
    return AttentionCache.empty(None, jnp.zeros((batch, length, self.d_model), dtype))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens = Tokens(),
    encoding: PositionEncoding | None = None,
    cache: AttentionCache | CrossCache | None = None,
    key: Array | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], AttentionCache | None]:
    """Mixes each token with its neighbours in `x`, or in what a cache holds.

    Args:
      context: refused: a convolution has no neighbours in another sequence.
      pattern: a tap that it hides gives zero, and so does one in another segment or in padding. Where
        it lets nobody see later positions, all other taps lie before the token, else half of them.
      tokens: positions and segments of `x`. Neighbours are found by slot, and count where their
        positions differ as their slots do.
      encoding: not used: a kernel knows distances by itself.
      cache: extended by `x` at its positions.
      key: for dropout of the kernels; None: none.

    Returns:
      The output and the new cache, or None.

    Raises:
      UserError: a context is given.
    """
    if context is not None or isinstance(cache, CrossCache):
      name = type(self).__name__
      raise UserError(f'{name} reads no context: use MultiHeadAttention for cross-attention')
    a, gate = jnp.moveaxis(self.gate(x), -2, 0)
    source = constrain(a * jax.nn.sigmoid(gate), 'batch', 'length', 'mlp')
    kernels = jax.nn.softmax(self.logits(source).astype(jnp.float32))
    kernels = dropout(kernels, self.dropout_rate, key).astype(x.dtype)
    if cache is not None:
      cache = cache.write(None, source, tokens)
    row = _Row(source, tokens, cache)
    check_marks(pattern, row.of_keys)
    before = _taps_before(pattern, self.kernel_size)
    by_head = (*source.shape[:2], self.num_heads, -1)
    y = jnp.zeros_like(source).reshape(by_head)
    for tap in range(self.kernel_size):
      value, seen = row.at(tap - before, pattern)
      weight = jnp.where(seen, kernels[..., tap], 0)
      y += weight[..., None] * value.reshape(by_head)
    y = y.reshape(source.shape)
    return self.out(y), cache


class LightweightConvolution(_Convolution):
  """A gated linear unit, a depthwise convolution, a projection.

  Neighbouring channels share one of `num_heads` kernels, each normalised by a softmax over its taps.
  Narang et al. 2021 (https://arxiv.org/abs/2102.11972) have a kernel for each channel, and one more
  matrix [d_model, d_model] between convolution and projection, which the paper has not.

  Args:
    d_model: width of the input and output.
    num_heads: kernels.
    kernel_size: taps of a kernel.
    use_bias: biases on the two projections.
    dropout_rate: dropout of normalised taps (the paper's DropConnect).
    kernel_init: initialiser of the projections and of the kernels [num_heads, kernel_size].

  Raises:
    UserError: num_heads does not divide d_model, or there are no taps.
  """

  def make_kernel(self, init, rngs):
    """The kernels themselves."""
    return param(init, (self.num_heads, self.kernel_size), ('heads', 'taps'), rngs)

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, '1 1 heads taps']:
    """The same kernels everywhere."""
    return self.kernel[...][None, None]


class DynamicConvolution(_Convolution):
  """As `LightweightConvolution`, with kernels that a projection predicts from each token.

  Arguments are the same; the projection, without a bias, is [d_model, num_heads, kernel_size].
  """

  def make_kernel(self, init, rngs):
    """The projection that predicts them."""
    shape, axes = (self.num_heads, self.kernel_size), ('embed', 'heads', None)
    return Linear((self.d_model,), shape, axes, init=init, use_bias=False, rngs=rngs)

  def logits(
    self, x: Float[Array, 'batch length d_model']
  ) -> Float[Array, 'batch length heads taps']:
    """The kernels of each token, from its own vector."""
    return self.kernel(x)


class _Row:
  """Vectors to be looked up at an offset from each query, and what is known of their tokens."""

  def __init__(self, x: Array, tokens: Tokens, cache: AttentionCache | None):
    self.length = x.shape[1]
    self.tokens = tokens
    self.positions = tokens.index(self.length)
    self.has_cache = cache is not None
    self.x = x if cache is None else cache.v.astype(x.dtype)
    self.of_keys = tokens if cache is None else cache.tokens

  def at(
    self, offset: int, pattern: Pattern
  ) -> tuple[Float[Array, 'batch length d_model'], Bool[Array, '#batch length 1']]:
    """The vectors that many positions after each query, and whether it sees them."""
    num_slots = self.x.shape[1]
    # Slots of a cache are positions; in a row, neighbours are neighbours.
    slots = (self.positions if self.has_cache else jnp.arange(self.length)[None]) + offset

    def shifted(a):
      if not self.has_cache:
        return jnp.roll(a, -offset, axis=1)
      index = jnp.clip(slots, 0, num_slots - 1)
      return jnp.take_along_axis(a, index.reshape(*index.shape, *[1] * (a.ndim - 2)), axis=1)

    def known(a):
      return None if a is None else shifted(a)

    wanted, segments = self.positions + offset, known(self.of_keys.segments)
    seen = (slots >= 0) & (slots < num_slots)
    seen &= shifted(self.of_keys.index(num_slots)) == wanted
    seen &= pattern.allows(self.positions, wanted, known(self.of_keys.prefix))
    if segments is not None:
      own = 1 if self.tokens.segments is None else self.tokens.segments
      seen &= (segments != 0) & (segments == own)
    return shifted(self.x), seen[..., None]


@functools.cache
def _taps_before(pattern: Pattern, kernel_size: int) -> int:
  """How many taps lie before the token: all but its own where nobody may look ahead."""
  length = 2 * kernel_size
  ahead = pattern.mask(length, length) | pattern.mask(length, length, np.ones(length, bool))
  return kernel_size // 2 if np.triu(ahead, 1).any() else kernel_size - 1
