"""Initial states of recurrent decoders, computed from their source."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import SourceSequence
from t2x.layers.mixers.recurrence import last_segment
from t2x.layers.parameters import Initializer, Linear

__all__ = ['FinalStates', 'FinalVectors', 'LastVector', 'MeanVectors']

Vectors = Float[Array, 'batch length d_model']


class InitialState(nnx.Module):
  """Base class of initial states; subclasses define the call.

  Attributes:
    reads: what it depends on, as in `Sublayer.reads`.
  """

  reads: frozenset[str] = frozenset({'source'})

  def __call__(
    self, source: SourceSequence, segments: Int[Array, 'batch length'], num_vectors: int
  ) -> tuple[Vectors, ...]:
    """Returns the vectors of the initial state of a decoder of each of these segments."""
    raise NotImplementedError


class LastVector(InitialState):
  """Initial state from the source: tanh(W s + b) of the vector s of its last token, for each vector of the state.

  Args:
    d_model: width of the source and of the state.
    use_bridge: whether W and b exist; without them the state is s.
    kernel_init: initialiser of W.
  """

  def __init__(
    self,
    d_model: int,
    *,
    use_bridge: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    axes = 'embed', 'mlp'
    self.bridge = (
      Linear((d_model,), (d_model,), axes, init=kernel_init, rngs=rngs) if use_bridge else None
    )

  def vector(
    self, source: SourceSequence, is_own: Bool[Array, 'batch length source']
  ) -> Float[Array, 'batch length d_model']:
    """Returns s, where `is_own` marks the tokens of the source of each segment."""
    places = jnp.where(is_own, jnp.arange(is_own.shape[2])[None, None], 0)
    return _at(source, places.max(axis=-1))

  def __call__(self, source, segments, num_vectors):
    s = self.vector(source, _own(source, segments))
    return (s if self.bridge is None else jnp.tanh(self.bridge(s)),) * num_vectors


class FinalVectors(LastVector):
  """As `LastVector` for an encoder in both directions: the second half of s, which is of the backward direction, is
  that of the first token, where this direction ends. For the arguments see `LastVector`."""

  def vector(self, source, is_own):
    first = jnp.argmax(is_own, axis=-1)
    halves = super().vector(source, is_own), _at(source, first)
    size = halves[0].shape[-1] // 2
    return jnp.concatenate([halves[0][..., :size], halves[1][..., size:]], axis=-1)


class MeanVectors(InitialState):
  """Initial state from the mean s of the source: activation(W s + b), with W and b of each vector of the state (Xu et
  al. 2015, https://arxiv.org/abs/1502.03044, section 3.1.2).

  Args:
    d_model: width of the source and of the state.
    num_vectors: number of vectors of the state of the cell: two in an LSTM, one in a gated recurrent unit.
    activation: elementwise function. None: none.
    kernel_init: initialiser of W.

  Raises:
    UserError: when called, the state has another number of vectors.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_vectors: Size = 2,
    activation: Callable[[Array], Array] | None = jnp.tanh,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.num_vectors, self.activation = num_vectors, activation
    axes = 'embed', None, 'mlp'
    self.bridge = Linear((d_model,), (num_vectors, d_model), axes, init=kernel_init, rngs=rngs)

  def __call__(self, source, segments, num_vectors):
    if num_vectors != self.num_vectors:
      raise UserError(
        f'MeanVectors.num_vectors = {self.num_vectors}, but the state of the cell has {num_vectors}: set this number'
      )
    is_own = _own(source, segments)
    share = is_own / jnp.maximum(is_own.sum(axis=-1, keepdims=True), 1)
    y = self.bridge(jnp.einsum('bls,bsd->bld', share.astype(source.x.dtype), source.x))
    y = y if self.activation is None else self.activation(y)
    return tuple(jnp.moveaxis(y, 2, 0))


class FinalStates(InitialState):
  """Initial state of each layer of a decoder from the same layer of a recurrent encoder: all vectors of its state, such
  as h and c of an LSTM (Sutskever et al. 2014, https://arxiv.org/abs/1409.3215, and fairseq's LSTMModel).

  `Recurrent` layers of an encoder record their states; the decoder has the same number of cells of
  the same kind (`StackedCells`).

  Args:
    d_model: width of the encoder and of the state.
    ends: builds the part that reads a vector at the end of the source; `LastVector` for an encoder in one direction.

  Raises:
    UserError: when called, the encoder has no states, or a different number of vectors than the state.
  """

  reads = frozenset({'source', 'source.states'})

  def __init__(
    self,
    d_model: int,
    *,
    ends: Callable[..., LastVector] = functools.partial(FinalVectors, use_bridge=False),
    rngs: nnx.Rngs,
  ):
    self.ends = ends(d_model, rngs=rngs)

  def __call__(self, source, segments, num_vectors):
    states = source.recorded.get('states')
    if states is None:
      raise UserError(
        'FinalStates reads the states of a recurrent encoder, but SourceSequence.recorded has none: use it in the '
        'decoder of an EncoderDecoder whose encoder has @Recurrent layers'
      )
    layers, vectors = states.shape[1], states.shape[3]
    if layers * vectors != num_vectors:
      raise UserError(
        f'FinalStates: the encoder has {layers} layers of {vectors} vectors, but the state of the decoder has '
        f'{num_vectors} vectors: use as many cells of the same kind (StackedCells.num_layers = {layers})'
      )
    # The state of `StackedCells` begins with the highest cell.
    return tuple(
      self.ends(dataclasses.replace(source, x=states[:, layer, :, vector]), segments, 1)[0]
      for layer in reversed(range(layers))
      for vector in range(vectors)
    )


def _own(
  source: SourceSequence, segments: Int[Array, 'batch length']
) -> Bool[Array, 'batch length source']:
  """Returns which tokens of the source belong to each segment."""
  assert source.x is not None  # The cache of a decoder starts with the initial state.
  own, shape = source.tokens.segments, (*segments.shape, source.x.shape[1])
  is_own = jnp.ones(shape, bool)
  if own is not None:
    is_own = (own[:, None] == segments[:, :, None]) & (own[:, None] != 0)
  return jnp.broadcast_to(is_own, shape)


def _at(
  source: SourceSequence, places: Int[Array, 'batch length']
) -> Float[Array, 'batch length d_model']:
  """Returns the vectors of the source at these places."""
  assert source.x is not None
  return jnp.take_along_axis(source.x, places[:, :, None], axis=1)


def of_last_segment(
  initial: InitialState | None,
  source: SourceSequence,
  zeros: tuple[Float[Array, 'batch d_model'], ...],
) -> tuple[tuple[Float[Array, 'batch d_model'], ...], Int[Array, ' batch']]:
  """Returns the initial state of a decoder of the last segment of each row of the source, and the segment.

  Args:
    initial: computes the state; None: `zeros`.
    source: the source.
    zeros: zeros of the shapes and dtype of the vectors of the state.
  """
  assert source.x is not None
  segment = jnp.ones(len(zeros[0]), jnp.int32)
  if source.tokens.segments is not None:
    segment = last_segment(jnp.broadcast_to(source.tokens.segments, source.x.shape[:2]), segment)
  if initial is None:
    return zeros, segment
  state = initial(source, segment[:, None], len(zeros))
  return tuple(a[:, 0].astype(b.dtype) for a, b in zip(state, zeros, strict=True)), segment
