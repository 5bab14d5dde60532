"""Local attention with separate projections for global tokens (Longformer: Beltagy et al. 2020,
https://arxiv.org/abs/2004.05150)."""

import dataclasses
from typing import Any, NoReturn

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.layers.attention.head_projections import HeadProjections, head_projection
from t2x.layers.attention.kernels import AttentionInputs, Auto, DotProduct, Kernel
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result
from t2x.layers.keys import named_key
from t2x.layers.parameters import Initializer
from t2x.layers.patterns.algebra import Global, Marked

__all__ = ['GlobalLocalAttention']


class GlobalLocalAttention(HeadProjections):
  """Multi-head attention in which global tokens have their own query, key and value projections.

  Which keys a query sees is decided only by the pattern, such as `Window(256) | Global(1)` for the window of
  511 tokens and one global token. Queries of global tokens attend with the projections q_global, k_global and
  v_global of all tokens, and all other queries with q, k and v, also to the keys of global tokens. With a
  blockwise kernel, time is linear in the length: the global projections are used in the tiles of global tokens
  only.

  Args:
    d_model: width of the input and output.
    num_heads: number of heads.
    global_tokens: the global tokens, `Global(n)` for the first n positions of each segment or `Marked(name)`.
    head_dim: features per head. None: d_model / num_heads.
    use_bias: whether the query, key and value projections have biases.
    out_bias: whether the output projection has a bias.
    kernel: computes the output from queries, keys and values.
    dropout_rate: dropout of the attention probabilities.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None; when called, the call has a source or its
      tokens do not have the mark of `global_tokens`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    global_tokens: Global | Marked = Global(1),
    head_dim: Size | None = None,
    use_bias: bool = True,
    out_bias: bool = True,
    kernel: Kernel = Auto(),
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
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
    self.q_global, self.k_global, self.v_global = (
      head_projection(d_model, (num_heads, self.head_dim), kernel_init, use_bias, rngs)
      for _ in range(3)
    )
    self.global_tokens = global_tokens
    self.kernel = kernel
    self.dropout_rate = dropout_rate

  def init_cache(self, batch: int, num_slots: int, dtype: Any) -> NoReturn:
    """Raises UserError: Longformer's language models have windows without global tokens."""
    raise UserError(
      'GlobalLocalAttention cannot decode token by token: use it in an Encoder, or MultiHeadAttention with '
      'the pattern Window(size) in a Decoder'
    )

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Attends from `x` to itself."""
    self.check_source(call)
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
  ) -> Float[Array, 'batch length heads head_dim']:
    q, k, v = projected
    scores, tokens = DotProduct(q, k, self.head_dim**-0.5), call.tokens
    inputs = AttentionInputs(
      scores, v, call.pattern, tokens, tokens, dropout_rate=self.dropout_rate, key=key
    )
    return self.kernel(inputs)
