"""Mixing of tokens by learned matrices over the length of the row: MLP-Mixer (Tolstikhin et al. 2021,
https://arxiv.org/abs/2105.01601) and gMLP (Liu et al. 2021, https://arxiv.org/abs/2105.08050)."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import (
  Hidden,
  check_one_segment,
  check_patterns,
  nan_for_several_segments,
)
from t2x.layers.caches import Cache, WithoutCache
from t2x.layers.constraints import constrain
from t2x.layers.feed_forward.activations import gelu_exact
from t2x.layers.initializers import normal, ones, xavier_uniform
from t2x.layers.interfaces import Call, Norm, Result, Sublayer
from t2x.layers.norms import LayerNorm, norm_over
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.patterns.algebra import Causal, Full, Pattern
from t2x.layers.products import broadcast
from t2x.layers.tokens import Tokens

__all__ = ['SpatialGating', 'TokenMLP']


class _FixedLength(WithoutCache, nnx.Module):
  """Base class of mixers whose parameters belong to the positions of rows of one length; subclasses define `mix`.

  Raises:
    UserError: when called, rows have another length or may hold several segments, the pattern is not one of
      `patterns`, or there is a source.
  """

  no_cache = (
    'mixes all tokens of a row at once and cannot decode token by token: leave out evaluations that '
    'generate, or use MultiHeadAttention'
  )

  implements = (Sublayer,)
  reads = frozenset({'pattern'})
  patterns: tuple[Pattern, ...]
  max_length: int

  def mix(self, x: Hidden, tokens: Tokens, is_causal: bool) -> Hidden:
    """Returns the outputs for complete rows; padding must not change those of tokens."""
    raise NotImplementedError

  def __call__(self, x: Hidden, call: Call, cache: Cache | None = None) -> Result:
    """Mixes the tokens of each row of `x`."""
    is_causal = check_patterns(self, call, self.patterns)
    tokens, length = call.tokens, x.shape[1]
    check_one_segment(self, tokens)
    if length != self.max_length:
      name = type(self).__name__
      raise UserError(
        f'rows of {length} tokens, but {name} has parameters for {self.max_length} positions: set {name}.length = '
        f'{length}, or the size of the images or the length of the task'
      )
    x = constrain(x, 'batch', None, 'embed')
    y = constrain(self.mix(x, tokens, is_causal), 'batch', 'length', 'embed')
    return Result(nan_for_several_segments(y, tokens))


def without_padding(x: Hidden, tokens: Tokens) -> Hidden:
  """Returns `x` with zeros for padding."""
  return x if tokens.segments is None else jnp.where(tokens.segments[..., None] != 0, x, 0)


class TokenMLP(_FixedLength):
  """MLP over the tokens of a row, shared by all features (MLP-Mixer, equation 1).

  Args:
    d_model: width of the input and output.
    length: number of tokens of a row.
    hidden_dim: width between the two projections.
    activation: elementwise function.
    init: initialiser of both projections.
  """

  patterns = (Full(),)

  def __init__(
    self,
    d_model: int,
    *,
    length: Size,
    hidden_dim: Size,
    activation: Callable[[Array], Array] = gelu_exact,
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.max_length, self.activation = length, activation
    linear = functools.partial(Linear, init=init, rngs=rngs)
    self.up = linear((length,), (hidden_dim,), ('length', 'mlp'))
    self.down = linear((hidden_dim,), (length,), ('mlp', 'length'))

  def mix(self, x, tokens, is_causal):
    x = without_padding(x, tokens)
    hidden = constrain(self.activation(self.up(x.swapaxes(1, 2))), 'batch', 'embed', 'mlp')
    return self.down(hidden).swapaxes(1, 2)


class SpatialGating(_FixedLength):
  """MLP whose hidden features are gated by other tokens: (u * (W norm(v) + b)) W_down with
  [u, v] = activation(x W_up), where W is a matrix over positions (gMLP, section 2.1).

  It replaces both sublayers of a block: use a `SublayerBlock` with this sublayer only. Under Causal() the part of W
  above the diagonal is not used.

  Args:
    d_model: width of the input and output.
    length: number of tokens of a row.
    hidden_dim: width of u and v together.
    activation: elementwise function.
    norm: builds the norm of v.
    init: initialiser of the first and the last projection.
    gate_init: initialiser of W; b starts at 1, so that the gate is nearly open.

  Raises:
    UserError: hidden_dim is odd; see also `TokenMLP`.
  """

  patterns = (Full(), Causal())

  def __init__(
    self,
    d_model: int,
    *,
    length: Size,
    hidden_dim: Size,
    activation: Callable[[Array], Array] = gelu_exact,
    norm: Callable[..., Norm] = LayerNorm,
    init: Initializer = xavier_uniform(),
    gate_init: Initializer = normal(1e-6),
    rngs: nnx.Rngs,
  ):
    width, rest = divmod(hidden_dim, 2)
    if rest:
      raise UserError(
        f'SpatialGating.hidden_dim = {hidden_dim} must be even: u and v have half of it each'
      )
    self.max_length, self.activation = length, activation
    self.up = Linear((d_model,), (2, width), ('embed', 'gates', 'mlp'), init=init, rngs=rngs)
    self.norm = norm_over('mlp', norm, width, rngs)
    shape = (length, length)
    self.weights = param(gate_init, shape, ('length', 'length'), rngs, kind='filter')
    self.bias = param(ones(), (length,), ('length',), rngs, kind='vector')
    self.down = Linear((width,), (d_model,), ('mlp', 'embed'), init=init, rngs=rngs)

  def mix(self, x, tokens, is_causal):
    u, v = jnp.moveaxis(self.activation(self.up(x)), -2, 0)
    weights = self.weights[...].astype(v.dtype)
    weights = jnp.tril(weights) if is_causal else weights
    v = jnp.einsum('ij,bjd->bid', weights, without_padding(self.norm(v), tokens))
    gate = v + broadcast(self.bias[...][:, None], v.shape, v.dtype)
    return self.down(constrain(u * gate, 'batch', None, 'mlp'))
