"""Feed-forward layers: the MLP of the original Transformer (https://arxiv.org/abs/1706.03762) and gated
linear units (https://arxiv.org/abs/2002.05202)."""

import functools
from collections.abc import Callable

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.ranges import Size, TunableRate
from t2x.layers.caches import Cache
from t2x.layers.constraints import constrain
from t2x.layers.feed_forward.activations import gelu, silu
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Norm, Result, SourceSequence, Sublayer
from t2x.layers.norms import norm_over
from t2x.layers.parameters import Initializer, Linear, dropout, with_defaults

__all__ = ['MLP', 'FeedForward', 'GatedMLP']


class FeedForward(nnx.Module):
  """Base class of sublayers that process each token independently."""

  implements = (Sublayer,)
  reads: frozenset[str] = frozenset()
  max_length: int | None = None

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> None:
    """Returns None: the layer keeps no state between calls."""


class MLP(FeedForward):
  """Two-layer perceptron: activation(x W_up) W_down.

  Args:
    d_model: width of the input and output.
    hidden_dim: width between the two projections.
    activation: elementwise function.
    use_bias: whether both projections have biases.
    norm: builds a norm of the hidden features, before the second projection (Sub-LN,
      https://arxiv.org/abs/2210.06423). None: no norm.
    dropout_rate: dropout after the activation.
    kernel_init: initialiser of the first projection.
    out_init: initialiser of the second projection; None: `kernel_init`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    hidden_dim: Size,
    activation: Callable[[Array], Array] = gelu,
    use_bias: bool = True,
    norm: Callable[..., Norm] | None = None,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    self.activation = activation
    self.dropout_rate = dropout_rate
    self.norm = norm and norm_over('mlp', norm, hidden_dim, rngs)
    linear = functools.partial(Linear, use_bias=use_bias, rngs=rngs)
    self._make_inputs(lambda: linear((d_model,), (hidden_dim,), ('embed', 'mlp'), init=kernel_init))
    init = out_init or kernel_init
    self.down = linear((hidden_dim,), (d_model,), ('mlp', 'embed'), init=init)

  def _make_inputs(self, projection: Callable[[], Linear]) -> None:
    """Creates the projections of the input."""
    self.up = projection()

  def _hidden(self, x: Array, call: Call) -> Array:
    """Returns the hidden features of the input."""
    return self.activation(self.up(x))

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    hidden = dropout(constrain(self._hidden(x, call), ..., 'mlp'), self.dropout_rate, call.key)
    return Result(self.down(hidden if self.norm is None else self.norm(hidden)))


class GatedMLP(MLP):
  """Gated linear unit: (activation(x W_gate) * (x W_up)) W_down.

  The activation determines the variant: `sigmoid` is GLU, `gelu` GEGLU, `relu` ReGLU, `silu` SwiGLU and
  `linear` the bilinear unit. `hidden_dim` is the width of the gate and of the gated projection; other
  arguments are those of `MLP`, and `kernel_init` initialises both.
  """

  __init__ = with_defaults(MLP.__init__, activation=silu, use_bias=False)

  def _make_inputs(self, projection):
    self.gate = projection()
    super()._make_inputs(projection)

  def _hidden(self, x, call):
    return self.activation(self.gate(x)) * self.up(x)
