"""Gated DeltaNet (Yang et al. 2024, https://arxiv.org/abs/2412.06464): a linear recurrence whose state forgets by a
gate and replaces the value stored under a key (the delta rule)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import HeadProjections, Hidden
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.caches import RecurrentState
from t2x.layers.counting import token_sums
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, SourceSequence
from t2x.layers.mixers.convolutions import RecentTokens, apply_with_recent, causal_taps
from t2x.layers.mixers.recurrence import Inputs, LinearState, decayed, recurrence, split
from t2x.layers.norms import RMSNorm, norm_over
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.patterns.algebra import Causal
from t2x.layers.tokens import Tokens

__all__ = ['GatedDeltaNet']

# Added to the squared norms of queries and keys, as in the authors' code.
EPSILON = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeltaCache(RecurrentState):
  """Cache of `GatedDeltaNet` and `Mamba2`.

  Attributes:
    recent: queries, keys and values of the last tokens before the convolution, [batch, taps - 1, ...].
    state: the state after the last token.
  """

  recent: RecentTokens | None
  state: LinearState


class GatedDeltaNet(HeadProjections):
  """Gated delta rule: S_t = alpha_t S_{t-1} (I - beta_t k_t k_t') + beta_t v_t k_t', with the output S_t q_t.

  Queries, keys and values pass a short causal depthwise convolution and SiLU; queries and keys are then
  normalised to length 1, and queries divided by sqrt(head_dim). The gates of each head are
  beta = sigmoid(x w_b) and, as in Mamba-2, alpha = exp(-exp(a) softplus(x w_a + b)). Outputs are normalised per
  head and multiplied by SiLU(x W_g) before the output projection. No projection has a bias. In the paper's models
  values have twice the features of keys; here they have the same.

  The pattern must be Causal(), tokens must be in the order of their positions, and the tokens of a segment
  must be contiguous except for padding. Time and memory are linear in the length: within a chunk the recurrence is
  one triangular system of equations (the WY representation, section 3.3), and the state is passed between
  chunks. Decoding caches the state and the inputs of the convolution.

  Args:
    kernel_size: taps of the convolution.
    chunk: tokens per chunk.
    kernel_init: initialiser of the projections, except the output projection.

  Raises:
    UserError: see `HeadProjections`.
  """

  patterns = (Causal(),)

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None = None,
    kernel_size: Size = 4,
    chunk: Size = 64,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      num_heads=num_heads,
      head_dim=head_dim,
      use_bias=False,
      out_bias=False,
      kernel_init=kernel_init,
      out_init=out_init,
      rngs=rngs,
    )
    self.kernel_size = kernel_size
    self.chunk = chunk
    linear = functools.partial(Linear, (d_model,), init=kernel_init, use_bias=False, rngs=rngs)
    heads = self.num_heads, self.head_dim
    self.gate = linear(heads, ('embed', 'heads', 'head_dim'))
    self.beta = linear(heads[:1], ('embed', 'heads'))
    self.alpha = linear(heads[:1], ('embed', 'heads'))
    vector = functools.partial(param, rngs=rngs, kind='vector', keep_float32=True)
    self.decay = vector(decay_rates, heads[:1], ('heads',))
    self.step = vector(step_sizes, heads[:1], ('heads',))
    axes = 'taps', 'projections', 'heads', 'head_dim'
    self.taps = param(uniform_taps, (kernel_size, 3, *heads), axes, rngs, kind='filter')
    self.norm = norm_over('head_dim', RMSNorm, self.head_dim, rngs)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> DeltaCache:
    """Returns an empty cache, of a size that does not depend on `num_slots`; the state is in float32."""
    features = 3, self.num_heads, self.head_dim
    recent = RecentTokens.empty(batch, self.kernel_size - 1, features, dtype)
    return DeltaCache(recent, self._empty(batch, Dtypes.reductions))

  def _empty(self, batch: int, dtype: DTypeLike) -> LinearState:
    """Returns the empty state; its sums are the transposed state S'."""
    sums = jnp.zeros((batch, self.num_heads, self.head_dim, self.head_dim), dtype)
    return LinearState(sums, jnp.zeros(batch, jnp.int32))

  def __call__(self, x: Hidden, call: Call, cache: DeltaCache | None = None) -> Result:
    """Reads from the state of the tokens of `x` and of the cache; padding leaves the state unchanged."""
    self.check_call(call)
    dtype, tokens = softmax_dtype(x), call.tokens
    inputs = jnp.stack(self.project(x), axis=2)
    cached = DeltaCache(None, self._empty(len(x), dtype)) if cache is None else cache
    state = cached.state.astype(dtype)
    mixed, recent = apply_with_recent(self._convolve, inputs, tokens, cached.recent)
    q, k, v = jnp.moveaxis(jax.nn.silu(mixed), 2, 0)
    q, k = normalized(q.astype(dtype)) * self.head_dim**-0.5, normalized(k.astype(dtype))
    beta = jax.nn.sigmoid(self.beta(x).astype(dtype))
    rate, step = (a[...].astype(dtype)[None, None] for a in (self.decay, self.step))
    log_alpha = -jnp.exp(rate) * jax.nn.softplus(self.alpha(x).astype(dtype) + step)
    segments = jnp.broadcast_to(tokens.row_segments, x.shape[:2])
    y, state = gated_delta_rule(q, k, v.astype(dtype), log_alpha, beta, segments, state, self.chunk)
    y = self.norm(y) * jax.nn.silu(self.gate(x).astype(dtype))
    if cache is not None:
      cache = DeltaCache(recent, state.astype(cache.state.sums.dtype))
    return Result(self.output(y.astype(x.dtype)), cache)

  @token_sums()
  def _convolve(
    self,
    x: Float[Array, 'batch length 3 heads head_dim'],
    tokens: Tokens,
    order: Array | None = None,
  ) -> Float[Array, 'batch length 3 heads head_dim']:
    return causal_taps(x, self.taps[...], tokens)


def gated_delta_rule(
  q: Float[Array, 'batch length heads head_dim'],
  k: Float[Array, 'batch length heads head_dim'],
  v: Float[Array, 'batch length heads v_dim'],
  log_alpha: Float[Array, 'batch length heads'],
  beta: Float[Array, 'batch length heads'],
  segments: Int[Array, 'batch length'],
  state: LinearState,
  chunk: int,
) -> tuple[Float[Array, 'batch length heads v_dim'], LinearState]:
  """Computes the recurrence of `GatedDeltaNet` from a zero state at the start of each segment, chunk by chunk.

  Within a chunk, S_t' = exp(G_t) S_0' + sum_j exp(G_t - G_j) k_j u_j' with G the sums of log_alpha, where u
  solves u_i + beta_i sum_{j<i} exp(G_i - G_j) (k_i k_j) u_j = beta_i (v_i - exp(G_i) S_0 k_i).

  Args:
    q: queries.
    k: keys.
    v: values.
    log_alpha: logarithms of the decays, at most 0.
    beta: strengths of the updates.
    segments: segments of the tokens; 0 is padding.
    state: state before the first token.
    chunk: tokens per chunk.

  Returns:
    S_t q_t, zero for padding, and the state after the last token.
  """
  length = q.shape[1]
  is_token = (segments != 0)[..., None]
  log_alpha, beta = jnp.where(is_token, log_alpha, 0), jnp.where(is_token, beta, 0)
  inputs = Inputs(q, k, v, segments, log_alpha).split(min(chunk, length))
  beta = split(beta, min(chunk, length))
  assert inputs.logs is not None
  total = jnp.cumsum(inputs.logs, axis=2)
  # [chunks, batch, heads, chunk, ...]
  k, v, by_head, beta = (jnp.moveaxis(a, 3, 2) for a in (inputs.k, inputs.v, total, beta))
  segments = inputs.segments
  visible = (segments[..., :, None] == segments[..., None, :]) & (segments != 0)[..., None]
  visible = jnp.tril(visible, -1)[:, :, None]
  # Differences for later tokens may overflow: masked before the exponential.
  logs = by_head[..., :, None] - by_head[..., None, :]
  decays = jnp.exp(jnp.where(visible, logs, -jnp.inf))
  system = beta[..., None] * decays * exact_einsum('nbhid,nbhjd->nbhij', k, k)
  sides = beta[..., None] * jnp.concatenate([v, jnp.exp(by_head)[..., None] * k], axis=-1)
  solved = jnp.moveaxis(_product(_unit_inverse(system), sides), 2, 3)
  u, w = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
  chunks = dataclasses.replace(inputs, v=u, logs=total, erased=w)
  y, _, state = recurrence(chunks, state, decayed)
  return y[:, :length], state


def _unit_inverse(lower: Float[Array, '*rest n n']) -> Float[Array, '*rest n n']:
  """Returns the inverse of I + `lower`, a strictly lower triangular matrix.

  Inverts all blocks on the diagonal of sizes 2, 4, 8, ... from their halves, with two batched products for each size.
  With `triangular_solve` of jax 0.10.2, rows of 4096 tokens deadlock on a CPU.
  """
  *rest, n, _ = lower.shape
  size = 1 << (n - 1).bit_length()
  lower = jnp.pad(lower, [(0, 0)] * len(rest) + [(0, size - n)] * 2)
  inverse = jnp.ones((*rest, size, 1, 1), lower.dtype)
  half = 1
  while half < size:
    count = size // (2 * half)
    blocks = lower.reshape(*rest, count, 2 * half, count, 2 * half)
    blocks = jnp.moveaxis(jnp.diagonal(blocks, axis1=-4, axis2=-2), -1, -3)
    pairs = inverse.reshape(*rest, count, 2, half, half)
    first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
    corner = -_product(_product(second, blocks[..., half:, :half]), first)
    inverse = jnp.block([[first, jnp.zeros_like(first)], [corner, second]])
    half *= 2
  return inverse[..., 0, :n, :n]


def _product(
  a: Float[Array, '*rest n k'], b: Float[Array, '*rest k m']
) -> Float[Array, '*rest n m']:
  return exact_einsum('...nk,...km->...nm', a, b)


def normalized(x: Float[Array, '*rest head_dim']) -> Float[Array, '*rest head_dim']:
  """Divides vectors by their length."""
  return x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + EPSILON)


def decay_rates(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
  """Logarithms of numbers between 1 and 16, as in Mamba-2 (https://arxiv.org/abs/2405.21060)."""
  return jnp.log(jax.random.uniform(key, shape, dtype, 1.0, 16.0))


def step_sizes(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
  """Biases whose softplus is log-uniform between 0.001 and 0.1, as in Mamba-2."""
  steps = jnp.exp(jax.random.uniform(key, shape, dtype, math.log(0.001), math.log(0.1)))
  return steps + jnp.log(-jnp.expm1(-steps))


def uniform_taps(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
  """Uniform between -1 / sqrt(taps) and 1 / sqrt(taps), PyTorch's default of a depthwise convolution."""
  limit = shape[0] ** -0.5
  return jax.random.uniform(key, shape, dtype, -limit, limit)
