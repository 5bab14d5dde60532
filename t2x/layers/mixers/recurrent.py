"""Recurrent layers: a cell from token to token, in one direction or in both (Schuster and Paliwal 1997)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import TunableRate
from t2x.layers.arrays import Leaf
from t2x.layers.attention.head_projections import source_of
from t2x.layers.building import build_context
from t2x.layers.caches import RecurrentState
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes
from t2x.layers.interfaces import Call, Result, SourceSequence, Sublayer
from t2x.layers.keys import named_key
from t2x.layers.mixers.cells import Cell, LSTMCell, run
from t2x.layers.mixers.initial_states import InitialState, of_last_segment
from t2x.layers.mixers.recurrence import last_segment
from t2x.layers.parameters import dropout
from t2x.layers.patterns.algebra import Causal, Full

__all__ = ['Recurrent']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CellState(RecurrentState):
  """State after the last token of each row.

  Attributes:
    vectors: the vectors of the cell's state, each [batch, state_dim], in float32 or wider.
    segment: the segment of the token, int32 [batch]; 0: no token yet.
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  vectors: tuple[Any, ...]
  segment: Leaf


class Recurrent(nnx.Module):
  """Recurrent layer: the output of a token is the first vector of a cell's state after it.

  In a body or block with the pattern Causal() it has one cell. With Full() it has two, of half the width, of which
  `backward` begins with the last token of each segment, and their outputs are concatenated. Layers in sequence, as in
  PyTorch, have the wiring `Plain`; its `dropout_rate` is the dropout between layers. Residual layers have `NoNorm`.

  Each segment starts with zeros, or with the state that `initial` computes from its source: the decoder of Sutskever
  et al. 2014 (https://arxiv.org/abs/1409.3215), which knows the source from one vector. Tokens must be in the order of
  their positions, and the tokens of a segment must be contiguous except for padding, which leaves the state unchanged.
  It can record 'states', all vectors of the state after each token, [batch, length, vectors, d_model].

  Args:
    d_model: width of the input and output.
    cell: builds the cell: `ElmanCell`, `GRUCell` or `LSTMCell`.
    initial: builds the initial state from the source, for decoders: `LastVector`, `FinalVectors` for an encoder in both
      directions, or `FinalStates`. None: zeros.
    input_dropout: dropout of the input, with the same mask for all tokens of a row (Gal and Ghahramani 2016,
      https://arxiv.org/abs/1512.05287).
    state_dropout: dropout of the output of the preceding token in the cell, with one mask per row, too.

  Raises:
    UserError: the pattern is neither Full() nor Causal(), the width is odd with Full(), or there is `initial` with
      Full(); when called, the pattern is not that of the body and block that the layer was built in.
  """

  implements = (Sublayer,)
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    cell: Callable[..., Cell] = LSTMCell,
    initial: Callable[..., InitialState] | None = None,
    input_dropout: TunableRate = 0.0,
    state_dropout: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.input_dropout, self.state_dropout = input_dropout, state_dropout
    pattern = build_context().pattern or Causal()
    if pattern.offsets() not in (Causal().offsets(), Full().offsets()):
      raise UserError(f'Recurrent does not support the pattern {pattern}: use Causal() or Full()')
    self.pattern, both = pattern, pattern.offsets() == Full().offsets()
    if both and initial is not None:
      raise UserError(
        'Recurrent.initial is for decoders, which have the pattern Causal(): leave it out with Full()'
      )
    if both and d_model % 2:
      raise UserError(
        f'Recurrent has two cells of half the width with Full(), but d_model = {d_model} is odd: use an even width'
      )
    size = d_model // 2 if both else d_model
    self.initial = initial and initial(d_model, rngs=rngs)
    self.cell = cell(d_model, state_dim=size, rngs=rngs)
    self.backward = cell(d_model, state_dim=size, rngs=rngs) if both else None

  @property
  def reads(self) -> frozenset[str]:
    fields = frozenset({'pattern', 'record.states'})
    return fields if self.initial is None else fields | self.initial.reads

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> CellState:
    """Returns the initial state, whose size does not depend on `num_slots`."""
    if self.backward is not None:
      raise UserError(
        'Recurrent with Full() reads later tokens and cannot decode token by token: use it in an Encoder, or leave out '
        'evaluations that generate'
      )
    zeros = self._zeros(self.cell, batch, dtype)
    if self.initial is None:
      return CellState(zeros, jnp.zeros(batch, jnp.int32))
    return CellState(*of_last_segment(self.initial, source_of(self, source), zeros))

  def _zeros(self, cell: Cell, batch: int, dtype: DTypeLike) -> tuple[Array, ...]:
    wide = jnp.promote_types(dtype, Dtypes.reductions)
    return (jnp.zeros((batch, cell.state_dim), wide),) * cell.num_vectors

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: CellState | None = None,
  ) -> Result:
    """Applies the cells to the tokens of `x`, after those of the cache."""
    if call.pattern.offsets() != self.pattern.offsets():
      raise UserError(
        f'Recurrent was built for the pattern {self.pattern} and received {call.pattern}: set the '
        'pattern of its body or block when they are built'
      )
    mask = jnp.ones((len(x), 1, x.shape[2]), x.dtype)
    x = x * dropout(mask, self.input_dropout, named_key(call.key, 'input_dropout'))
    x = constrain(x, 'batch', None, 'embed')
    before = jnp.zeros(len(x), jnp.int32) if cache is None else cache.segment
    segments = call.tokens.segments
    if segments is None and cache is not None:
      segments = jnp.ones((1, x.shape[1]), jnp.int32)
    if segments is not None:
      segments = jnp.broadcast_to(segments, x.shape[:2])
    start = self._zeros(self.cell, len(x), x.dtype) if cache is None else cache.vectors
    first = None
    # The cache of one document starts with its initial state.
    if self.initial is not None and cache is None:
      source = source_of(self, call.source)
      if segments is None:
        segments = jnp.ones(x.shape[:2], jnp.int32)
      vectors = self.initial(source, segments, len(start))
      first = tuple(a.astype(start[0].dtype) for a in vectors)
    states, end = self._direction(self.cell, x, call, segments, start, before, first)
    if self.backward is not None:
      start = self._zeros(self.backward, len(x), x.dtype)
      later, _ = self._direction(self.backward, x, call, segments, start, before, reverse=True)
      pairs = zip(states, later, strict=True)
      states = tuple(jnp.concatenate(pair, axis=-1) for pair in pairs)
    new = None
    if cache is not None and segments is not None:
      new = CellState(end, last_segment(segments, before))
    y = constrain(states[0], 'batch', 'length', 'embed')
    recorded = {'states': jnp.stack(states, axis=2)} if 'states' in call.record else {}
    return Result(y, new, recorded=recorded)

  def _direction(
    self,
    cell: Cell,
    x: Array,
    call: Call,
    segments: Int[Array, 'batch length'] | None,
    state: tuple[Array, ...],
    before: Int[Array, ' batch'],
    first: tuple[Array, ...] | None = None,
    *,
    reverse: bool = False,
  ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Returns the output of a cell, with the remaining vectors of the state if recorded, and the last state."""
    factor = None
    if call.key is not None and self.state_dropout != 0.0:
      key = named_key(call.key, f'{"backward" if reverse else "cell"}.state_dropout')
      factor = dropout(jnp.ones_like(state[0]), self.state_dropout, key)
    masks: dict[str, Any] = {}
    if segments is not None:
      order = segments[:, ::-1] if reverse else segments
      starts = begins(order, before)
      masks = {'starts': starts[:, ::-1] if reverse else starts, 'is_token': segments != 0}
    num_outputs = len(state) if 'states' in call.record else 1
    return run(
      cell, x, state, first=first, factor=factor, reverse=reverse, num_outputs=num_outputs, **masks
    )


def begins(
  segments: Int[Array, 'batch length'], before: Int[Array, ' batch']
) -> Bool[Array, 'batch length']:
  """Returns whether a token is the first of its segment, for rows that continue after a token of the segment `before`
  (0: no token)."""
  numbers = jnp.broadcast_to(jnp.arange(segments.shape[1])[None], segments.shape)
  last = jax.lax.cummax(jnp.where(segments != 0, numbers, -1), axis=1)
  last = jnp.pad(last[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  previous = jnp.take_along_axis(segments, jnp.maximum(last, 0), axis=1)
  previous = jnp.where(last < 0, before[:, None], previous)
  return (segments != 0) & (segments != previous)
