"""Query, key, value and output projections, for mixers that replace softmax attention."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.constraints import constrain
from t2x.layers.interfaces import Call, Sublayer
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.tokens import RowLayout, Tokens


def head_projection(
  d_model: int, heads: tuple[int, int], init: Initializer, use_bias: bool, rngs: nnx.Rngs
) -> Linear:
  """Returns a projection of d_model features to `heads`, (num_heads, head_dim)."""
  axes = ('embed', 'heads', 'head_dim')
  return Linear((d_model,), heads, axes, init=init, use_bias=use_bias, rngs=rngs)


class HeadProjections(nnx.Module):
  """Base class of mixers with query, key, value and output projections.

  Args:
    d_model: width of the input and output.
    num_heads: number of heads.
    head_dim: features per head. None: d_model / num_heads.
    use_bias: whether the query, key and value projections have biases.
    out_bias: whether the output projection has a bias.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None.
  """

  implements = (Sublayer,)
  reads: frozenset[str] = frozenset({'pattern'})
  max_length: int | None = None
  # Names of the input projections. `project` needs all three.
  projections: tuple[str, ...] = ('q', 'k', 'v')
  q: Linear
  k: Linear
  v: Linear

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None,
    use_bias: bool,
    out_bias: bool,
    kernel_init: Initializer,
    out_init: Initializer | None,
    rngs: nnx.Rngs,
  ):
    if head_dim is None and d_model % num_heads:
      name = type(self).__name__
      raise UserError(
        f'{name}.num_heads = {num_heads} does not divide d_model = {d_model}: choose a divisor or set '
        f'{name}.head_dim'
      )
    heads = num_heads, head_dim or d_model // num_heads
    self.num_heads, self.head_dim = heads

    for name in self.projections:
      setattr(self, name, head_projection(d_model, heads, kernel_init, use_bias, rngs))
    self.out = Linear(
      heads,
      (d_model,),
      ('heads', 'head_dim', 'embed'),
      init=out_init or kernel_init,
      use_bias=out_bias,
      rngs=rngs,
    )

  def project(
    self, x: Float[Array, 'batch length d_model']
  ) -> tuple[
    Float[Array, 'batch length heads head_dim'],
    Float[Array, 'batch length heads head_dim'],
    Float[Array, 'batch length heads head_dim'],
  ]:
    """Returns the queries, keys and values of `x`."""
    q = constrain(self.q(x), 'batch', 'length', 'heads', None)
    k, v = (constrain(project(x), 'batch', None, 'heads', None) for project in (self.k, self.v))
    return q, k, v

  def output(
    self, y: Float[Array, 'batch length heads head_dim']
  ) -> Float[Array, 'batch length d_model']:
    """Projects the outputs of the heads to d_model."""
    return self.out(constrain(y, 'batch', 'length', 'heads', None))

  def check_source(self, call: Call) -> None:
    """Raises UserError if the call has a source."""
    if call.source is not None:
      raise UserError(
        f'{type(self).__name__} cannot attend to a source: use MultiHeadAttention for Block.cross'
      )

  def check_call(self, call: Call, *patterns: Pattern) -> None:
    """Raises UserError if the call has a source or a pattern other than `patterns`."""
    self.check_source(call)
    name = type(self).__name__
    if call.pattern.offsets() not in {pattern.offsets() for pattern in patterns}:
      raise UserError(
        f'{name} does not support the pattern {call.pattern}: use {" or ".join(map(str, patterns))}, or '
        'MultiHeadAttention for other patterns'
      )

  def check_one_segment(self, tokens: Tokens) -> None:
    """Raises UserError if the rows may hold several segments; see `nan_for_several_segments`."""
    if tokens.layout is not RowLayout.CONTIGUOUS:
      raise UserError(
        f'{type(self).__name__} mixes all tokens of a row, and these rows may hold several segments: use a '
        'task with one segment per row (packing = @FullRows), or MultiHeadAttention'
      )


def nan_for_several_segments(
  y: Float[Array, 'batch length heads head_dim'], tokens: Tokens
) -> Float[Array, 'batch length heads head_dim']:
  """Returns NaN for rows with several segments, which are only available at run time."""
  if tokens.segments is None:
    return y
  last = tokens.segments.max(axis=1, keepdims=True)
  is_one = ((tokens.segments == 0) | (tokens.segments == last)).all(axis=1)
  return jnp.where(is_one[:, None, None, None], y, jnp.nan)
