"""Forgetting attention (Lin et al. 2025, https://arxiv.org/abs/2503.02130): a learned gate of each token lowers the
scores of all earlier tokens."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.patterns.ordered import check_row_order
from t2x.layers.positions.encoding import PositionEncoding

__all__ = ['ForgetGate']

_SUMS = 'log_forget_gates'


class ForgetGate(PositionEncoding):
  """Adds the logarithms of the forget gates between a key and a query to their score: token t has the gate
  f_t = sigmoid(x_t w + b) for each head, and query i adds log f_(j+1) + ... + log f_i to its score of key j.

  x is the input of the attention, so each layer has its own gates: bind it to `Block.encoding`. Keys after the query,
  which a causal pattern hides, get no term. The full matrix of scores is kept in memory.

  Args:
    d_model: width of the tokens.
    num_heads: number of heads of the attention.
    init: initialiser of w; b is 0.
  """

  reads_content = True

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.features = {_SUMS: (num_heads,)}
    self.gate = Linear((d_model,), (num_heads,), ('embed', 'heads'), init=init, rngs=rngs)

  def prepare(self, x, call: Call) -> dict[str, Float[Array, 'batch length heads']]:
    """Returns the sums of the logarithms from the first token of a row, in float32; padding adds nothing.

    Raises:
      UserError: the order of the pattern is not that of the row.
    """
    check_row_order('ForgetGate adds up gates in', call.pattern)
    gates = jax.nn.log_sigmoid(self.gate(x).astype(Dtypes.softmax))
    if call.tokens.segments is not None:
      gates = jnp.where(call.tokens.segments[..., None] != 0, gates, 0)
    return {_SUMS: jnp.cumsum(gates, axis=1) + _before(call)}

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    q_sums, k_sums = (
      tokens.features[_SUMS].swapaxes(1, 2).astype(Dtypes.softmax)
      for tokens in (q_tokens, k_tokens)
    )
    return jnp.minimum(q_sums[..., None] - k_sums[:, :, None], 0)


def _before(call: Call) -> Any:
  """Returns the sums at the slot before the first token of a call, [batch, 1, heads], or 0."""
  if call.slots is None:
    return 0
  sums, start = call.slots.tokens.features[_SUMS], call.slots.start
  last = jax.lax.dynamic_index_in_dim(sums, jnp.maximum(start - 1, 0), axis=1)
  return jnp.where(start > 0, last, 0)
