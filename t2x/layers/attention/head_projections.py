"""Query, key, value and output projections, for mixers that replace softmax attention."""

import abc
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.projections import Heads, head_projection, output_projection
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, SourceSequence, Sublayer
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.patterns.algebra import Causal, Full, Pattern
from t2x.layers.tokens import RowLayout, Tokens

Hidden = Float[Array, 'batch length d_model']
# Features of each head, such as queries.
HeadFeatures = Float[Array, 'batch length heads head_dim']


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
    UserError: num_heads does not divide d_model and head_dim is None; when called, the call has a source or a
      pattern that is not one of `patterns`.
  """

  implements = (Sublayer,)
  reads: frozenset[str] = frozenset({'pattern'})
  max_length: int | None = None
  # The patterns that it supports.
  patterns: tuple[Pattern, ...] = (Full(), Causal())
  # What it computes from all tokens of a row, for the error message of mixers without a cache.
  uses_rows: str
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
    head_dim: Size | None = None,
    use_bias: bool = True,
    out_bias: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    heads, out_init = Heads.of(self, d_model, num_heads, head_dim=head_dim), out_init or kernel_init
    self.num_heads, self.head_dim = heads.queries
    for name in self.projections:
      setattr(self, name, head_projection(d_model, heads.queries, kernel_init, use_bias, rngs))
    self.out = output_projection(heads.queries, d_model, out_init, out_bias, rngs)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> Any:
    """Returns an empty cache; raises UserError if outputs of earlier tokens depend on all tokens of a row."""
    raise UserError(
      f'{type(self).__name__} {self.uses_rows} and cannot decode token by token: use it in an Encoder, leave '
      'out evaluations that generate, or use MultiHeadAttention'
    )

  def project(self, x: Hidden) -> tuple[HeadFeatures, HeadFeatures, HeadFeatures]:
    """Returns the queries, keys and values of `x`."""
    q = constrain(self.q(x), 'batch', 'length', 'heads', None)
    k, v = (constrain(project(x), 'batch', None, 'heads', None) for project in (self.k, self.v))
    return q, k, v

  def rows(self, x: Hidden) -> list[HeadFeatures]:
    """Returns the input projections of `x`, of complete rows on each device."""
    inputs = (getattr(self, name)(x) for name in self.projections)
    return [constrain(a, 'batch', None, 'heads', None) for a in inputs]

  def output(self, y: HeadFeatures) -> Hidden:
    """Projects the outputs of the heads to d_model."""
    return self.out(constrain(y, 'batch', 'length', 'heads', None))

  def check_call(self, call: Call) -> bool:
    """Returns whether the pattern is Causal(); raises UserError if the mixer does not support the call."""
    return check_patterns(self, call, self.patterns)


class WholeRow(HeadProjections):
  """Base class of mixers in which each token depends on all tokens of its row.

  A row must be one segment with positions from 0 (`Tokens.row`), and decoding token by token is not supported. The
  output is NaN for rows with several segments, because segments are only available at run time.

  Raises:
    UserError: see `HeadProjections`; when called, the rows may hold several segments.
  """

  def __call__(self, x: Hidden, call: Call, cache: Any = None) -> Result:
    """Mixes the tokens of each row of `x`."""
    is_causal = self.check_call(call)
    check_one_segment(self, call.tokens)
    y = self.mix(x, call, is_causal)
    return Result(self.output(nan_for_several_segments(y, call.tokens)))

  @abc.abstractmethod
  def mix(self, x: Hidden, call: Call, is_causal: bool) -> HeadFeatures:
    """Returns the outputs of the heads; padding must not change those of tokens."""


def check_patterns(part: nnx.Module, call: Call, patterns: tuple[Pattern, ...]) -> bool:
  """Returns whether the pattern is Causal(); raises UserError if it is not in `patterns`, or the call has a source."""
  check_no_source(part, call)
  if call.pattern.offsets() not in {pattern.offsets() for pattern in patterns}:
    raise UserError(
      f'{type(part).__name__} does not support the pattern {call.pattern}: use '
      f'{" or ".join(map(str, patterns))}, or MultiHeadAttention for other patterns'
    )
  return call.pattern.offsets() == Causal().offsets()


def check_no_source(part: nnx.Module, call: Call) -> None:
  """Raises UserError if the call has a source."""
  if call.source is not None:
    raise UserError(
      f'{type(part).__name__} attends to its own tokens and received a source: for cross-attention, use '
      'MultiHeadAttention as Block.cross or FromSource.sublayer'
    )


def source_of(part: nnx.Module, source: SourceSequence | None) -> SourceSequence:
  """Returns the source of a call; raises UserError if there is none."""
  if source is None:
    raise UserError(
      f'{type(part).__name__} attends to a source, but this model has no source: use it in the decoder of an '
      'EncoderDecoder'
    )
  return source


def check_one_segment(
  part: nnx.Module, tokens: Tokens, other: str = 'or MultiHeadAttention'
) -> None:
  """Raises UserError if the rows may hold several segments; see `nan_for_several_segments`."""
  if tokens.layout is not RowLayout.CONTIGUOUS:
    raise UserError(
      f'{type(part).__name__} mixes all tokens of a row, and these rows may hold several segments: use a task '
      f'with one segment per row (packing = @FullRows), {other}'
    )


def check_max_length(part: Any, length: int) -> None:
  """Raises UserError if a row is longer than the maximum of a part."""
  if part.max_length is not None and length > part.max_length:
    name = type(part).__name__
    raise UserError(
      f'a row of {length} tokens is longer than {name}.max_length = {part.max_length}: shorten the rows or '
      'raise max_length'
    )


def nan_for_several_segments(
  y: Float[Array, 'batch length *rest'], tokens: Tokens
) -> Float[Array, 'batch length *rest']:
  """Returns NaN for rows with several segments, which are only available at run time."""
  if tokens.segments is None:
    return y
  last = tokens.segments.max(axis=1, keepdims=True)
  is_one = ((tokens.segments == 0) | (tokens.segments == last)).all(axis=1)
  return jnp.where(is_one.reshape(-1, *[1] * (y.ndim - 1)), y, jnp.nan)
