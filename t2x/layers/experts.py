"""Mixtures of experts: feed-forward layers with several sets of weights, of which each token uses one."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.hyperparameters import scalar
from t2x.layers.activations import relu
from t2x.layers.base import Initializer, dropout, param
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes
from t2x.layers.feed_forward import FeedForward
from t2x.layers.initializers import variance_scaling
from t2x.layers.interfaces import Aux, Call, Result
from t2x.ranges import Positive, Size, TunableNonNegative, TunableRate


class SwitchFeedForward(FeedForward):
  """Top-1 mixture of experts: p activation(x W_up) W_down with the weights of the expert whose router
  probability p is highest (Switch Transformer, https://arxiv.org/abs/2101.03961).

  An expert takes at most capacity_factor * length / num_experts tokens of a row, rounded up, in the order
  of the row. The output of the tokens beyond that is 0: the residual stream passes them on. Padding
  (segment 0) takes no capacity, and its output is 0. Examples packed into a row share the capacity of
  the row. In generation each call has the capacity of its own length, so a single new token is never
  dropped; with capacity_factor >= num_experts no token is dropped in training either.

  It returns the auxiliary loss 'balance' (section 2.2, equation 4, for each row) and the metric
  'dropped_tokens', the share of the tokens that their expert had no capacity for.

  Args:
    d_model: width of the input and output.
    num_experts: number of experts.
    hidden_dim: width between the two projections of an expert.
    capacity_factor: 1: each expert takes its share of the row and no more.
    balance: coefficient of the loss.
    activation: elementwise function.
    dropout_rate: dropout after the activation.
    kernel_init: initialiser of the router and of the first projection of each expert. The default is
      that of the paper, section 2.4.
    out_init: initialiser of the second projections; None: as `kernel_init`.
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
    up, down = _each(kernel_init), _each(out_init or kernel_init)
    # Not split over devices: a softmax over the experts needs the scores of all.
    router_shape, router_axes = (d_model, num_experts), ('embed', None)
    self.router = param(kernel_init, router_shape, router_axes, rngs, keep_float32=True)
    self.up = param(up, (num_experts, d_model, hidden_dim), ('experts', 'embed', 'mlp'), rngs)
    self.down = param(down, (num_experts, hidden_dim, d_model), ('experts', 'mlp', 'embed'), rngs)

  def capacity(self, length: int) -> int:
    """The most tokens of a row of `length` tokens that an expert takes."""
    return min(length, math.ceil(self.capacity_factor * length / self.num_experts))

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Transforms each token by its expert."""
    batch, length, width = x.shape
    capacity = self.capacity(length)
    segments = call.tokens.segments
    present = jnp.broadcast_to(True if segments is None else segments != 0, (batch, length))
    probabilities = self._probabilities(x)
    expert = probabilities.argmax(axis=-1)
    chosen = jax.nn.one_hot(expert, self.num_experts, dtype=jnp.int32) * present[..., None]
    # How many tokens before it in the row have the same expert.
    place = (jnp.cumsum(chosen, axis=1) * chosen).sum(axis=-1) - 1
    is_taken = present & (place < capacity)
    num_slots = self.num_experts * capacity
    slot = jnp.where(is_taken, expert * capacity + place, num_slots)
    token = _inverse(slot, num_slots)
    h = _rows(x, token).reshape(batch, self.num_experts, capacity, width)
    y = self._experts(h, call.key).reshape(batch, num_slots, width)
    gate = (probabilities * chosen).sum(axis=-1, keepdims=True)
    dropped = (present & ~is_taken).sum(dtype=jnp.float32)
    aux = Aux(
      {'balance': self._balance(probabilities, chosen, present)},
      {'dropped_tokens': (dropped, present.sum(dtype=jnp.float32))},
    )
    return Result((_rows(y, slot) * gate).astype(x.dtype), aux=aux)

  def _probabilities(self, x: Array) -> Float[Array, 'batch length experts']:
    router = self.router[...].astype(Dtypes.softmax)
    # Accelerators multiply float32 matrices in fewer bits unless asked not to.
    scores = jnp.matmul(x.astype(Dtypes.softmax), router, precision=jax.lax.Precision.HIGHEST)
    return jax.nn.softmax(scores, axis=-1)

  def _experts(self, h: Float[Array, 'batch experts capacity d_model'], key: Array | None) -> Array:
    """Every expert on its own slots."""
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
    """Experts times the sum over them of the share of tokens and the mean probability; 1 at balance."""
    num_tokens = jnp.maximum(present.sum(axis=1), 1)[:, None]
    share = chosen.sum(axis=1) / num_tokens
    mean = (probabilities * present[..., None]).sum(axis=1) / num_tokens
    return scalar(self.balance) * self.num_experts * (share * mean).sum(axis=-1)


def _each(init: Initializer) -> Initializer:
  """Draws the matrix of each expert by itself, so that fans are those of one expert."""

  def of_all(key, shape, dtype):
    keys = jax.random.split(key, shape[0])
    return jax.vmap(lambda key: init(key, shape[1:], dtype))(keys)

  return of_all


def _inverse(slot: Int[Array, 'batch length'], num_slots: int) -> Int[Array, 'batch slots']:
  """The token in each slot; `length` for an empty one. A slot beyond the last one is none."""
  batch, length = slot.shape
  empty = jnp.full((batch, num_slots), length, slot.dtype)
  places = jnp.arange(length, dtype=slot.dtype)
  return jax.vmap(lambda row, slot: row.at[slot].set(places, mode='drop'))(empty, slot)


def _rows(
  x: Float[Array, 'batch rows width'], index: Int[Array, 'batch picked']
) -> Float[Array, 'batch picked width']:
  """The rows at `index`; zeros for an index beyond the last row. No row is picked twice."""
  return jnp.take_along_axis(x, index[..., None], axis=1, mode='fill', fill_value=0)
