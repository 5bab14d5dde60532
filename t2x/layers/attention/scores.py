"""Attention scores: dot products, cosines, retrieval, talking heads, additive and bilinear scores."""

import math
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Positive, Size
from t2x.layers.attention.kernels.auto import Auto
from t2x.layers.attention.kernels.base import AttentionInputs, DotProduct, Logits, softmax_dtype
from t2x.layers.attention.projections import Heads
from t2x.layers.counting import pair_products
from t2x.layers.initializers import variance_scaling, xavier_uniform
from t2x.layers.interfaces import Call, Scores
from t2x.layers.parameters import Initializer, param
from t2x.layers.tokens import Tokens

__all__ = [
  'AdditiveScores',
  'BilinearScores',
  'CosineScores',
  'DotProductScores',
  'HopfieldScores',
  'TalkingHeads',
]


class _PairScores(nnx.Module):
  """Base class of scores of projected queries and keys; subclasses define `pairs`."""

  implements = (Scores,)
  reads = frozenset({'q', 'k'})
  max_length: Size | None = None

  def pairs(self, q: Array, k: Array, scale: float) -> DotProduct | Logits:
    """Returns the scores of queries [batch, queries, heads, head_dim] and keys [batch, keys, kv_heads, head_dim]."""
    raise NotImplementedError

  def __call__(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
    call: Call,
  ) -> DotProduct | Logits:
    assert q is not None and k is not None  # 'q' and 'k' are in `reads`.
    return self.pairs(q, k, scale)


class DotProductScores(_PairScores):
  """Scaled dot products, scale q k' (https://arxiv.org/abs/1706.03762).

  Args:
    heads: sizes of the attention layer.
    soft_cap: replaces scores s by soft_cap * tanh(s / soft_cap) (Gemma 2, https://arxiv.org/abs/2408.00118).
      None: no cap.
    sink: initialiser of a learned logit without a value in the softmax of each head (gpt-oss; attention
      sinks, https://arxiv.org/abs/2309.17453). None: no such logit.
  """

  reads = frozenset({'q', 'k', 'scale'})

  def __init__(
    self,
    heads: Heads,
    *,
    soft_cap: Positive | None = None,
    sink: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    self.soft_cap = soft_cap
    self.sink = sink and param(
      sink, (heads.num_heads,), ('heads',), rngs, kind='vector', keep_float32=True
    )

  def pairs(self, q: Array, k: Array, scale: float) -> DotProduct:
    """Returns queries and keys as `DotProduct`; the kernel computes the products."""
    sink = None if self.sink is None else self.sink[...]
    return DotProduct(q, k, scale, self.soft_cap, sink)


class CosineScores(_PairScores):
  """Cosine similarity of query and key times a learned factor of each head (Swin v2,
  https://arxiv.org/abs/2111.09883).

  The factor is exp(min(logit, log max_factor)). It is multiplied into the queries, so that every kernel
  supports these scores. They do not read `MultiHeadAttention.scale`.

  Args:
    heads: sizes of the attention layer.
    factor: initial value of the factor.
    max_factor: maximum of the factor.
  """

  def __init__(
    self,
    heads: Heads,
    *,
    factor: Positive = 10.0,
    max_factor: Positive = 100.0,
    rngs: nnx.Rngs,
  ):
    self.max_factor = max_factor
    init = nnx.initializers.constant(math.log(factor))
    self.logit = param(init, (heads.num_heads,), ('heads',), rngs, kind='vector', keep_float32=True)

  def pairs(self, q: Array, k: Array, scale: float) -> DotProduct:
    """Returns queries and keys, normalised in float32, as `DotProduct`."""
    factor = jnp.exp(jnp.minimum(self.logit[...].astype(jnp.float32), math.log(self.max_factor)))
    q = (_normalize(q) * factor[None, None, :, None]).astype(q.dtype)
    return DotProduct(q, _normalize(k).astype(k.dtype), 1.0)


class HopfieldScores(_PairScores):
  """Dot products of keys with a query that has retrieved a pattern from them (modern Hopfield network: Ramsauer et al.
  2020, https://arxiv.org/abs/2008.02217, equation 3).

  A step replaces the query by softmax(scale q K') K over the keys that it sees; the attention layer applies the last
  step to the values instead. One step is `DotProductScores`; with well separated keys and a large
  `MultiHeadAttention.scale` (the paper's beta), more steps approach one key. The number of steps is fixed, where the
  authors' code stops when a query moves by less than a tolerance. Position encodings may rotate queries and keys; a
  bias of the scores or a memory is refused.

  Args:
    num_steps: number of steps, including that of the attention layer.
  """

  reads = frozenset({'q', 'k', 'scale', 'pattern'})

  def __init__(self, heads: Heads, *, num_steps: Size, rngs: nnx.Rngs):
    self.num_steps = num_steps

  def __call__(self, q, k, q_tokens, k_tokens, *, scale, call):
    assert q is not None and k is not None  # 'q' and 'k' are in `reads`.
    for _ in range(self.num_steps - 1):
      scores = DotProduct(q, k, scale)
      inputs = AttentionInputs(scores, k, call.pattern, q_tokens, k_tokens)
      q = Auto()(inputs.without_features())
    return DotProduct(q, k, scale)


class TalkingHeads(_PairScores):
  """Scaled dot products with learned mixtures of heads before and after the softmax (Shazeer et al. 2020,
  https://arxiv.org/abs/2003.02436).

  Head h has the scores sum_g S_g before[g, h], and its probabilities are sum_g P_g after[g, h]. Both matrices are
  initially the identity. Terms of position encodings are added to the mixed scores. The full matrix of scores is
  kept in memory.

  Args:
    heads: sizes of the attention layer.
  """

  reads = frozenset({'q', 'k', 'scale'})

  def __init__(self, heads: Heads, *, rngs: nnx.Rngs):
    def identity(key, shape, dtype):
      return jnp.eye(heads.num_heads, dtype=dtype)

    def mixture():
      shape, axes = (heads.num_heads, heads.num_heads), ('mixed_heads', 'heads')
      return param(identity, shape, axes, rngs, kind='identity', keep_float32=True)

    self.before, self.after = mixture(), mixture()

  def pairs(self, q: Array, k: Array, scale: float) -> Logits:
    dtype = softmax_dtype(q)
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    with pair_products():
      dots = jnp.einsum('bqkge,bske->bkgqs', grouped, k, preferred_element_type=dtype) * scale
      dots = dots.reshape(len(q), q.shape[2], q.shape[1], k.shape[1])
      mixed = jnp.einsum('bgqs,gh->bhqs', dots, self.before[...].astype(dtype))
    return Logits(mixed, self.after[...].astype(dtype))


class AdditiveScores(_PairScores):
  """Additive scores w activation(q + k)' with a learned vector w for each head (Bahdanau et al. 2014,
  https://arxiv.org/abs/1409.0473, section A.1.2).

  The projections of the attention layer are the paper's W_a and U_a. Each pair of tokens needs an array of
  all features, so memory grows with length^2 d_model, and the kernel must be `Dense` or `Auto`. The
  scores do not read `MultiHeadAttention.scale`.

  Args:
    heads: sizes of the attention layer.
    activation: elementwise function.
    init: initialiser of w [num_heads, head_dim].
  """

  def __init__(
    self,
    heads: Heads,
    *,
    activation: Callable[[Array], Array] = jnp.tanh,
    init: Initializer = variance_scaling(1.0, 'fan_out', 'normal'),
    rngs: nnx.Rngs,
  ):
    self.activation = activation
    self.w = param(init, heads.queries, ('heads', 'head_dim'), rngs, kind='vector')

  def pairs(self, q: Array, k: Array, scale: float) -> Logits:
    """Returns the scores of all pairs, in float32 or wider."""
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    pairs = self.activation(q[:, :, None] + k[:, None])
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    w = self.w[...].astype(q.dtype)
    with pair_products():
      return Logits(jnp.einsum('bqkhd,hd->bhqk', pairs, w, preferred_element_type=dtype))


class BilinearScores(_PairScores):
  """Bilinear scores q W k' with a learned matrix W for each head (`general` in Luong et al. 2015,
  https://arxiv.org/abs/1508.04025, equation 8).

  q W is the query of a dot product, so that every kernel supports these scores. They do not read
  `MultiHeadAttention.scale`.

  Args:
    heads: sizes of the attention layer.
    init: initialiser of each W [head_dim, head_dim].
  """

  def __init__(
    self,
    heads: Heads,
    *,
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    matrix = heads.head_dim, heads.head_dim
    shape, axes = (heads.num_heads, *matrix), ('heads', 'head_dim', 'head_dim')
    self.w = param(init, shape, axes, rngs, matrix=matrix)

  def pairs(self, q: Array, k: Array, scale: float) -> DotProduct:
    """Returns q W and the keys as `DotProduct`; the kernel computes the products."""
    return DotProduct(jnp.einsum('bqhd,hde->bqhe', q, self.w[...].astype(q.dtype)), k, 1.0)


def _normalize(x: Array) -> Array:
  """Returns x / |x| over features, in float32 or wider; zero vectors stay zero, with finite gradients."""
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.square(x).sum(-1, keepdims=True)
  return x / jnp.sqrt(jnp.maximum(square, 1e-24))
