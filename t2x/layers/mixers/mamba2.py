"""Mamba-2 (Dao & Gu 2024, https://arxiv.org/abs/2405.21060): a linear recurrence whose decay depends on the token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Epsilon, Size
from t2x.layers.attention.head_projections import Hidden, check_patterns
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.attention.projections import output_projection
from t2x.layers.constraints import constrain
from t2x.layers.counting import token_sums
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import ones, xavier_uniform, zeros
from t2x.layers.interfaces import Call, Result, SourceSequence, Sublayer
from t2x.layers.mixers.convolutions import RecentTokens, apply_with_recent, causal_taps
from t2x.layers.mixers.gated_delta import DeltaCache, decay_rates, step_sizes, uniform_taps
from t2x.layers.mixers.recurrence import Inputs, LinearState, decayed, recurrence
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.patterns.algebra import Causal
from t2x.layers.tokens import Tokens

__all__ = ['Mamba2']


class Mamba2(nnx.Module):
  """Selective state space: S_t = exp(-exp(a) d_t) S_{t-1} + d_t k_t v_t', with the output q_t S_t + D v_t.

  The step of each head is d = softplus(x w_d + b). Values, keys (B of the paper) and queries (C) pass a short causal
  depthwise convolution and SiLU; the heads of a group share keys and queries. Outputs are multiplied by SiLU(x W_g) and
  divided by their root mean square over the features of a group, then scaled and projected.

  The pattern must be Causal(), tokens must be in the order of their positions, and the tokens of a segment must be
  contiguous except for padding. Time and memory are linear in the length; decoding caches the state and the inputs of
  the convolution.

  Args:
    d_model: width of the input and output.
    num_heads: number of heads.
    head_dim: features per head of the values; the paper has num_heads * head_dim = 2 d_model.
    state_dim: features of keys and queries.
    num_groups: number of groups of heads.
    kernel_size: taps of the convolution.
    use_bias: whether the projections have biases.
    conv_bias: whether the convolution has a bias.
    epsilon: added to the mean square of the outputs.
    chunk: tokens per chunk.
    kernel_init: initialiser of the projections of the input.
    out_init: initialiser of the output projection. None: `kernel_init`.

  Raises:
    UserError: num_groups does not divide num_heads; when called, the pattern is not Causal(), or there is a source.
  """

  implements = (Sublayer,)
  reads = frozenset({'pattern'})
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size = 64,
    state_dim: Size = 128,
    num_groups: Size = 1,
    kernel_size: Size = 4,
    use_bias: bool = False,
    conv_bias: bool = True,
    epsilon: Epsilon = 1e-5,
    chunk: Size = 256,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    if num_heads % num_groups:
      raise UserError(
        f'Mamba2.num_groups = {num_groups} does not divide Mamba2.num_heads = {num_heads}'
      )
    self.num_heads, self.head_dim, self.state_dim = num_heads, head_dim, state_dim
    self.num_groups, self.kernel_size = num_groups, kernel_size
    self.epsilon, self.chunk = epsilon, chunk
    heads, states = (num_heads, head_dim), (num_groups, state_dim)
    head_axes, state_axes = ('heads', 'head_dim'), ('groups', 'states')
    linear = functools.partial(Linear, (d_model,), init=kernel_init, use_bias=use_bias, rngs=rngs)
    self.gate, self.v = (linear(heads, ('embed', *head_axes)) for _ in range(2))
    self.k, self.q = (linear(states, ('embed', *state_axes)) for _ in range(2))
    self.step = linear((num_heads,), ('embed', 'heads'))
    self.has_conv_bias = conv_bias
    shapes = {'v': (heads, head_axes), 'k': (states, state_axes), 'q': (states, state_axes)}
    for name, (shape, axes) in shapes.items():
      taps = param(uniform_taps, (kernel_size, *shape), ('taps', *axes), rngs, kind='filter')
      setattr(self, f'{name}_taps', taps)
      bias = param(zeros(), shape, axes, rngs, kind='vector') if conv_bias else None
      setattr(self, f'{name}_bias', bias)
    vector = functools.partial(param, rngs=rngs, kind='vector', keep_float32=True)
    self.decay = vector(decay_rates, (num_heads,), ('heads',))
    self.step_bias = vector(step_sizes, (num_heads,), ('heads',))
    self.skip = vector(ones(), (num_heads,), ('heads',))
    self.scale = vector(ones(), heads, head_axes)
    self.out = output_projection(heads, d_model, out_init or kernel_init, use_bias, rngs)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> DeltaCache:
    """Returns an empty cache, of a size that does not depend on `num_slots`; the state is in float32."""
    features = self.num_heads * self.head_dim + 2 * self.num_groups * self.state_dim
    recent = RecentTokens.empty(batch, self.kernel_size - 1, (features,), dtype)
    return DeltaCache(recent, self._empty(batch, Dtypes.reductions))

  def _empty(self, batch: int, dtype: DTypeLike) -> LinearState:
    sums = jnp.zeros((batch, self.num_heads, self.state_dim, self.head_dim), dtype)
    return LinearState(sums, jnp.zeros(batch, jnp.int32))

  def __call__(self, x: Hidden, call: Call, cache: DeltaCache | None = None) -> Result:
    """Reads from the state of the tokens of `x` and of the cache; padding leaves the state unchanged."""
    check_patterns(self, call, (Causal(),))
    dtype, tokens = softmax_dtype(x), call.tokens
    cached = DeltaCache(None, self._empty(len(x), dtype)) if cache is None else cache
    v, k, q, recent = self._convolved(x, tokens, cached.recent)
    v, k, q = v.astype(dtype), self._by_head(k.astype(dtype)), self._by_head(q.astype(dtype))
    rate, bias, skip = (
      a[...].astype(dtype)[None, None] for a in (self.decay, self.step_bias, self.skip)
    )
    segments = jnp.broadcast_to(tokens.row_segments, x.shape[:2])
    step = jax.nn.softplus(self.step(x).astype(dtype) + bias)
    step = jnp.where((segments != 0)[..., None], step, 0)
    length, size = x.shape[1], min(self.chunk, x.shape[1])
    inputs = Inputs(q, k, v * step[..., None], segments, -jnp.exp(rate) * step).split(size)
    assert inputs.logs is not None
    chunks = dataclasses.replace(inputs, logs=jnp.cumsum(inputs.logs, axis=2))
    y, _, state = recurrence(chunks, cached.state.astype(dtype), decayed)
    y = y[:, :length] + v * skip[..., None]
    y = self._normalized(y * jax.nn.silu(self.gate(x).astype(dtype)))
    if cache is not None:
      cache = DeltaCache(recent, state.astype(cache.state.sums.dtype))
    return Result(self.out(constrain(y.astype(x.dtype), 'batch', 'length', 'heads', None)), cache)

  def _convolved(
    self, x: Hidden, tokens: Tokens, recent: RecentTokens | None
  ) -> tuple[Array, Array, Array, RecentTokens | None]:
    """Returns the values, keys and queries after the convolution, and its last inputs."""
    parts = [vars(self)[name](x) for name in 'vkq']
    flat = jnp.concatenate([part.reshape(*x.shape[:2], -1) for part in parts], axis=-1)
    mixed, recent = apply_with_recent(self._convolve, flat, tokens, recent)
    ends = [part[0, 0].size for part in parts]
    v, k, q = jnp.split(mixed, [ends[0], ends[0] + ends[1]], axis=-1)
    v, k, q = (jax.nn.silu(a.reshape(part.shape)) for a, part in zip((v, k, q), parts, strict=True))
    return v, k, q, recent

  @token_sums()
  def _convolve(
    self, x: Float[Array, 'batch length features'], tokens: Tokens, order: Array | None = None
  ) -> Float[Array, 'batch length features']:
    taps = [vars(self)[f'{name}_taps'][...].reshape(self.kernel_size, -1) for name in 'vkq']
    y = causal_taps(x, jnp.concatenate(taps, axis=-1), tokens)
    if not self.has_conv_bias:
      return y
    bias = jnp.concatenate([vars(self)[f'{name}_bias'][...].reshape(-1) for name in 'vkq'])
    return y + bias.astype(x.dtype)[None, None]

  def _by_head(self, x: Float[Array, 'batch length groups states']) -> Array:
    return jnp.repeat(x, self.num_heads // self.num_groups, axis=2)

  def _normalized(self, y: Float[Array, 'batch length heads head_dim']) -> Array:
    """Divides by the root mean square of a group of heads, and scales."""
    grouped = y.reshape(*y.shape[:2], self.num_groups, -1)
    square = jnp.square(grouped).mean(axis=-1, keepdims=True)
    y = (grouped * jax.lax.rsqrt(square + self.epsilon)).reshape(y.shape)
    return y * self.scale[...].astype(y.dtype)[None, None]
