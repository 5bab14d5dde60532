"""Synthesizers (Tay et al. 2020, https://arxiv.org/abs/2005.00743): attention whose scores come from the
query alone or from a table, in place of queries that meet keys or beside them."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.attention import MultiHeadAttention
from t2x.layers.base import Initializer, Tokens, param
from t2x.layers.initializers import xavier_uniform, zeros
from t2x.layers.interfaces import Scores
from t2x.layers.kernels import Dense, Logits
from t2x.layers.kernels.base import softmax_dtype
from t2x.ranges import Positive, Size, TunableRate


@runtime_checkable
class Mix(Protocol):
  """Combines dot products and synthetic scores. Built as `Mix(rngs=rngs)`.

  Attributes:
    reads: what it reads of 'q', 'k' and 'scale': all for dot products, or nothing.
  """

  reads: frozenset[str]

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'] | None,
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, '#batch heads queries keys']:
    """Returns the scores; `dots` is None unless read."""
    ...


class Replace(nnx.Module):
  """Synthetic scores alone: there are no keys."""

  reads: frozenset[str] = frozenset()

  def __init__(self, *, rngs: nnx.Rngs):
    pass

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'] | None,
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, '#batch heads queries keys']:
    """`synthetic`; the rule is built as `Rule(rngs=rngs)`, and `dots` is None unless it reads q and k."""
    return synthetic


class Plus(nnx.Module):
  """Scaled dot products plus synthetic scores."""

  reads = frozenset({'q', 'k', 'scale'})

  def __init__(self, *, rngs: nnx.Rngs):
    pass

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'],
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """Their sum."""
    return dots + synthetic


class PlusAlpha(nnx.Module):
  """alpha dots + (1 - alpha) synthetic, alpha the sigmoid of a learned number, at first 1 / 2."""

  reads = frozenset({'q', 'k', 'scale'})

  def __init__(self, *, rngs: nnx.Rngs):
    self.logit = param(zeros(), (), (), rngs, keep_float32=True)

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'],
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """Their weighted mean, in the type of `dots`."""
    alpha = jax.nn.sigmoid(self.logit[...]).astype(dots.dtype)
    return alpha * dots + (1 - alpha) * synthetic


class Synthesizer(MultiHeadAttention):
  """Self-attention with synthetic scores, in place of dot products or mixed with them.

  Queries are projected where `scores` or `mix` reads them and keys where `mix` does. A token's
  position in its own segment is its row and column of the tables. Position terms (`T5Bias`,
  `ShawPositions`) are added after the mix. Memory: the whole matrix of scores.

  Args:
    d_model: width of the input and output.
    num_heads: heads.
    head_dim: features of a head. None: d_model / num_heads.
    scores: builds the synthetic scores.
    mix: builds the rule that combines them with dot products, as `mix(rngs=rngs)`.
    use_bias: biases on queries, keys and values.
    out_bias: a bias on the output.
    scale: multiplies the dot products. None: 1 / sqrt(head_dim).
    dropout_rate: dropout of the probabilities.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: as `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and no head_dim is given, or there is a scale without dot
      products; when called, on a context, or on sequences longer than the synthetic scores have.
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
    """What the synthetic scores and the mix read."""
    return self.scores.reads | self.mix.reads

  def score(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    rotated: tuple[Array | None, Array | None],
    q_tokens: Tokens,
    k_tokens: Tokens,
    scale: float,
  ) -> Logits:
    """The mix of dot products, which read rotated queries and keys, and synthetic scores, which do not."""
    synthetic = self.scores(q, None, q_tokens, k_tokens, scale=scale)
    if not isinstance(synthetic, Logits):
      name = type(self.scores).__name__
      raise UserError(
        f'Synthesizer.scores = @{name} are dot products: bind it to MultiHeadAttention.scores instead'
      )
    if 'k' not in self.mix.reads:
      return Logits(self.mix(None, synthetic.array))
    q, k = rotated
    assert q is not None and k is not None  # The mix reads them.
    dots = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
    return Logits(self.mix(dots * scale, synthetic.array.astype(dots.dtype)))
