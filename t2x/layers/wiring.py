"""How a sublayer is put around the residual stream: norm before it
(https://arxiv.org/abs/2002.04745) or after the addition (https://arxiv.org/abs/1706.03762)."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from t2x.layers.base import dropout
from t2x.layers.norms import LayerNorm

__all__ = ['PostNorm', 'PreNorm']

# Takes the sublayer's input; gives its output and whatever else the caller wants back.
Sublayer = Callable[[Array], tuple[Array, Any]]


class PreNorm(nnx.Module):
  """x + dropout(sublayer(norm(x))), as in GPT-2, T5, ViT and Llama.

  Args:
    d_model: width of the residual stream.
    norm: builds the norm.
    dropout_rate: dropout on the sublayer's output.
  """

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., nnx.Module] = LayerNorm,
    dropout_rate: float = 0.0,
    rngs: nnx.Rngs,
  ):
    self.norm = norm(d_model, rngs=rngs)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Sublayer,
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Any]:
    """Returns the new stream and the second value of `sublayer`.

    `keep` multiplies the branch (stochastic depth); `key` None means no dropout.
    """
    y, rest = sublayer(self.norm(x))
    return x + _branch(y, self.dropout_rate, key, keep), rest


class PostNorm(nnx.Module):
  """norm(x + dropout(sublayer(x))), as in the original Transformer and BERT.

  Arguments are those of `PreNorm`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., nnx.Module] = LayerNorm,
    dropout_rate: float = 0.0,
    rngs: nnx.Rngs,
  ):
    self.norm = norm(d_model, rngs=rngs)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Sublayer,
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Any]:
    """As `PreNorm`."""
    y, rest = sublayer(x)
    return self.norm(x + _branch(y, self.dropout_rate, key, keep)), rest


def _branch(y: Array, rate: float, key: Array | None, keep: Array | None) -> Array:
  y = dropout(y, rate, key)
  return y if keep is None else y * keep.astype(y.dtype)
