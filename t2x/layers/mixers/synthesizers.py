"""Synthesizers (Tay et al. 2020, https://arxiv.org/abs/2005.00743): attention with synthetic scores, which
replace dot products of queries and keys or are mixed with them."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size, TunableRate
from t2x.layers.attention.kernels import Dense, Logits
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.attention.multi_head import MultiHeadAttention
from t2x.layers.counting import pair_products
from t2x.layers.initializers import xavier_uniform, zeros
from t2x.layers.interfaces import Call, Scores
from t2x.layers.mixers.synthetic_scores import PairScores
from t2x.layers.parameters import Initializer, param
from t2x.layers.tokens import Tokens

__all__ = ['Plus', 'PlusAlpha', 'Replace', 'Synthesizer']


@runtime_checkable
class Mix(Protocol):
  """Combines dot products and synthetic scores. Built as `Mix(rngs=rngs)`.

  Attributes:
    reads: {'q', 'k', 'scale'} if the mix uses dot products, else empty.
  """

  reads: frozenset[str]

  def __call__(self, dots: PairScores | None, synthetic: PairScores) -> PairScores:
    """Returns the scores; `dots` is None if `reads` is empty."""
    ...


class Replace(nnx.Module):
  """Uses only the synthetic scores; keys are not projected."""

  implements = (Mix,)
  reads: frozenset[str] = frozenset()

  def __init__(self, *, rngs: nnx.Rngs):
    pass

  def __call__(self, dots: PairScores | None, synthetic: PairScores) -> PairScores:
    return synthetic


class Plus(nnx.Module):
  """Adds scaled dot products and synthetic scores."""

  implements = (Mix,)
  reads = frozenset({'q', 'k', 'scale'})

  def __init__(self, *, rngs: nnx.Rngs):
    pass

  def __call__(self, dots: PairScores, synthetic: PairScores) -> PairScores:
    return dots + synthetic


class PlusAlpha(nnx.Module):
  """Mixes with a learned weight: alpha dots + (1 - alpha) synthetic. alpha is a sigmoid, initially 1 / 2."""

  implements = (Mix,)
  reads = frozenset({'q', 'k', 'scale'})

  def __init__(self, *, rngs: nnx.Rngs):
    self.logit = param(zeros(), (), (), rngs, kind='scalar', keep_float32=True)

  def __call__(self, dots: PairScores, synthetic: PairScores) -> PairScores:
    """Returns the weighted mean in the dtype of `dots`."""
    alpha = jax.nn.sigmoid(self.logit[...]).astype(dots.dtype)
    return alpha * dots + (1 - alpha) * synthetic


class Synthesizer(MultiHeadAttention):
  """Self-attention with synthetic scores instead of dot products or mixed with them.

  Queries are projected only if `scores` or `mix` reads them, keys only if `mix` reads them. The position of
  a token in its segment is its row and column in the tables. Position terms (`T5Bias`, `ShawPositions`) are
  added after the mix. The full matrix of scores is kept in memory.

  Args:
    num_heads: number of heads.
    scores: builds the synthetic scores.
    mix: builds the combination of synthetic scores and dot products, as `mix(rngs=rngs)`.
    use_bias: whether the query, key and value projections have biases.
    scale: factor of the dot products. None: 1 / sqrt(head_dim).

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None, or `scale` is set without dot
      products; when called, the call has a source or rows longer than the scores' max_length.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None = None,
    scores: Callable[..., Scores],
    mix: Callable[..., Mix] = Replace,
    use_bias: bool = True,
    out_bias: bool = True,
    scale: Positive | None = None,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    self.mix = mix(rngs=rngs)
    super().__init__(
      d_model,
      num_heads=num_heads,
      head_dim=head_dim,
      scores=scores,
      use_bias=use_bias,
      out_bias=out_bias,
      kernel=Dense(),
      scale=scale,
      dropout_rate=dropout_rate,
      kernel_init=kernel_init,
      out_init=out_init,
      rngs=rngs,
    )

  @property
  def score_inputs(self) -> frozenset[str]:
    """Arguments that the synthetic scores and the mix depend on."""
    return self.scores.reads | self.mix.reads

  def score(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    rotated: tuple[Array | None, Array | None],
    call: Call,
    k_tokens: Tokens,
    scale: float,
  ) -> Logits:
    """Mixes dot products of rotated queries and keys with synthetic scores of unrotated queries."""
    if 'k' in self.scores.reads:
      name = type(self.scores).__name__
      raise UserError(
        f'Synthesizer.scores = @{name} must be synthetic scores, not dot products: bind it to '
        'MultiHeadAttention.scores instead'
      )
    synthetic = self.scores(q, None, call.tokens, k_tokens, scale=scale, call=call)
    assert isinstance(synthetic, Logits)  # Only dot products are no logits.
    if 'k' not in self.mix.reads:
      return Logits(self.mix(None, synthetic.array))
    q, k = rotated
    assert q is not None and k is not None  # The mix reads them.
    with pair_products():
      dots = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
    return Logits(self.mix(dots * scale, synthetic.array.astype(dots.dtype)))
