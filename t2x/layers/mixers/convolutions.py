"""Convolutions that replace self-attention: lightweight and dynamic (Wu et al. 2019, https://arxiv.org/abs/1901.10430),
and over all features (Gehring et al. 2017, https://arxiv.org/abs/1705.03122)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.layers.arrays import Leaf
from t2x.layers.attention.head_projections import Hidden, check_no_source
from t2x.layers.attention.kernels.base import check_reads
from t2x.layers.caches import RecurrentState
from t2x.layers.constraints import constrain
from t2x.layers.counting import token_sums
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import variance_scaling, xavier_uniform
from t2x.layers.interfaces import Call, Result, SourceSequence, Sublayer
from t2x.layers.parameters import Initializer, Linear, dropout, param
from t2x.layers.patterns.algebra import Causal, Pattern, mark_names
from t2x.layers.patterns.ordered import check_row_order
from t2x.layers.products import broadcast
from t2x.layers.tokens import Tokens

__all__ = ['DynamicConvolution', 'GatedConvolution', 'LightweightConvolution']


class _Convolution(nnx.Module):
  """Base class of both convolutions; subclasses define the kernels."""

  implements = (Sublayer,)
  reads = frozenset({'pattern'})
  max_length: int | None = None

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
    self.gate = linear((d_model,), (2, d_model), ('embed', 'gates', 'mlp'))
    self.out = linear((d_model,), (d_model,), ('mlp', 'embed'))
    self.kernel: Any = self.make_kernel(kernel_init, rngs)

  def make_kernel(self, init: Initializer, rngs: nnx.Rngs) -> nnx.Param | Linear:
    """Returns the parameter or projection that `logits` computes the kernels from."""
    raise NotImplementedError

  def logits(self, x: Hidden) -> Float[Array, '#batch #length heads taps']:
    """Returns the kernels before the softmax; `x` is the input of the convolution."""
    raise NotImplementedError

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> 'RecentTokens':
    """Returns an empty cache for the tokens within reach of the kernel."""
    return RecentTokens.empty(batch, self.kernel_size - 1, (self.d_model,), dtype)

  def __call__(self, x: Hidden, call: Call, cache: 'RecentTokens | None' = None) -> Result:
    """Convolves each token with its neighbours in `x` and in the cache.

    Taps on tokens that are masked by the pattern, in another segment or padding contribute zero. If the
    pattern is causal, the kernel ends at the token, else it is centred on it. Neighbours are found by index;
    a neighbour contributes only if its position differs from the token's by the same number.

    Raises:
      UserError: the call has a source.
    """
    check_no_source(self, call)
    a, gate = jnp.moveaxis(self.gate(x), -2, 0)
    source = constrain(a * jax.nn.sigmoid(gate), 'batch', 'length', 'mlp')
    kernels = jax.nn.softmax(self.logits(source).astype(Dtypes.softmax))
    kernels = dropout(kernels, self.dropout_rate, call.key)

    def convolved(source: Array, tokens: Tokens, order: Array | None) -> Array:
      check_reads(call.pattern, tokens, tokens)
      taps = kernels
      if order is not None:
        taps = jnp.broadcast_to(taps, (*x.shape[:2], *taps.shape[2:]))
        taps = jnp.pad(taps, ((0, 0), (order.shape[1] - x.shape[1], 0), (0, 0), (0, 0)))
        taps = take_tokens(taps, order)
      return self._convolve(source, taps, tokens, call.pattern)

    y, cache = apply_with_recent(convolved, source, call.tokens, cache)
    return Result(self.out(y), cache)

  @token_sums()
  def _convolve(
    self,
    source: Hidden,
    kernels: Float[Array, '#batch #length heads taps'],
    tokens: Tokens,
    pattern: Pattern,
  ) -> Hidden:
    before = taps_before(pattern, self.kernel_size)
    by_head = (*source.shape[:2], self.num_heads, -1)
    y = jnp.zeros_like(source).reshape(by_head)
    for tap in range(self.kernel_size):
      value = jnp.roll(source, before - tap, axis=1)
      visible = is_visible(tap - before, source.shape[1], tokens, pattern)
      weight = jnp.where(visible, kernels[..., tap], 0)
      value = value.reshape(by_head)
      y += broadcast(weight[..., None], value.shape, value.dtype) * value
    return y.reshape(source.shape)


class LightweightConvolution(_Convolution):
  """Gated linear unit, depthwise convolution and output projection.

  Neighbouring channels share one of `num_heads` kernels, each normalised by a softmax over its taps.
  Narang et al. 2021 (https://arxiv.org/abs/2102.11972) use one kernel per channel and, unlike the paper,
  another matrix [d_model, d_model] between convolution and output projection.

  Args:
    d_model: width of the input and output.
    num_heads: number of kernels.
    kernel_size: number of taps per kernel.
    use_bias: whether the two projections have biases.
    dropout_rate: dropout of normalised taps (the paper's DropConnect).
    kernel_init: initialiser of the projections and of the kernels [num_heads, kernel_size].

  Raises:
    UserError: num_heads does not divide d_model, or kernel_size is below 1.
  """

  def make_kernel(self, init, rngs):
    """Returns the kernels, one set for all tokens."""
    shape = self.num_heads, self.kernel_size
    return param(init, shape, ('heads', 'taps'), rngs, kind='filter')

  def logits(self, x: Hidden) -> Float[Array, '1 1 heads taps']:
    """Returns the kernels, which do not depend on `x`."""
    return self.kernel[...][None, None]


class DynamicConvolution(_Convolution):
  """`LightweightConvolution` whose kernels are predicted from each token by a linear projection.

  Arguments are those of `LightweightConvolution`; the projection [d_model, num_heads, kernel_size] has no
  bias.
  """

  def make_kernel(self, init, rngs):
    """Returns the projection that predicts the kernels."""
    shape, axes = (self.num_heads, self.kernel_size), ('embed', 'heads', 'taps')
    return Linear((self.d_model,), shape, axes, init=init, use_bias=False, rngs=rngs)

  def logits(self, x: Hidden) -> Float[Array, 'batch length heads taps']:
    """Predicts the kernels of each token from its vector."""
    return self.kernel(x)


class GatedConvolution(nnx.Module):
  """Convolution over all features and a gated linear unit: a * sigmoid(b), where each token's [a, b] is a linear
  function of it and its neighbours (Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.2).

  Which neighbours contribute is decided as in `LightweightConvolution`. Layers whose dilations are 1, 2, 4, ... reach
  exponentially many tokens (ByteNet, https://arxiv.org/abs/1610.10099).

  Args:
    d_model: width of the input and output.
    kernel_size: number of taps.
    dilation: distance between the tokens of neighbouring taps.
    linear: builds the linear function, such as `WeightNormLinear`. None: `Linear`.
    kernel_init: initialiser of the kernel [kernel_size * d_model, 2 * d_model]. The default keeps the variance of the
      input; the paper multiplies it by the probability with which dropout keeps an input.
  """

  implements = (Sublayer,)
  reads = frozenset({'pattern'})
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    kernel_size: Size = 3,
    dilation: Size = 1,
    linear: Callable[..., Linear] | None = None,
    kernel_init: Initializer = variance_scaling(4.0, 'fan_in', 'normal'),
    rngs: nnx.Rngs,
  ):
    self.d_model, self.kernel_size, self.dilation = d_model, kernel_size, dilation
    axes = 'taps', 'embed', 'gates', 'mlp'
    settings: dict[str, Any] = {
      'init': kernel_init,
      'use_bias': True,
      'kind': 'filter',
      'rngs': rngs,
    }
    self.gates = (linear or Linear)((kernel_size, d_model), (2, d_model), axes, **settings)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> 'RecentTokens':
    """Returns an empty cache for the tokens within reach of the kernel."""
    size = self.dilation * (self.kernel_size - 1)
    return RecentTokens.empty(batch, size, (self.d_model,), dtype)

  def __call__(self, x: Hidden, call: Call, cache: 'RecentTokens | None' = None) -> Result:
    """Convolves each token with its neighbours in `x` and in the cache.

    Raises:
      UserError: the call has a source.
    """
    check_no_source(self, call)
    before = taps_before(call.pattern, self.kernel_size)

    def convolved(x: Array, tokens: Tokens, order: Array | None) -> Array:
      check_reads(call.pattern, tokens, tokens)
      taps = []
      for tap in range(self.kernel_size):
        offset = self.dilation * (tap - before)
        visible = is_visible(offset, x.shape[1], tokens, call.pattern)
        taps.append(jnp.where(visible, jnp.roll(x, -offset, axis=1), 0))
      a, b = jnp.moveaxis(self.gates(jnp.stack(taps, axis=2)), -2, 0)
      return a * jax.nn.sigmoid(b)

    y, cache = apply_with_recent(convolved, x, call.tokens, cache)
    return Result(constrain(y, 'batch', 'length', 'embed'), cache)


def is_visible(
  offset: int, length: int, tokens: Tokens, pattern: Pattern
) -> Bool[Array, '#batch length 1']:
  """Returns whether each token sees the token `offset` indices after it."""
  positions, index = tokens.positions, jnp.arange(length)[None] + offset

  keys = jax.tree.map(lambda a: jnp.roll(a, -offset, axis=1), tokens)
  expected = positions + offset
  visible = (index >= 0) & (index < length) & (keys.positions == expected)
  visible &= pattern.allows(tokens, dataclasses.replace(keys, positions=expected))
  if tokens.segments is not None:
    visible &= (keys.segments != 0) & (keys.segments == tokens.segments)
  return visible[..., None]


def causal_taps(
  x: Float[Array, 'batch length *features'],
  taps: Float[Array, 'taps *features'],
  tokens: Tokens,
) -> Float[Array, 'batch length *features']:
  """Applies a filter of each feature to a token and the tokens before it, the last tap to the token itself."""
  y = jnp.zeros_like(x)
  for tap in range(len(taps)):
    offset = tap - len(taps) + 1
    visible = is_visible(offset, x.shape[1], tokens, Causal())
    visible = visible.reshape(*visible.shape[:2], *[1] * (x.ndim - 2))
    kernel = broadcast(taps[tap][None, None], x.shape, x.dtype)
    y += jnp.where(visible, jnp.roll(x, -offset, axis=1), 0) * kernel
  return y


def take_tokens(a: Array, order: Int[Array, 'batch taken']) -> Array:
  """Takes the entries of each row of `a` [batch, length, ...] at the indices `order`."""
  return jnp.take_along_axis(a, order.reshape(*order.shape, *[1] * (a.ndim - 2)), axis=1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecentTokens(RecurrentState):
  """Cache of the last tokens of each row, without padding; the newest token is the last.

  Attributes:
    x: inputs of the convolution, [batch, size, *features].
    tokens: positions, segments and the mark 'prefix', [batch, size]; segment 0: no token yet.
  """

  x: Leaf
  tokens: Tokens

  @staticmethod
  def empty(batch: int, size: int, features: tuple[int, ...], dtype: DTypeLike) -> 'RecentTokens':
    """Returns a cache without tokens."""
    zeros = jnp.zeros((batch, size), jnp.int32)
    return RecentTokens(
      jnp.zeros((batch, size, *features), dtype),
      Tokens(zeros, zeros, marks={'prefix': zeros.astype(bool)}),
    )

  def concatenate(self, x: Array, tokens: Tokens) -> tuple[Array, Tokens, Int[Array, 'batch both']]:
    """Returns the cached tokens followed by the tokens of a call, with all padding moved to the front, and their
    indices before the move."""
    batch, length = x.shape[:2]

    def concatenated(old, new, default):
      new = jnp.full((1, 1), default, old.dtype) if new is None else new.astype(old.dtype)
      return jnp.concatenate([old, jnp.broadcast_to(new, (batch, length))], axis=1)

    segments = concatenated(self.tokens.segments, tokens.segments, 1)
    # A stable sort keeps the order of the tokens.
    order = jnp.argsort(segments != 0, axis=1)
    moved = Tokens(
      take_tokens(concatenated(self.tokens.positions, tokens.positions, 0), order),
      take_tokens(segments, order),
      marks={
        'prefix': take_tokens(
          concatenated(self.tokens.marks['prefix'], tokens.marks.get('prefix'), False), order
        )
      },
    )
    both = jnp.concatenate([self.x.astype(x.dtype), x], axis=1)
    return take_tokens(both, order), moved, order

  def keep_last(self, x: Array, tokens: Tokens) -> 'RecentTokens':
    """Returns a cache of the last tokens of the rows returned by `concatenate`."""
    first = x.shape[1] - self.x.shape[1]
    last = jax.tree.map(lambda a: a[:, first:], tokens)
    return RecentTokens(x[:, first:].astype(self.x.dtype), last)


def apply_with_recent(
  function: Callable[[Array, Tokens, Array | None], Array],
  x: Array,
  tokens: Tokens,
  cache: RecentTokens | None,
) -> tuple[Array, RecentTokens | None]:
  """Applies a function of neighbouring tokens to the tokens of a call, after those of the cache.

  Args:
    function: maps vectors [batch, length, ...], their metadata and their order to vectors. With a cache these are the
      tokens that `RecentTokens.concatenate` returns; without one the order is None.
    x: vectors of the tokens of a call, [batch, length, ...].
    tokens: their metadata.
    cache: the tokens before them.

  Returns:
    The vectors of the tokens of the call, and the new cache.
  """
  if cache is None:
    return function(x, tokens, None), None
  both, moved, order = cache.concatenate(x, tokens)
  y = take_tokens(function(both, moved, order), jnp.argsort(order, axis=1))
  return y[:, -x.shape[1] :], cache.keep_last(both, moved)


@functools.cache
def taps_before(pattern: Pattern, kernel_size: int) -> int:
  """Number of taps before the token: all but one if the pattern hides all later positions, else half.

  Raises:
    UserError: the order of the pattern is not that of the row.
  """
  check_row_order('a convolution follows', pattern)
  length = 2 * kernel_size
  positions = np.arange(length)[None]
  marked = Tokens(positions, marks=dict.fromkeys(mark_names(pattern), positions >= 0))
  ahead = pattern.mask(length, length) | pattern.mask(marked, marked)
  return kernel_size // 2 if np.triu(ahead, 1).any() else kernel_size - 1
