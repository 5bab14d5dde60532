"""Sparse Sinkhorn attention (Tay et al. 2020, https://arxiv.org/abs/2002.11296): each block of tokens attends to
itself and to a block chosen by a learned, differentiable sorting of the blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2x.base.ranges import ScoreScale, Size, TunableRate
from t2x.layers.attention.head_projections import HeadFeatures, Hidden, WholeRow
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.dtypes import exact_einsum
from t2x.layers.interfaces import Call
from t2x.layers.parameters import dropout
from t2x.layers.tokens import to_blocks

__all__ = ['SinkhornAttention']

# Score of a hidden pair, as log-domain normalisation would turn infinities into NaN.
HIDDEN = -1e9

Blocks = Float[Array, 'batch blocks block heads head_dim']


class SinkhornAttention(WholeRow):
  """Attention to the keys and values of the own block and of a matched block.

  The matched keys and values of block i are the sum over j of S_ij times those of block j, where S is the
  Sinkhorn normalisation (rows, then columns, repeatedly) of exp(mean(q_i) mean(k_j)' / (sqrt(head_dim)
  temperature)) over the means of the blocks. The paper computes the scores by an MLP with one output per block
  and adds Gumbel noise in training; these scores need no maximum length and no noise.

  Under Causal() block i can match only earlier blocks, the mean of q_i is that of the tokens up to the first
  token of the block, and a column is divided by the sum of its rows up to row i, so that no block depends on
  later ones. The first block then attends only to itself.

  Matched blocks are sums over the row; see `WholeRow`. The pattern must be Full() or Causal().

  Args:
    block: tokens per block. The last block of a row may be shorter. Time is proportional to
      length * (block + length / block).
    iterations: number of normalisations of the rows and columns.
    temperature: divides the scores of the blocks; low values match one block instead of a mixture.
    dropout_rate: dropout of the attention probabilities.
    settings: those of `HeadProjections`.
  """

  uses_rows = 'sorts the blocks of a row'

  def __init__(
    self,
    d_model: int,
    *,
    block: Size = 64,
    iterations: Size = 8,
    temperature: ScoreScale = 0.75,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.block, self.iterations, self.temperature = block, iterations, temperature
    self.dropout_rate = dropout_rate

  def mix(self, x: Hidden, call: Call, is_causal: bool) -> HeadFeatures:
    """Attends from each token of `x` to its own and the matched block."""
    batch, length = x.shape[:2]
    present = jnp.broadcast_to(call.tokens.present, (batch, length))
    block = min(self.block, length)
    q, k, v, present = (to_blocks(a, block) for a in (*self.rows(x), present))
    k, v = (jnp.where(present[..., None, None], a, 0) for a in (k, v))
    y = self._attend(q, k, v, present, is_causal, call.key).reshape(batch, -1, *q.shape[3:])
    return y[:, :length].astype(x.dtype)

  def _attend(
    self,
    q: Blocks,
    k: Blocks,
    v: Blocks,
    present: Bool[Array, 'batch blocks block'],
    is_causal: bool,
    key: Array | None,
  ) -> Blocks:
    num_blocks, block = present.shape[1:]
    has_tokens = present.any(axis=2)
    pairs = has_tokens[:, :, None] & has_tokens[:, None, :]
    if is_causal:
      pairs = pairs & np.tri(num_blocks, k=-1, dtype=bool)[None]
    scores = self._block_scores(q, k, present, is_causal)
    sorting = sinkhorn(scores, pairs[:, None], self.iterations, is_causal=is_causal).astype(k.dtype)
    matched_k, matched_v = (jnp.einsum('bhij,bjthd->bithd', sorting, a) for a in (k, v))
    # A matched key is visible if it is a sum of at least one token.
    matched = jnp.einsum('bij,bjt->bit', pairs.astype(jnp.int32), present.astype(jnp.int32)) > 0
    within = np.tri(block, dtype=bool) if is_causal else np.ones((block, block), bool)
    # Padding attends to itself, so that each query has a key.
    own = within[None, None] & (present[:, :, None] | np.eye(block, dtype=bool)[None, None])
    visible = jnp.concatenate([jnp.broadcast_to(matched[:, :, None], own.shape), own], axis=-1)
    k, v = (jnp.concatenate(pair, axis=2) for pair in ((matched_k, k), (matched_v, v)))
    dtype = softmax_dtype(q)
    scores = jnp.einsum('biqhd,bikhd->bihqk', q, k, preferred_element_type=dtype)
    scores = jnp.where(visible[:, :, None], scores * self.head_dim**-0.5, HIDDEN)
    probabilities = dropout(jax.nn.softmax(scores).astype(v.dtype), self.dropout_rate, key)
    return jnp.einsum('bihqk,bikhd->biqhd', probabilities, v)

  def _block_scores(
    self, q: Blocks, k: Blocks, present: Bool[Array, 'batch blocks block'], is_causal: bool
  ) -> Float[Array, 'batch heads blocks blocks']:
    """Returns the scores of the means of the queries of each block and the keys of each block."""
    dtype = softmax_dtype(q)
    weights = present[..., None, None].astype(dtype)
    q_sum, k_sum = ((a.astype(dtype) * weights).sum(axis=2) for a in (q, k))
    q_count = k_count = weights.sum(axis=2)
    if is_causal:
      # All tokens before the block, and its first token.
      first = weights[:, :, 0]
      q_sum = jnp.cumsum(q_sum, axis=1) - q_sum + first * q[:, :, 0].astype(dtype)
      q_count = jnp.cumsum(q_count, axis=1) - q_count + first
    q_mean, k_mean = q_sum / jnp.maximum(q_count, 1), k_sum / jnp.maximum(k_count, 1)
    scale = self.head_dim**-0.5 / self.temperature
    return exact_einsum('bihd,bjhd->bhij', q_mean, k_mean) * scale


def sinkhorn(
  scores: Float[Array, 'batch heads rows columns'],
  pairs: Bool[Array, 'batch #heads rows columns'],
  iterations: int,
  *,
  is_causal: bool,
) -> Float[Array, 'batch heads rows columns']:
  """Normalises the rows and columns of exp(scores) alternately, in the logarithmic domain.

  Args:
    scores: the logarithm of the matrix.
    pairs: the entries that are not 0.
    iterations: number of normalisations of the rows and columns.
    is_causal: whether a column is divided by the sum of its rows up to the current row.
  """

  def hide(scores: Array) -> Array:
    return jnp.where(pairs, scores, HIDDEN)

  def normalize(_: object, scores: Array) -> Array:
    scores = hide(scores - jax.nn.logsumexp(scores, axis=3, keepdims=True))
    if is_causal:
      return hide(scores - jax.lax.cumlogsumexp(scores, axis=2))
    return hide(scores - jax.nn.logsumexp(scores, axis=2, keepdims=True))

  return jnp.exp(jax.lax.fori_loop(0, iterations, normalize, hide(scores)))
