"""Linformer (Wang et al. 2020, https://arxiv.org/abs/2006.04768): self-attention whose keys and values are
projected along the length, in time and memory linear in the length."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t2x.base.ranges import Size, TunableRate
from t2x.layers.attention.head_projections import HeadFeatures, Hidden, WholeRow, check_max_length
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.initializers import variance_scaling
from t2x.layers.interfaces import Call
from t2x.layers.parameters import Initializer, dropout, param
from t2x.layers.patterns.algebra import Full

__all__ = ['Linformer']


class Linformer(WholeRow):
  """Self-attention softmax(q (E'k)' / sqrt(head_dim)) F'v with learned projections E and F along the length.

  E and F are [max_length, projected_length] and shared by all heads; rows of length n use their first n
  rows. Keys and values of padding are zero. Each token attends to all tokens of its row; see `WholeRow`.

  Args:
    max_length: maximum sequence length.
    projected_length: number of keys and values after the projection along the length (k in the paper).
    dropout_rate: dropout of the attention probabilities.
    length_init: initialiser of E and F. The default has variance 1 / projected_length (theorem 2).
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `WholeRow`; when called, the pattern is not Full() or a row is longer than max_length.
  """

  patterns = (Full(),)
  uses_rows = 'projects all tokens of a row at once'

  def __init__(
    self,
    d_model: int,
    *,
    max_length: Size,
    projected_length: Size = 256,
    dropout_rate: TunableRate = 0.0,
    length_init: Initializer = variance_scaling(1.0, 'fan_out', 'normal'),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.max_length = max_length
    self.dropout_rate = dropout_rate
    shape = (max_length, projected_length)
    self.k_length = param(length_init, shape, ('length', 'rank'), rngs, kind='filter')
    self.v_length = param(length_init, shape, ('length', 'rank'), rngs, kind='filter')

  def mix(self, x: Hidden, call: Call, is_causal: bool) -> HeadFeatures:
    """Attends from `x` to its projected keys and values."""
    check_max_length(self, x.shape[1])
    q, k, v = self.project(x)
    if call.tokens.segments is not None:
      is_token = (call.tokens.segments != 0)[..., None, None]
      k, v = jnp.where(is_token, k, 0), jnp.where(is_token, v, 0)
    k = jnp.einsum('bnhd,nk->bkhd', k, self.k_length[: x.shape[1]].astype(k.dtype))
    v = jnp.einsum('bnhd,nk->bkhd', v, self.v_length[: x.shape[1]].astype(v.dtype))
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
    probabilities = jax.nn.softmax(scores * self.head_dim**-0.5).astype(v.dtype)
    probabilities = dropout(probabilities, self.dropout_rate, call.key)
    return jnp.einsum('bhqk,bkhd->bqhd', probabilities, v)
