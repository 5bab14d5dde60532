"""Local attention with separate projections for global tokens (Longformer: Beltagy et al. 2020,
https://arxiv.org/abs/2004.05150)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t2x.base.ranges import TunableRate
from t2x.layers.attention.head_projections import (
  HeadFeatures,
  HeadProjections,
  Hidden,
  check_no_source,
  head_projection,
)
from t2x.layers.attention.kernels import AttentionInputs, Auto, DotProduct, Kernel
from t2x.layers.caches import Cache, WithoutCache
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result
from t2x.layers.keys import named_key
from t2x.layers.parameters import Initializer
from t2x.layers.patterns.algebra import Global, Marked

__all__ = ['GlobalLocalAttention']


class GlobalLocalAttention(WithoutCache, HeadProjections):
  """Multi-head attention in which global tokens have their own query, key and value projections.

  Which keys a query sees is decided only by the pattern, such as `Window(256) | Global(1)` for the window of
  511 tokens and one global token. Queries of global tokens attend with the projections q_global, k_global and
  v_global of all tokens, and all other queries with q, k and v, also to the keys of global tokens. With a
  blockwise kernel, time is linear in the length: the global projections are used in the tiles of global tokens
  only.

  Args:
    global_tokens: the global tokens, `Global(n)` for the first n positions of each segment or `Marked(name)`.
    kernel: computes the output from queries, keys and values.
    dropout_rate: dropout of the attention probabilities.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; when called, the tokens do not have the mark of `global_tokens`.
  """

  # Longformer's language models have windows without global tokens.
  no_cache = (
    'cannot decode token by token: use it in an Encoder, or MultiHeadAttention with the pattern '
    'Window(size) in a Decoder'
  )

  def __init__(
    self,
    d_model: int,
    *,
    global_tokens: Global | Marked = Global(1),
    kernel: Kernel = Auto(),
    dropout_rate: TunableRate = 0.0,
    use_bias: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    shared: dict[str, Any] = {'use_bias': use_bias, 'kernel_init': kernel_init, 'rngs': rngs}
    super().__init__(d_model, **shared, **settings)
    heads = self.num_heads, self.head_dim
    self.q_global, self.k_global, self.v_global = (
      head_projection(d_model, heads, kernel_init, use_bias, rngs) for _ in range(3)
    )
    self.global_tokens = global_tokens
    self.kernel = kernel
    self.dropout_rate = dropout_rate

  def __call__(self, x: Hidden, call: Call, cache: Cache | None = None) -> Result:
    """Attends from `x` to itself."""
    check_no_source(self, call)
    tokens = call.tokens
    local = self._attend(self.project(x), call, named_key(call.key, 'local'))
    projected = (project(x) for project in (self.q_global, self.k_global, self.v_global))
    q, k, v = (constrain(a, 'batch', 'length', 'heads', None) for a in projected)
    # Other queries see few keys in this call; their outputs are not used.
    rows = dataclasses.replace(call, pattern=call.pattern & self.global_tokens)
    from_global = self._attend((q, k, v), rows, named_key(call.key, 'global'))
    is_global = self.global_tokens.allows(tokens, tokens)[..., None, None]
    return Result(self.output(jnp.where(is_global, from_global, local)))

  def _attend(
    self, projected: tuple[Array, Array, Array], call: Call, key: Array | None
  ) -> HeadFeatures:
    q, k, v = projected
    scores, tokens = DotProduct(q, k, self.head_dim**-0.5), call.tokens
    inputs = AttentionInputs(
      scores, v, call.pattern, tokens, tokens, dropout_rate=self.dropout_rate, key=key
    )
    return self.kernel(inputs)
