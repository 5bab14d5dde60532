"""Recurrent translation decoders: a cell that reads its own tokens and attends to the source."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.arrays import Leaf
from t2x.layers.attention.from_source import FromSource
from t2x.layers.attention.head_projections import source_of
from t2x.layers.attention.source_attention import SourceAttention
from t2x.layers.caches import Cache, RecurrentState
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes, float32_sums
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, SourceSequence, Sublayer
from t2x.layers.keys import fold_in, named_key
from t2x.layers.mixers.cells import Cell, LSTMCell, StackedCells
from t2x.layers.mixers.initial_states import InitialState, LastVector, of_last_segment
from t2x.layers.mixers.step_outputs import StepOutput, TanhOutput
from t2x.layers.parameters import Initializer
from t2x.layers.patterns.algebra import Causal
from t2x.layers.tokens import RowLayout

__all__ = ['RecurrentDecoder', 'StateBeforeDecoder']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecoderState(RecurrentState):
  """State after the last token of each row, and the cache of the attention, which beams of a row share.

  Attributes:
    cell: vectors of the cell's state, each [batch, d_model], in float32 or wider.
    fed: the last output, [batch, d_model].
    segment: the segment of the token, int32 [batch]; 0: no token yet.
    source: keys and values of the source; None inside the loop over steps.
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  cell: tuple[Any, ...]
  fed: Leaf
  segment: Leaf
  source: Cache | None = None


class RecurrentDecoder(nnx.Module):
  """Recurrent decoder with attention to the source and input feeding (Luong et al. 2015,
  https://arxiv.org/abs/1508.04025, section 3.3; with `SourceAttention`, the RecurrentDecoder of Joey NMT).

  A step reads the token and the previous output, and attends to the source with the new state h as its query:
  y = tanh(W [h; context] + b), or another `output`. The wiring `Plain` makes y the input of the next layer.

  The pattern must be Causal(), tokens must be in the order of their positions, and the tokens of a segment must be
  contiguous except for padding. Each segment starts from the state that `initial` computes from its source.

  Args:
    d_model: width of the input, of the state and of the source.
    cell: builds the recurrent cell, as `cell(d_model, fed_dim=d_model, rngs=rngs)`.
    attention: builds the attention to the source, or `FixedVector`.
    initial: builds the initial state from the source. None: zeros.
    output: builds the output, as `output(d_model, kernel_init, rngs=rngs)`.
    kernel_init: initialiser of W.

  Raises:
    UserError: when called, there is no source, or the pattern is not Causal().
  """

  implements = (Sublayer,)
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    cell: Callable[..., Cell | StackedCells] = LSTMCell,
    attention: Callable[..., Sublayer] = SourceAttention,
    initial: Callable[..., InitialState] | None = LastVector,
    output: Callable[..., StepOutput] = TanhOutput,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.cell = cell(d_model, fed_dim=d_model, rngs=rngs)
    self.attention = FromSource(d_model, sublayer=attention, rngs=rngs)
    self.initial = initial and initial(d_model, rngs=rngs)
    self.out = output(d_model, kernel_init, rngs=rngs)

  @property
  def reads(self) -> frozenset[str]:
    own = self.attention.reads | {'pattern'}
    return own if self.initial is None else own | self.initial.reads

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> DecoderState:
    """Returns the initial state, of rows with one segment, and the cache of the attention."""
    source = source_of(self, source)
    memory = self.attention.init_cache(batch, num_slots, dtype, source)
    assert source.x is not None
    zeros = jnp.zeros((batch, source.x.shape[2]), jnp.promote_types(dtype, Dtypes.reductions))
    state, segment = of_last_segment(self.initial, source, (zeros,) * self.cell.num_vectors)
    return DecoderState(state, zeros, segment, memory)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: DecoderState | None = None,
  ) -> Result:
    """Applies the decoder to the tokens of `x`, after those of the cache; padding leaves the state unchanged."""
    source = source_of(self, call.source)
    if call.pattern.offsets() != Causal().offsets():
      raise UserError(f'RecurrentDecoder does not support the pattern {call.pattern}: use Causal()')
    segments = jnp.broadcast_to(call.tokens.row_segments, x.shape[:2])
    state = self.init_cache(len(x), 0, x.dtype, source) if cache is None else cache
    # The cache of one document starts with its initial state.
    first: tuple[Array, ...] = (jnp.zeros(x.shape, state.fed.dtype),) * len(state.cell)
    if cache is None and self.initial is not None:
      vectors = self.initial(source, segments, len(first))
      first = tuple(a.astype(state.fed.dtype) for a in vectors)
    tokens = dataclasses.replace(
      call.tokens, segments=segments, layout=RowLayout.ARBITRARY, right_padded=False, grid=None
    )
    tokens = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(x), *a.shape[1:])), tokens)
    inputs = x, constrain(self.cell.project(x), 'batch', None, None, 'mlp'), first, tokens
    steps = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), inputs)
    numbers = jnp.arange(x.shape[1])

    # Not in the carry of the loop, of which the backward pass keeps a copy for each step.
    memory, state = state.source, dataclasses.replace(state, source=None)

    read = float32_sums((self, call, memory))

    def step(state: DecoderState, step: Any) -> tuple[DecoderState, Any]:
      (part, call, memory), (inputs, number) = read(), step
      key = None if call.key is None else fold_in(call.key, number)
      return part._step(state, inputs, dataclasses.replace(call, key=key), memory)

    state, (y, recorded) = jax.lax.scan(step, state, (steps, numbers))
    state = dataclasses.replace(state, source=memory)
    recorded = {name: jnp.moveaxis(a[:, :, :, 0], 0, 2) for name, a in recorded.items()}
    y = constrain(jnp.moveaxis(y, 0, 1), 'batch', 'length', 'embed')
    return Result(y, None if cache is None else state, recorded=recorded)

  def _step(
    self, state: DecoderState, step: Any, call: Call, memory: Any
  ) -> tuple[DecoderState, tuple[Array, dict[str, Array]]]:
    """Returns the state after a token of each row, and the output [batch, d_model] with recorded arrays.

    Args:
      state: state before the token.
      step: input of the token, its projection for the cell, vectors of a new state and metadata of the token.
      call: the call of the decoder.
      memory: cache of the attention.
    """
    x, projected, first, tokens = step
    is_token = (tokens.segments != 0)[:, None]
    starts = is_token & (tokens.segments != state.segment)[:, None]
    before = tuple(jnp.where(starts, a, b) for a, b in zip(first, state.cell, strict=True))
    fed = jnp.where(starts, 0, state.fed)
    own = dataclasses.replace(
      call,
      tokens=jax.tree.map(lambda a: a[:, None], tokens),
      key=named_key(call.key, 'attention'),
    )

    def attend(h: Array) -> Result:
      return self.attention(h[:, None].astype(projected.dtype), own, memory)

    advance = functools.partial(self.cell, projected, state=before, key=named_key(call.key, 'cell'))
    cell, result = self._advance(advance, fed, before[0], attend)
    y = self.out.of_step(cell[0].astype(x.dtype), x, result.x[:, 0])
    new = DecoderState(
      tuple(jnp.where(is_token, a, b) for a, b in zip(cell, state.cell, strict=True)),
      jnp.where(is_token, y.astype(fed.dtype), state.fed),
      jnp.where(is_token[:, 0], tokens.segments, state.segment),
    )
    return new, (y, dict(result.recorded))

  def _advance(
    self,
    cell: Callable[..., tuple[Array, ...]],
    fed: Array,
    before: Array,
    attend: Callable[[Array], Result],
  ) -> tuple[tuple[Array, ...], Result]:
    """Returns the vectors of the state after a step, and the result of the attention.

    Args:
      cell: returns the state for what it is fed.
      fed: the output of the preceding step.
      before: h before the step.
      attend: attends with a query.
    """
    state = cell(fed=fed)
    return state, attend(state[0])


class StateBeforeDecoder(RecurrentDecoder):
  """Recurrent decoder that attends with the state before the step (Bahdanau et al. 2014,
  https://arxiv.org/abs/1409.0473, section 3.1).

  A step computes the context with the state h before it as the query, and then the new state from the token and the
  context. The paper's output is `MaxoutOutput`. With `FixedVector` as its attention it is the decoder of Cho et al.
  2014 (https://arxiv.org/abs/1406.1078). For the arguments see `RecurrentDecoder`.
  """

  def _advance(self, cell, fed, before, attend):
    result = attend(before)
    return cell(fed=result.x[:, 0]), result
