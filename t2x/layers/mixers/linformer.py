"""Linformer (Wang et al. 2020, https://arxiv.org/abs/2006.04768): self-attention whose keys and values are
projected along the length, in time and memory linear in the length."""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.layers.attention.head_projections import HeadProjections, nan_for_several_segments
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.initializers import variance_scaling, xavier_uniform
from t2x.layers.interfaces import Call, Result
from t2x.layers.parameters import Initializer, dropout, param
from t2x.layers.patterns.algebra import Full

__all__ = ['Linformer']


class Linformer(HeadProjections):
  """Self-attention softmax(q (E'k)' / sqrt(head_dim)) F'v with learned projections E and F along the length.

  E and F are [max_length, projected_length] and shared by all heads; rows of length n use their first n
  rows. Keys and values of padding are zero. Each token attends to all tokens of its row. Therefore the
  pattern must be Full(), a row must be one segment with positions from 0 (`Tokens.row`), and decoding token
  by token is not supported.

  Args:
    d_model: width of the input and output.
    num_heads: number of heads.
    max_length: maximum sequence length.
    projected_length: number of keys and values after the projection along the length (k in the paper).
    head_dim: features per head. None: d_model / num_heads.
    use_bias: whether the query, key and value projections have biases.
    out_bias: whether the output projection has a bias.
    dropout_rate: dropout of the attention probabilities.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: `kernel_init`.
    length_init: initialiser of E and F. The default has variance 1 / projected_length (theorem 2).

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None; when called, the call has a source, a
      pattern other than Full(), rows that may hold several segments, or rows longer than max_length.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    max_length: Size,
    projected_length: Size = 256,
    head_dim: Size | None = None,
    use_bias: bool = True,
    out_bias: bool = True,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    length_init: Initializer = variance_scaling(1.0, 'fan_out', 'normal'),
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      num_heads=num_heads,
      head_dim=head_dim,
      use_bias=use_bias,
      out_bias=out_bias,
      kernel_init=kernel_init,
      out_init=out_init,
      rngs=rngs,
    )
    self.max_length = max_length
    self.dropout_rate = dropout_rate
    shape = (max_length, projected_length)
    self.k_length = param(length_init, shape, ('length', 'rank'), rngs, kind='filter')
    self.v_length = param(length_init, shape, ('length', 'rank'), rngs, kind='filter')

  def init_cache(self, batch: int, num_slots: int, dtype: Any) -> NoReturn:
    """Raises UserError, because every projected key depends on all tokens of the row."""
    raise UserError(
      'Linformer projects all tokens of a row at once and cannot decode token by token: use it in an Encoder'
    )

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Attends from `x` to its projected keys and values.

    The output is NaN for rows with several segments, because segments are only available at run time.
    """
    self.check_call(call, Full())
    self.check_one_segment(call.tokens)
    self._check_length(x.shape[1])
    tokens = call.tokens
    q, k, v = self.project(x)
    if tokens.segments is not None:
      is_token = (tokens.segments != 0)[..., None, None]
      k, v = jnp.where(is_token, k, 0), jnp.where(is_token, v, 0)
    k = jnp.einsum('bnhd,nk->bkhd', k, self.k_length[: x.shape[1]].astype(k.dtype))
    v = jnp.einsum('bnhd,nk->bkhd', v, self.v_length[: x.shape[1]].astype(v.dtype))
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
    probabilities = jax.nn.softmax(scores * self.head_dim**-0.5).astype(v.dtype)
    probabilities = dropout(probabilities, self.dropout_rate, call.key)
    y = jnp.einsum('bhqk,bkhd->bqhd', probabilities, v)
    return Result(self.output(nan_for_several_segments(y, tokens)))

  def _check_length(self, length: int) -> None:
    if self.max_length is not None and length > self.max_length:
      raise UserError(
        f'a row of {length} tokens is longer than Linformer.max_length = {self.max_length}: shorten '
        'the rows or raise max_length'
      )
