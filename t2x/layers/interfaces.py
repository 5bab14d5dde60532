"""Interfaces of a block's parts, as protocols that configs are checked against.

Unless documented otherwise a part is built as `Part(d_model, *, settings, rngs)`, and its input x is
[batch, length, d_model].
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.layers.attention.kernels.base import DotProduct, Logits
from t2x.layers.caches import Cache, Slots
from t2x.layers.patterns.algebra import Full, Pattern
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.tokens import Tokens

__all__ = [
  'NO_AUX',
  'Aux',
  'BranchWiring',
  'Call',
  'ExtrasSublayer',
  'Join',
  'Merge',
  'Norm',
  'Result',
  'Scores',
  'SourceSequence',
  'StreamEnds',
  'Sublayer',
  'Wiring',
]


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['x', 'tokens', 'encoding', 'inputs', 'recorded'],
  meta_fields=['pattern'],
)
@dataclasses.dataclass(frozen=True)
class SourceSequence:
  """Sequence that sublayers with 'source' in `reads` attend to, and what relates their queries to it.

  Attributes:
    x: vectors of its tokens; None if the caches hold everything computed from them.
    tokens: metadata of its tokens.
    encoding: position encoding of pairs of a query and a token of the source; None: none. Its hook `address` adds
      positions to the input of the keys; queries then get those of `Call.encoding`.
    inputs: vectors of the tokens before the encoder, with their positions; None if `x` is.
    pattern: which tokens of the source each query may see.
    recorded: arrays that the layers of the encoder recorded for parts with 'source.NAME' in `reads`, by NAME; each is
      [batch, layers, ...], from the first layer to the last.
  """

  x: Float[Array, 'batch source d_model'] | None
  tokens: Tokens
  encoding: PositionEncoding | None = None
  inputs: Float[Array, 'batch inputs input_dim'] | None = None
  pattern: Pattern = Full()
  recorded: Mapping[str, Array] = dataclasses.field(default_factory=dict)

  def without_vectors(self) -> 'SourceSequence':
    """Returns the source of calls whose caches hold everything computed from its vectors."""
    return dataclasses.replace(self, x=None, inputs=None, recorded={})

  def inputs_for(self, part: object) -> Float[Array, 'batch source d_model']:
    """Returns `inputs` for a part that reads one input vector for each vector of `x`.

    Raises:
      UserError: the source has no inputs, or their shape differs from the shape of `x`.
    """
    name = type(part).__name__
    if self.inputs is None or self.x is None:
      raise UserError(
        f'{name} reads the inputs of the encoder, but SourceSequence.inputs is not set: use an EncoderDecoder'
      )
    if self.inputs.shape != self.x.shape:
      raise UserError(
        f'{name} adds the inputs of the encoder {list(self.inputs.shape)} to its outputs {list(self.x.shape)}: '
        'use an encoder that keeps the number of tokens and the width'
      )
    return self.inputs


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=[
    'tokens',
    'encoding',
    'source',
    'slots',
    'repeat',
    'layer',
    'key',
    'step',
    'drop',
    'extras',
  ],
  meta_fields=['pattern', 'place', 'record'],
)
@dataclasses.dataclass(frozen=True)
class Call:
  """Arguments of a sublayer besides its input. A new field affects only the parts that read it.

  Attributes:
    tokens: metadata of the tokens of x.
    pattern: attention pattern of the tokens of x: which keys each query may see.
    encoding: position encoding of the tokens of x in the layers; None: no positions in the layers.
    source: sequence that the sublayer reads; None for sublayers without 'source' in `reads`.
    slots: slots of the tokens in the key/value caches; None without a cache.
    place: index of the block in the repeating group of its stack.
    repeat: index of the group, a traced int32.
    layer: number of the layer in its body, from 0; a traced int32.
    key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
    step: number of train steps taken, int32 []; None in evaluation and generation (see `t2x.base.step.in_step`).
    drop: probability with which each branch of a block is dropped for a row (stochastic depth), float32 [];
      None: 0. Sublayers get None.
    record: names of the intermediate arrays to return in `Result.recorded`.
    extras: values that earlier layers returned in `Result.extras`, by name; see `ExtrasSublayer`.
  """

  tokens: Tokens
  pattern: Pattern = Full()
  encoding: PositionEncoding | None = None
  source: SourceSequence | None = None
  slots: Slots | None = None
  place: int = 0
  repeat: int | Int[Array, ''] = 0
  layer: int | Int[Array, ''] = 0
  key: Array | None = None
  step: int | Int[Array, ''] | None = None
  drop: Float[Array, ''] | None = None
  record: frozenset[str] = frozenset()
  extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Aux:
  """Auxiliary losses and metrics of the parts of a model, by name.

  Attributes:
    losses: one value per row, [batch], including the coefficient. Values of the same name are summed over
      layers; the train step adds their mean over the global batch to the loss.
    metrics: (sum, weight). Both are summed over layers; the reported metric is their quotient.
  """

  # A scan over layers stacks the values, and tree functions put leaves other than arrays there.
  losses: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  metrics: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

  def __add__(self, other: 'Aux') -> 'Aux':
    """Sums the losses and metrics of two parts by name."""
    return Aux(_add(self.losses, other.losses), _add(self.metrics, other.metrics))


NO_AUX = Aux()


def _add(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
  both = {name: jax.tree.map(jnp.add, a[name], b[name]) for name in a if name in b}
  return {**a, **b, **both}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Result:
  """Result of a sublayer.

  Attributes:
    x: the output, [batch, length, d_model], of a block with several residual streams
      [batch, length, streams, d_model].
    cache: the new cache; None if the call had no cache.
    aux: auxiliary losses and metrics.
    recorded: the intermediate arrays requested by `Call.record` that the part has, by name.
    tokens: metadata of the tokens of `x` if it differs from that of the call; else None.
    extras: new values of the entries of `Call.extras` that the part changes.
  """

  x: Float[Array, 'batch length *streams d_model']
  cache: object = None
  aux: Aux = NO_AUX
  recorded: Mapping[str, Array] = dataclasses.field(default_factory=dict)
  tokens: Tokens | None = None
  extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# The cache of a part, which only the part itself reads.
CacheT = TypeVar('CacheT', contravariant=True)


@runtime_checkable
class Sublayer(Protocol[CacheT]):
  """Sublayer of a block: a token mixer, cross-attention or a feed-forward layer.

  A sublayer that moves information between tokens must respect `Call.pattern` and `Call.tokens`, or raise.
  """

  @property
  def reads(self) -> frozenset[str]:
    """Fields of `Call` that it depends on: 'pattern', 'encoding' ('encoding.HOOK' for a single hook), 'source',
    'extras' (for an `ExtrasSublayer`), 'record.NAME' for each array that it can record, and 'source.NAME' for each
    array that it reads of the layers of the encoder (`SourceSequence.recorded`).

    'encoding.features' names the arrays per token of `PositionEncoding.prepare`: the cache of such a sublayer holds
    them, and its `init_cache` has an argument `encoding`, by name.

    A sublayer that names 'source' needs one in each call: whether attention does is decided when it is built
    (`FromSource`).
    """
    ...

  @property
  def max_length(self) -> int | None:
    """Maximum sequence length; None: no limit."""
    ...

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> Cache | None:
    """Returns an empty cache for `batch` rows of `num_slots` tokens; None for a part without state.

    A part that reads the source keeps everything that it computes from it once per generation in a cache of its
    own, `SourceCache`, which beams of a row share.
    """
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: CacheT | None = None
  ) -> Result:
    """Applies the sublayer to `x`."""
    ...


@runtime_checkable
class ExtrasSublayer(Sublayer[CacheT], Protocol[CacheT]):
  """Sublayer, or block of a stack, whose `reads` contains 'extras'.

  Extras are named arrays that are passed from layer to layer in addition to the residual stream. All parts
  of a stack share them.
  """

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    """Returns the extras of the first layer, for the input `x` of the stack.

    Parts that use the same name must return the same value. Layers must not change shapes and dtypes.
    """
    ...


@runtime_checkable
class Norm(Protocol):
  """Normalisation over the last dimension. Built as `norm(size, rngs=rngs)`; `build_context().axis` of
  `t2x.layers.initializers` is the logical axis of its parameters."""

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    """Returns the normalised vectors in the dtype of `x`."""
    ...


@runtime_checkable
class Scores(Protocol):
  """Attention scores of queries and keys. Built as `Scores(heads, rngs=rngs)`.

  Attributes:
    reads: arguments that the scores depend on, of 'q', 'k', 'positions', 'scale' and 'pattern' (which keys a query
      sees). Attention creates the projections q and k only if they are read.
    max_length: maximum sequence length; None: no limit.
  """

  reads: frozenset[str]
  max_length: int | None

  def __call__(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
    call: Call,
  ) -> DotProduct | Logits:
    """Returns the scores before position terms and mask.

    Args:
      q: projected and rotated queries; None unless 'q' is in `reads`.
      k: projected and rotated keys; None unless 'k' is in `reads`.
      q_tokens: metadata of the queries.
      k_tokens: metadata of the keys.
      scale: factor of dot products.
      call: the call of the attention layer, such as its layer. If sequences share the slots of a cache, its tokens
        are grouped by row as `q_tokens` are.
    """
    ...


@runtime_checkable
class StreamEnds(Protocol):
  """Beginning and end of the residual streams of a stack; may have parameters."""

  def expand(
    self, x: Float[Array, 'batch length d_model']
  ) -> Float[Array, 'batch length *streams d_model']:
    """Returns the residual streams before the first layer."""
    ...

  def collapse(
    self, x: Float[Array, 'batch length *streams d_model']
  ) -> Float[Array, 'batch length d_model']:
    """Returns the output of the stack."""
    ...


@runtime_checkable
class Wiring(Protocol):
  """Connection of a sublayer to the residual stream."""

  @property
  def ends_with_norm(self) -> bool:
    """True if the residual stream is normalised after the sublayer."""
    ...

  @property
  def num_streams(self) -> int:
    """Number of residual streams. If it is above 1, `x` is [batch, length, streams, d_model]."""
    ...

  @property
  def ends(self) -> Callable[..., StreamEnds]:
    """Builder of the beginning and end of the residual streams, which a stack calls once, as
    `ends(d_model, num_streams, rngs=rngs)`."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length *streams d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """Returns the result of `sublayer`, with `x` replaced by the updated residual stream.

    Args:
      x: the residual stream.
      sublayer: maps its input to its result.
      key: random keys of dropout as in `Call`; None: no dropout.
      keep: factor of the branch (stochastic depth); None: 1.
    """
    ...


@runtime_checkable
class BranchWiring(Wiring, Protocol):
  """Wiring x + branch(x), whose branch can be computed for another stream; `ReversibleStack` needs it."""

  def branch(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """Returns the result of `sublayer`, with `x` replaced by what `__call__` adds to the residual stream."""
    ...


@runtime_checkable
class Merge(Protocol):
  """Layer between two stages, which merges neighbouring tokens or changes the width.
  Built as `Merge(d_model, rngs=rngs)`.

  Attributes:
    num_merged: number of tokens that are merged into one.
    keeps_tokens: whether the output has the tokens of the input, and each output depends only on its own token, so
      that the stages can share a cache.
  """

  num_merged: int
  keeps_tokens: bool

  @property
  def output_dim(self) -> int:
    """Width of the output."""
    ...

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Result:
    """Returns the vectors [batch, merged, output_dim], and the metadata of their tokens unless it keeps them."""
    ...


@runtime_checkable
class Join(Protocol):
  """Part that computes the output of a pyramid from those of all of its stages. Built as `Join(widths, rngs=rngs)`,
  with the width of each stage."""

  @property
  def output_dim(self) -> int:
    """Width of the output."""
    ...

  def __call__(
    self, outputs: Sequence[tuple[Float[Array, 'batch _ _'], Tokens]]
  ) -> tuple[Float[Array, 'batch length output_dim'], Tokens]:
    """Returns vectors and their metadata, from the vectors and metadata of each stage, the first one first."""
    ...


def reads_encoding(reads: Collection[str], encoding: PositionEncoding | None) -> bool:
  """Returns whether a part with these `reads` calls a hook of the encoding."""
  hooks = frozenset() if encoding is None else encoding.mixer_hooks
  return 'encoding' in reads or any(f'encoding.{hook}' in reads for hook in hooks)


def without_encoding(reads: frozenset[str]) -> frozenset[str]:
  """Returns the fields of `Call` that are read, without the encoding and its hooks."""
  return frozenset(field for field in reads if field.partition('.')[0] != 'encoding')
