"""Convolutions over a row in place of attention (Wu et al. 2019, https://arxiv.org/abs/1901.10430)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.errors import UserError
from t2x.layers.base import Initializer, Linear, Tokens, dropout, param
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes, broadcast
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Cache, Call, Result
from t2x.layers.masks import check_reads
from t2x.layers.patterns import Pattern, marks_of
from t2x.ranges import Size, TunableRate


class _Convolution(nnx.Module):
  """What the two share; they differ in where the kernels come from."""

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

  def init_cache(self, batch: int, num_slots: int, dtype: Any = jnp.float32) -> 'RecentTokens':
    """A cache of the tokens that the taps can reach."""
    return RecentTokens.empty(batch, self.kernel_size - 1, self.d_model, dtype)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: 'RecentTokens | None' = None
  ) -> Result:
    """Mixes each token with its neighbours in `x`, or in what a cache holds.

    A tap that the pattern hides gives zero, and so does one in another segment or in padding. Where the
    pattern hides all later positions, all taps but one lie before the token, else half of them. Neighbours
    are found by index, and count where their positions differ as their indices do.

    Raises:
      UserError: a source is given.
    """
    if call.source is not None:
      name = type(self).__name__
      raise UserError(f'{name} reads no source: use MultiHeadAttention for cross-attention')
    a, gate = jnp.moveaxis(self.gate(x), -2, 0)
    source = constrain(a * jax.nn.sigmoid(gate), 'batch', 'length', 'mlp')
    kernels = jax.nn.softmax(self.logits(source).astype(Dtypes.softmax))
    kernels = dropout(kernels, self.dropout_rate, call.key)
    if cache is None:
      check_reads(call.pattern, call.tokens, call.tokens)
      return Result(self.out(self._convolved(source, kernels, call.tokens, call.pattern)))
    # The cached tokens stand before those of the call, without padding between them.
    both, tokens, back = cache.followed_by(source, call.tokens)
    check_reads(call.pattern, tokens, tokens)
    length = x.shape[1]
    kernels = jnp.broadcast_to(kernels, (*x.shape[:2], *kernels.shape[2:]))
    kernels = jnp.pad(kernels, ((0, 0), (both.shape[1] - length, 0), (0, 0), (0, 0)))
    y = self._convolved(both, picked(kernels, back.order), tokens, call.pattern)
    y = picked(y, back.inverse)[:, -length:]
    return Result(self.out(y), cache.keep(both, tokens))

  def _convolved(
    self,
    source: Float[Array, 'batch length d_model'],
    kernels: Float[Array, '#batch #length heads taps'],
    tokens: Tokens,
    pattern: Pattern,
  ) -> Float[Array, 'batch length d_model']:
    before = _taps_before(pattern, self.kernel_size)
    by_head = (*source.shape[:2], self.num_heads, -1)
    y = jnp.zeros_like(source).reshape(by_head)
    for tap in range(self.kernel_size):
      value = jnp.roll(source, before - tap, axis=1)
      seen = _sees(tap - before, source.shape[1], tokens, pattern)
      weight = jnp.where(seen, kernels[..., tap], 0)
      value = value.reshape(by_head)
      y += broadcast(weight[..., None], value.shape, value.dtype) * value
    return y.reshape(source.shape)


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


def _sees(
  offset: int, length: int, tokens: Tokens, pattern: Pattern
) -> Bool[Array, '#batch length 1']:
  """Whether each token sees the one `offset` places after it."""
  positions, index = tokens.positions, jnp.arange(length)[None] + offset

  keys = jax.tree.map(lambda a: jnp.roll(a, -offset, axis=1), tokens)
  wanted = positions + offset
  seen = (index >= 0) & (index < length) & (keys.positions == wanted)
  seen &= pattern.allows(tokens, dataclasses.replace(keys, positions=wanted))
  if tokens.segments is not None:
    seen &= (keys.segments != 0) & (keys.segments == tokens.segments)
  return seen[..., None]


def picked(a: Array, order: Int[Array, 'batch picked']) -> Array:
  """The entries of each row, [batch, length, ...], in this order."""
  return jnp.take_along_axis(a, order.reshape(*order.shape, *[1] * (a.ndim - 2)), axis=1)


@dataclasses.dataclass(frozen=True)
class _Order:
  """A permutation of the tokens of each row, and the way back."""

  order: Int[Array, 'batch length']
  inverse: Int[Array, 'batch length']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecentTokens(Cache):
  """The last tokens of each row, padding left out; the newest is the last.

  Attributes:
    x: what a convolution is applied to, [batch, size, d_model].
    tokens: positions, segments and prefix, [batch, size]; segment 0: no token yet.
  """

  x: Any
  tokens: Tokens

  @staticmethod
  def empty(batch: int, size: int, width: int, dtype: Any) -> 'RecentTokens':
    """A cache without tokens."""
    zeros = jnp.zeros((batch, size), jnp.int32)
    return RecentTokens(
      jnp.zeros((batch, size, width), dtype),
      Tokens(zeros, zeros, marks={'prefix': zeros.astype(bool)}),
    )

  def followed_by(self, x: Array, tokens: Tokens) -> tuple[Array, Tokens, _Order]:
    """The cached tokens and then those of a call, all padding moved before them."""
    batch, length = x.shape[:2]

    def joined(old, new, default):
      new = jnp.full((1, 1), default, old.dtype) if new is None else new.astype(old.dtype)
      return jnp.concatenate([old, jnp.broadcast_to(new, (batch, length))], axis=1)

    segments = joined(self.tokens.segments, tokens.segments, 1)
    # A stable sort keeps the order of the tokens.
    order = jnp.argsort(segments != 0, axis=1)
    moved = Tokens(
      picked(joined(self.tokens.positions, tokens.positions, 0), order),
      picked(segments, order),
      marks={
        'prefix': picked(
          joined(self.tokens.marks['prefix'], tokens.marks.get('prefix'), False), order
        )
      },
    )
    both = jnp.concatenate([self.x.astype(x.dtype), x], axis=1)
    return picked(both, order), moved, _Order(order, jnp.argsort(order, axis=1))

  def keep(self, x: Array, tokens: Tokens) -> 'RecentTokens':
    """The cache of the last tokens of a row that `followed_by` gave."""
    first = x.shape[1] - self.x.shape[1]
    kept = jax.tree.map(lambda a: a[:, first:], tokens)
    return RecentTokens(x[:, first:].astype(self.x.dtype), kept)

  def repeat(self, copies: int) -> 'RecentTokens':
    return jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self)

  def take(self, rows: Int[Array, ' batch']) -> 'RecentTokens':
    return jax.tree.map(lambda a: a[rows], self)


@functools.cache
def _taps_before(pattern: Pattern, kernel_size: int) -> int:
  """How many taps lie before the token: all but its own where nobody may look ahead."""
  length = 2 * kernel_size
  positions = np.arange(length)[None]
  marked = Tokens(positions, marks=dict.fromkeys(marks_of(pattern), positions >= 0))
  ahead = pattern.mask(length, length) | pattern.mask(marked, marked)
  return kernel_size // 2 if np.triu(ahead, 1).any() else kernel_size - 1
