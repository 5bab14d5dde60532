"""Scores of attention: how queries and keys become the numbers that a softmax is taken of."""

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
  """scale q k', the scores of the Transformer (https://arxiv.org/abs/1706.03762).

  Args:
    num_heads: query heads.
    head_dim: not used.
    soft_cap: scores s become soft_cap * tanh(s / soft_cap) (Gemma 2, https://arxiv.org/abs/2408.00118).
      None: no cap.
    sink: adds a learned logit to each head's softmax that takes probability and has no value (gpt-oss;
      attention sinks, https://arxiv.org/abs/2309.17453).
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
    """The dot products, for any kernel."""
    sink = None if self.sink is None else self.sink[...]
    return DotProduct(q, k, scale, self.soft_cap, sink)


class CosineScores(nnx.Module):
  """Cosine of query and key, times a learned temperature of each head (Swin v2,
  https://arxiv.org/abs/2111.09883).

  The factor is exp(min(logit, log max_factor)). It is folded into the queries, so that every kernel takes
  the scores. They do not read `MultiHeadAttention.scale`.

  Args:
    num_heads: query heads.
    head_dim: not used.
    factor: the factor at initialisation.
    max_factor: largest factor.
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
    """The scores; normalisation is in float32."""
    assert q is not None and k is not None  # It reads them.
    factor = jnp.exp(jnp.minimum(self.logit[...].astype(jnp.float32), math.log(self.max_factor)))
    q = (_normalized(q) * factor[None, None, :, None]).astype(q.dtype)
    return DotProduct(q, _normalized(k).astype(k.dtype), 1.0)


def _normalized(x: Array) -> Array:
  """x / |x| over features, in float32 or wider; zeros stay zeros, with finite gradients."""
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.square(x).sum(-1, keepdims=True)
  return x / jnp.sqrt(jnp.maximum(square, 1e-24))
