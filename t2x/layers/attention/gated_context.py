"""A gate of what attention to the source returns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.source_attention import SourceAttention
from t2x.layers.building import given
from t2x.layers.composites import Around
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, Sublayer
from t2x.layers.parameters import Initializer, Linear

__all__ = ['GatedContext']


class GatedContext(Around):
  """Attention whose output is multiplied by the gate sigmoid(x W + b) of the query's token (Show, Attend and Tell: Xu
  et al. 2015, https://arxiv.org/abs/1502.03044, section 4.2.1): how much of the picture a word needs.

  Args:
    d_model: width of the input and output.
    attention: builds the attention to the source.
    gate_dim: 1, one gate for all features (the paper), or d_model, one for each (a common reimplementation).
    kernel_init: initialiser of W.
    reads_source: whether the attention reads the source; see `FromSource`.
  """

  inner_name = 'attention'

  def __init__(
    self,
    d_model: int,
    *,
    attention: Callable[..., Sublayer] = SourceAttention,
    gate_dim: Size = 1,
    kernel_init: Initializer = xavier_uniform(),
    reads_source: bool = False,
    rngs: nnx.Rngs,
  ):
    self.attention: Sublayer = given(attention, reads_source=reads_source)(d_model, rngs=rngs)
    if gate_dim not in (1, d_model):
      raise UserError(f'GatedContext.gate_dim = {gate_dim}: must be 1 or d_model = {d_model}')
    axes = ('embed', 'head_dim' if gate_dim > 1 else None)
    self.gate = Linear((d_model,), (gate_dim,), axes, init=kernel_init, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Attends from each token of `x` to the source."""
    result = self.attention(x, call, cache)
    return dataclasses.replace(result, x=jax.nn.sigmoid(self.gate(x)) * result.x)
