"""Mixture-of-experts feed-forward layers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size, TunableNonNegative, TunableRate
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.feed_forward.activations import relu
from t2x.layers.feed_forward.balancing import Choices, RowBalance
from t2x.layers.feed_forward.dispatch import (
  Capacity,
  Dispatch,
  Experts,
  capacity,
  inverse,
  slots,
  take_rows,
)
from t2x.layers.feed_forward.mlp import FeedForward, GatedMLP
from t2x.layers.feed_forward.routing import Router, TopK, present
from t2x.layers.initializers import variance_scaling
from t2x.layers.interfaces import Aux, Call, Result, Sublayer
from t2x.layers.keys import named_key, stacked
from t2x.layers.parameters import Initializer, dropout, param
from t2x.layers.patterns.algebra import Full, Pattern

__all__ = ['MixtureOfExperts', 'SwitchFeedForward']


class MixtureOfExperts(FeedForward):
  """Mixture of feed-forward layers of one class, of which each token is processed by those that a router chooses
  (https://arxiv.org/abs/1701.06538).

  The output is the sum of the outputs of the chosen experts times their weights; padding (segment 0) has none,
  so that its output is 0. The parameters of the experts are stacked along the axis 'experts', which `Mesh.expert`
  splits. Returns the auxiliary losses and metrics of the router, the dispatch and the experts.

  A router or a dispatch in which later tokens change earlier ones (`is_causal` is False) needs the pattern Full(): it is
  refused in a decoder.

  Args:
    d_model: width of the input and output.
    num_experts: number of experts.
    expert: builds an expert, a layer that processes each token independently.
    router: builds the part that chooses the experts of each token.
    dispatch: brings the vectors to the experts and back.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_experts: Size,
    expert: Callable[..., Sublayer] = GatedMLP,
    router: Callable[..., Router] = TopK,
    dispatch: Dispatch = Capacity(),
    rngs: nnx.Rngs,
  ):
    self.num_experts = num_experts
    self.dispatch = dispatch
    self.router = router(d_model, num_experts, rngs=rngs)
    self.expert = stacked(
      lambda number, keys: expert(d_model, rngs=keys), num_experts, rngs, axis='experts'
    )
    parts: dict[str, Router | Dispatch] = {'router': self.router, 'dispatch': self.dispatch}
    self._acausal = [name for name, part in parts.items() if not part.is_causal]
    self.reads = frozenset({'pattern'} if self._acausal else ())
    name = f'{type(self).__name__}.expert = {type(self.expert).__name__}'
    if self.expert.reads:
      raise UserError(
        f'{name} reads {", ".join(sorted(self.expert.reads))}, which experts do not get: use a feed-forward layer'
      )
    if self.expert.init_cache(1, 1, jnp.float32) is not None:
      raise UserError(f'{name} has a state, which experts cannot keep: use a feed-forward layer')

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    self._check_pattern(call.pattern)
    own = dataclasses.replace(call, key=named_key(call.key, 'router'))
    routing = self.router(x, own)
    chosen = jnp.where(present(call.tokens, x)[..., None], routing.expert, self.num_experts)
    routing = dataclasses.replace(routing, expert=chosen)
    y, aux = self.dispatch(Experts(self.expert, self.num_experts, call), x, routing)
    return Result(y.astype(x.dtype), aux=routing.aux + aux)

  def _check_pattern(self, pattern: Pattern) -> None:
    """Raises UserError if the pattern hides tokens that change the experts of others."""
    if self._acausal and pattern.offsets() != Full().offsets():
      (name, *_) = self._acausal
      raise UserError(
        f'{type(self).__name__}.{name} = {type(getattr(self, name)).__name__} lets later tokens change earlier ones, which '
        f'the pattern {pattern} forbids: use it in an Encoder, or TopK and Capacity'
      )


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
    return capacity(self.capacity_factor, length, length, self.num_experts)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies to each token the expert with the highest router probability."""
    batch, length, width = x.shape
    num_slots = self.capacity(length)
    is_present = present(call.tokens, x)
    probabilities = self._probabilities(x)
    expert = probabilities.argmax(axis=-1)
    choices = jnp.where(is_present, expert, self.num_experts)
    slot = slots(choices, self.num_experts, num_slots, num_slots)
    token = inverse(slot, self.num_experts * num_slots)
    h = take_rows(x, token).reshape(batch, self.num_experts, num_slots, width)
    y = self._experts(h, call.key).reshape(batch, -1, width)
    chosen = jax.nn.one_hot(expert, self.num_experts)
    gate = (probabilities * chosen).sum(axis=-1, keepdims=True)
    dropped = is_present & (slot == self.num_experts * num_slots)
    chosen_experts = Choices(probabilities, probabilities, expert[..., None], is_present)
    aux = RowBalance(coefficient=self.balance)(chosen_experts)
    counts = (dropped.sum(dtype=jnp.float32), is_present.sum(dtype=jnp.float32))
    aux += Aux(metrics={'dropped_tokens': counts})
    return Result((take_rows(y, slot) * gate).astype(x.dtype), aux=aux)

  def _probabilities(self, x: Array) -> Float[Array, 'batch length experts']:
    router = self.router[...].astype(Dtypes.softmax)
    scores = exact_einsum('bld,de->ble', x.astype(Dtypes.softmax), router)
    return jax.nn.softmax(scores, axis=-1)

  def _experts(self, h: Float[Array, 'batch experts capacity d_model'], key: Array | None) -> Array:
    """Applies each expert to the tokens in its slots."""
    h = constrain(h, 'dispatched', 'experts', None, 'embed')
    h = self.activation(jnp.einsum('becd,edf->becf', h, self.up[...].astype(h.dtype)))
    h = dropout(constrain(h, 'dispatched', 'experts', None, 'mlp'), self.dropout_rate, key)
    y = jnp.einsum('becf,efd->becd', h, self.down[...].astype(h.dtype))
    return constrain(y, 'dispatched', 'experts', None, 'embed')
