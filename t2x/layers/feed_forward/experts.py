"""Mixture-of-experts feed-forward layers."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Positive, Size, TunableNonNegative, TunableRate
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.feed_forward.activations import relu
from t2x.layers.feed_forward.mlp import FeedForward
from t2x.layers.initializers import variance_scaling
from t2x.layers.interfaces import Aux, Call, Result
from t2x.layers.parameters import Initializer, dropout, param

__all__ = ['SwitchFeedForward']


class SwitchFeedForward(FeedForward):
  """Top-1 mixture of experts: p activation(x W_up) W_down with the weights of the expert whose router
  probability p is highest (Switch Transformer, https://arxiv.org/abs/2101.03961).

  An expert processes at most capacity_factor * length / num_experts tokens of a row, rounded up, in the
  order of the row. Tokens beyond that are dropped: their output is 0, so only the residual stream carries
  them. Padding (segment 0) uses no capacity, and its output is 0. Examples packed into a row share the
  capacity of the row. In generation the capacity follows from the length of each call, so a single new
  token is never dropped; with capacity_factor >= num_experts no token is dropped in training either.

  Returns the auxiliary loss 'balance' (section 2.2, equation 4, per row) and the metric 'dropped_tokens',
  the fraction of tokens that were dropped.

  Args:
    d_model: width of the input and output.
    num_experts: number of experts.
    hidden_dim: hidden width of an expert.
    capacity_factor: capacity of an expert relative to length / num_experts tokens.
    balance: coefficient of the auxiliary loss.
    activation: elementwise function.
    dropout_rate: dropout after the activation.
    kernel_init: initialiser of the router and of the first projection of each expert. The default is
      that of the paper, section 2.4.
    out_init: initialiser of the second projections; None: `kernel_init`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_experts: Size,
    hidden_dim: Size,
    capacity_factor: Positive = 1.25,
    balance: TunableNonNegative = 0.01,
    activation: Callable[[Array], Array] = relu,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = variance_scaling(0.1, 'fan_in', 'truncated_normal'),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    self.num_experts = num_experts
    self.capacity_factor = capacity_factor
    self.balance = balance
    self.activation = activation
    self.dropout_rate = dropout_rate
    # The router is not split over experts: its softmax needs the scores of all of them.
    router_shape, router_axes = (d_model, num_experts), ('embed', 'choices')
    self.router = param(
      kernel_init, router_shape, router_axes, rngs, matrix=router_shape, keep_float32=True
    )
    # Fan-in and fan-out of the initialisers are those of one expert.
    up, down = (d_model, hidden_dim), (hidden_dim, d_model)
    init, axes = out_init or kernel_init, ('experts', 'mlp', 'embed')
    self.up = param(kernel_init, (num_experts, *up), ('experts', 'embed', 'mlp'), rngs, matrix=up)
    self.down = param(init, (num_experts, *down), axes, rngs, matrix=down)

  def capacity(self, length: int) -> int:
    """Returns the maximum number of tokens per expert in a row of `length` tokens."""
    return min(length, math.ceil(self.capacity_factor * length / self.num_experts))

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies to each token the expert with the highest router probability."""
    batch, length, width = x.shape
    capacity = self.capacity(length)
    segments = call.tokens.segments
    present = jnp.broadcast_to(True if segments is None else segments != 0, (batch, length))
    probabilities = self._probabilities(x)
    expert = probabilities.argmax(axis=-1)
    chosen = jax.nn.one_hot(expert, self.num_experts, dtype=jnp.int32) * present[..., None]
    # Number of earlier tokens in the row with the same expert.
    rank = (jnp.cumsum(chosen, axis=1) * chosen).sum(axis=-1) - 1
    has_slot = present & (rank < capacity)
    num_slots = self.num_experts * capacity
    slot = jnp.where(has_slot, expert * capacity + rank, num_slots)
    token = _tokens_of_slots(slot, num_slots)
    h = _take_rows(x, token).reshape(batch, self.num_experts, capacity, width)
    y = self._experts(h, call.key).reshape(batch, num_slots, width)
    gate = (probabilities * chosen).sum(axis=-1, keepdims=True)
    dropped = (present & ~has_slot).sum(dtype=jnp.float32)
    aux = Aux(
      {'balance': self._balance(probabilities, chosen, present)},
      {'dropped_tokens': (dropped, present.sum(dtype=jnp.float32))},
    )
    return Result((_take_rows(y, slot) * gate).astype(x.dtype), aux=aux)

  def _probabilities(self, x: Array) -> Float[Array, 'batch length experts']:
    router = self.router[...].astype(Dtypes.softmax)
    scores = exact_einsum('bld,de->ble', x.astype(Dtypes.softmax), router)
    return jax.nn.softmax(scores, axis=-1)

  def _experts(self, h: Float[Array, 'batch experts capacity d_model'], key: Array | None) -> Array:
    """Applies each expert to the tokens in its slots."""
    h = constrain(h, 'batch', 'experts', None, 'embed')
    h = self.activation(jnp.einsum('becd,edf->becf', h, self.up[...].astype(h.dtype)))
    h = dropout(constrain(h, 'batch', 'experts', None, 'mlp'), self.dropout_rate, key)
    y = jnp.einsum('becf,efd->becd', h, self.down[...].astype(h.dtype))
    return constrain(y, 'batch', 'experts', None, 'embed')

  def _balance(
    self,
    probabilities: Float[Array, 'batch length experts'],
    chosen: Int[Array, 'batch length experts'],
    present: Bool[Array, 'batch length'],
  ) -> Float[Array, ' batch']:
    """Computes num_experts * sum over experts of (fraction of tokens * mean probability), which is 1 for a
    uniform distribution, times the coefficient."""
    num_tokens = jnp.maximum(present.sum(axis=1), 1)[:, None]
    fraction = chosen.sum(axis=1) / num_tokens
    mean = (probabilities * present[..., None]).sum(axis=1) / num_tokens
    return scalar(self.balance) * self.num_experts * (fraction * mean).sum(axis=-1)


def _tokens_of_slots(slot: Int[Array, 'batch length'], num_slots: int) -> Int[Array, 'batch slots']:
  """Returns the token in each slot, `length` for an empty slot. Tokens with slot >= num_slots are dropped."""
  batch, length = slot.shape
  empty = jnp.full((batch, num_slots), length, slot.dtype)
  indices = jnp.arange(length, dtype=slot.dtype)
  return jax.vmap(lambda row, slot: row.at[slot].set(indices, mode='drop'))(empty, slot)


def _take_rows(
  x: Float[Array, 'batch rows width'], index: Int[Array, 'batch taken']
) -> Float[Array, 'batch taken width']:
  """Returns the rows at `index`; zeros for an index out of range. Indices in range do not repeat."""
  return jnp.take_along_axis(x, index[..., None], axis=1, mode='fill', fill_value=0)
