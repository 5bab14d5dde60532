"""Attention scores of queries and keys: dot products and cosines."""

import functools
import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.layers.base import Tokens, param
from t2x.layers.initializers import zeros
from t2x.layers.kernels.base import DotProduct
from t2x.ranges import Positive, Size


class DotProductScores(nnx.Module):
  """Scaled dot products, scale q k' (https://arxiv.org/abs/1706.03762).

  Args:
    num_heads: number of query heads.
    head_dim: ignored.
    soft_cap: replaces scores s by soft_cap * tanh(s / soft_cap) (Gemma 2, https://arxiv.org/abs/2408.00118).
      None: no cap.
    sink: whether the softmax of each head includes a learned logit without a value (gpt-oss; attention
      sinks, https://arxiv.org/abs/2309.17453).
  """

  reads = frozenset({'q', 'k', 'scale'})
  max_length: Size | None = None

  def __init__(
    self,
    num_heads: Size,
    head_dim: Size,
    *,
    soft_cap: Positive | None = None,
    sink: bool = False,
    rngs: nnx.Rngs,
  ):
    self.soft_cap = soft_cap
    logits = functools.partial(param, zeros(), (num_heads,), ('heads',), rngs, keep_float32=True)
    self.sink = logits() if sink else None

  def __call__(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
  ) -> DotProduct:
    """Returns queries and keys as `DotProduct`; the kernel computes the products."""
    sink = None if self.sink is None else self.sink[...]
    return DotProduct(q, k, scale, self.soft_cap, sink)


class CosineScores(nnx.Module):
  """Cosine similarity of query and key times a learned factor of each head (Swin v2,
  https://arxiv.org/abs/2111.09883).

  The factor is exp(min(logit, log max_factor)). It is multiplied into the queries, so that every kernel
  supports these scores. They do not read `MultiHeadAttention.scale`.

  Args:
    num_heads: number of query heads.
    head_dim: ignored.
    factor: initial value of the factor.
    max_factor: maximum of the factor.
  """

  reads = frozenset({'q', 'k'})
  max_length: Size | None = None

  def __init__(
    self,
    num_heads: Size,
    head_dim: Size,
    *,
    factor: Positive = 10.0,
    max_factor: Positive = 100.0,
    rngs: nnx.Rngs,
  ):
    self.max_factor = max_factor
    init = nnx.initializers.constant(math.log(factor))
    self.logit = param(init, (num_heads,), ('heads',), rngs, keep_float32=True)

  def __call__(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
  ) -> DotProduct:
    """Returns queries and keys, normalised in float32, as `DotProduct`."""
    assert q is not None and k is not None  # 'q' and 'k' are in `reads`.
    factor = jnp.exp(jnp.minimum(self.logit[...].astype(jnp.float32), math.log(self.max_factor)))
    q = (_normalize(q) * factor[None, None, :, None]).astype(q.dtype)
    return DotProduct(q, _normalize(k).astype(k.dtype), 1.0)


def _normalize(x: Array) -> Array:
  """Returns x / |x| over features, in float32 or wider; zero vectors stay zero, with finite gradients."""
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.square(x).sum(-1, keepdims=True)
  return x / jnp.sqrt(jnp.maximum(square, 1e-24))
