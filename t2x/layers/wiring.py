"""How a sublayer is put around the residual stream: norm before it
(https://arxiv.org/abs/2002.04745) or after the addition (https://arxiv.org/abs/1706.03762), a
learned scalar that starts at 0 (https://arxiv.org/abs/2003.04887), or scalars and an initialisation
in the place of norms (https://arxiv.org/abs/1901.09321)."""

import dataclasses
from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float

from t2x.hyperparameters import Tunable
from t2x.layers.base import dropout, param
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import ones, zeros
from t2x.layers.interfaces import Norm, Result
from t2x.layers.norms import LayerNorm
from t2x.ranges import TunableRate

__all__ = ['FixupWiring', 'PostNorm', 'PreNorm', 'ReZero']


class PreNorm(nnx.Module):
  """x + dropout(sublayer(norm(x))), as in GPT-2, T5, ViT and Llama.

  Args:
    d_model: width of the residual stream.
    norm: builds the norm.
    dropout_rate: dropout on the sublayer's output.
  """

  ends_with_norm = False

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.norm = norm(d_model, rngs=rngs)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """The result of `sublayer` with the new stream as its `x`.

    `keep` multiplies the branch (stochastic depth); `key` None means no dropout.
    """
    result = sublayer(self.norm(x))
    return _with(result, x + _branch(result.x, self.dropout_rate, key, keep))


class PostNorm(nnx.Module):
  """norm(x + dropout(sublayer(x))), as in the original Transformer and BERT.

  Arguments are those of `PreNorm`.
  """

  ends_with_norm = True

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.norm = norm(d_model, rngs=rngs)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """As `PreNorm`."""
    result = sublayer(x)
    return _with(result, self.norm(x + _branch(result.x, self.dropout_rate, key, keep)))


class ReZero(nnx.Module):
  """x + alpha * dropout(sublayer(x)), alpha a learned scalar of this sublayer that starts at 0
  (https://arxiv.org/abs/2003.04887).

  Narang et al. 2021 (https://arxiv.org/abs/2102.11972) also try it with a norm before the sublayer.
  Adafactor's steps are relative to a parameter's size: alpha wants AdamW.

  Args:
    d_model: width of the residual stream.
    norm: builds the norm before the sublayer; None leaves it out.
    dropout_rate: dropout on the sublayer's output.
  """

  ends_with_norm = False

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] | None = None,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.norm = norm and norm(d_model, rngs=rngs)
    self.alpha = param(zeros(), (), (), rngs, keep_float32=True)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """As `PreNorm`."""
    result = sublayer(x if self.norm is None else self.norm(x))
    y = (result.x * _scalar(self.alpha)).astype(result.x.dtype)
    return _with(result, x + _branch(y, self.dropout_rate, key, keep))


class FixupWiring(nnx.Module):
  """x + dropout(scale * sublayer(x + before) + after), with three learned scalars and no norm (Fixup,
  https://arxiv.org/abs/1901.09321).

  What lets it train is the initialisation: `fixup` for the first projections of each sublayer
  (`MLP.kernel_init`, `MultiHeadAttention.kernel_init`), `zeros` for the last one (`out_init`). The
  scalar biases inside of a sublayer are its projections' own.

  Args:
    d_model: width of the residual stream.
    dropout_rate: dropout on the branch.
  """

  ends_with_norm = False

  def __init__(self, d_model: int, *, dropout_rate: TunableRate = 0.0, rngs: nnx.Rngs):
    self.before = param(zeros(), (), (), rngs, keep_float32=True)
    self.scale = param(ones(), (), (), rngs, keep_float32=True)
    self.after = param(zeros(), (), (), rngs, keep_float32=True)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """As `PreNorm`."""
    result = sublayer((x + _scalar(self.before)).astype(x.dtype))
    y = (result.x * _scalar(self.scale) + _scalar(self.after)).astype(result.x.dtype)
    return _with(result, x + _branch(y, self.dropout_rate, key, keep))


def _with(result: Result, x: Array) -> Result:
  return dataclasses.replace(result, x=x)


def _scalar(parameter: nnx.Param) -> Float[Array, '']:
  """Returns the scalar in float32, to which an array that it meets is promoted."""
  return parameter[...].astype(Dtypes.reductions)


def _branch(y: Array, rate: Tunable, key: Array | None, keep: Array | None) -> Array:
  y = dropout(y, rate, key)
  return y if keep is None else y * keep.astype(y.dtype)
