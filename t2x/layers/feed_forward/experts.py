"""Mixture-of-experts feed-forward layers."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size, TunableNonNegative, TunableRate
from t2x.layers.arrays import named_variables
from t2x.layers.caches import Cache
from t2x.layers.feed_forward.activations import relu
from t2x.layers.feed_forward.balancing import counts, load_metrics
from t2x.layers.feed_forward.dispatch import (
  Capacity,
  Dispatch,
  Experts,
)
from t2x.layers.feed_forward.mlp import MLP, FeedForward, GatedMLP
from t2x.layers.feed_forward.routing import Router, TopK, present
from t2x.layers.initializers import variance_scaling
from t2x.layers.interfaces import Call, Result, Sublayer
from t2x.layers.keys import named_key, stacked
from t2x.layers.parameters import Initializer
from t2x.layers.patterns.algebra import Full, Pattern
from t2x.layers.patterns.ordered import check_row_order
from t2x.layers.tokens import Tokens

__all__ = ['MixtureOfExperts', 'SwitchFeedForward']


class MixtureOfExperts(FeedForward):
  """Mixture of feed-forward layers of one class; a router chooses the layers that process each token
  (https://arxiv.org/abs/1701.06538).

  The output is the weighted sum of the outputs of the chosen experts; padding (segment 0) has no experts,
  so that its output is 0. The parameters of the experts are stacked along the axis 'experts', which `Mesh.expert`
  splits. Returns the auxiliary losses and metrics of the router, the dispatch and the experts, and the metrics
  'busiest_expert' and 'unused_experts' of `load_metrics`. Can record 'load', [batch, experts]: how many tokens of each
  row chose each expert, dropped ones included.

  A router or a dispatch in which later tokens change earlier ones (`is_causal` is False) needs the pattern Full(): it
  is refused in a decoder. A dispatch in which earlier tokens of the row change later ones is refused with `Ordered`.

  Args:
    d_model: width of the input and output.
    num_experts: number of experts.
    expert: builds an expert, a layer that processes each token independently.
    router: builds the part that chooses the experts of each token.
    dispatch: sends the vectors to the experts and back.
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
    for _, variable in named_variables(self.expert):
      if isinstance(variable, nnx.Variable):
        variable.set_metadata(active=min(1.0, self._num_choices(d_model) / num_experts))
    parts: dict[str, Router | Dispatch] = {'router': self.router, 'dispatch': self.dispatch}
    self._acausal = [name for name, part in parts.items() if not part.is_causal]
    self.reads = frozenset({'record.load', *(['pattern'] if self._acausal else [])})
    name = f'{type(self).__name__}.expert = {type(self.expert).__name__}'
    if unmet := sorted(field for field in self.expert.reads if not field.startswith('record.')):
      raise UserError(
        f'{name} reads {", ".join(unmet)}, which experts do not get: use a feed-forward layer'
      )
    if self.expert.init_cache(1, 1, jnp.float32) is not None:
      raise UserError(f'{name} has a state, which experts cannot keep: use a feed-forward layer')

  def _num_choices(self, d_model: int) -> float:
    """Returns the mean number of experts of a token."""
    if self.router.num_choices is not None:
      return float(self.router.num_choices)
    x, call = jax.ShapeDtypeStruct((1, 1, d_model), jnp.float32), Call(Tokens.row(1))
    return float(jax.eval_shape(lambda x: self.router(x, call).expert, x).shape[-1])

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    self._check_pattern(call.pattern)
    own = dataclasses.replace(call, key=named_key(call.key, 'router'))
    routing = self.router(x, own)
    chosen = jnp.where(present(call.tokens, x)[..., None], routing.expert, self.num_experts)
    routing = dataclasses.replace(routing, expert=chosen)
    y, aux = self.dispatch(Experts(self.expert, self.num_experts, call), x, routing)
    load = counts(chosen, self.num_experts)
    recorded = {'load': load} if 'load' in call.record else {}
    return Result(y.astype(x.dtype), aux=routing.aux + aux + load_metrics(load), recorded=recorded)

  def _check_pattern(self, pattern: Pattern) -> None:
    """Raises UserError if the pattern hides tokens that change the experts of others."""
    name = type(self).__name__
    if not self.dispatch.is_independent:
      check_row_order(f'{name}.dispatch = {self.dispatch} gives experts to tokens in', pattern)
    if self._acausal and pattern.offsets() != Full().offsets():
      (part, *_) = self._acausal
      raise UserError(
        f'{name}.{part} = {type(getattr(self, part)).__name__} lets later tokens change earlier ones, which '
        f'the pattern {pattern} forbids: use it in an Encoder, or TopK and Capacity'
      )


class SwitchFeedForward(MixtureOfExperts):
  """Mixture of MLPs without biases, of which the one with the highest router probability p processes a token; its
  output is multiplied by p (Switch Transformer, https://arxiv.org/abs/2101.03961).

  Args:
    hidden_dim: hidden width of an expert.
    capacity_factor: `Capacity.factor`.
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
    super().__init__(
      d_model,
      num_experts=num_experts,
      expert=functools.partial(
        MLP,
        hidden_dim=hidden_dim,
        activation=activation,
        use_bias=False,
        dropout_rate=dropout_rate,
        kernel_init=kernel_init,
        out_init=out_init,
      ),
      router=functools.partial(
        TopK, k=1, normalise=False, balance=balance, kernel_init=kernel_init
      ),
      dispatch=Capacity(factor=capacity_factor),
      rngs=rngs,
    )
