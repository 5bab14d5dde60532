"""The interfaces of a block's parts. Configs are checked against these protocols.

Every part is built as `Part(d_model, *, settings, rngs)`. Shapes: x is [batch, length, d_model].
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.layers.base import Tokens
from t2x.layers.kernels.base import DotProduct, Logits
from t2x.layers.patterns import Full, Pattern
from t2x.layers.position_encoding import PositionEncoding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Aux:
  """Auxiliary losses and metrics of the parts of a model, by name.

  Attributes:
    losses: one value per row of the batch, [batch], coefficient included. Values of the same name are
      summed over layers; the train step adds their mean over the rows of the whole batch to the loss.
    metrics: (sum, weight). Both are summed over layers, so that the reported quotient is an average.
  """

  # A scan over layers stacks the values, and tree functions put other things than arrays there.
  losses: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  metrics: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

  def __add__(self, other: 'Aux') -> 'Aux':
    """Sums the losses and metrics of two parts by name."""
    return Aux(_added(self.losses, other.losses), _added(self.metrics, other.metrics))


NO_AUX = Aux()


def _added(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
  both = {name: jax.tree.map(jnp.add, a[name], b[name]) for name in a if name in b}
  return {**a, **b, **both}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Source:
  """Another sequence, which cross-attention reads.

  Attributes:
    x: its vectors; None where caches hold what the parts compute of them.
    tokens: metadata of its tokens.
  """

  x: Float[Array, 'batch source d_model'] | None
  tokens: Tokens


class Cache(abc.ABC):
  """What a part remembers of earlier calls of a generation: a pytree whose arrays are [batch, ...].

  Tokens of segment 0 leave it unchanged, or are written as tokens that nobody may see.
  """

  @abc.abstractmethod
  def repeat(self, copies: int) -> 'Cache':
    """The cache with `copies` neighbouring rows for each row; unchanged where they can share one."""

  @abc.abstractmethod
  def take(self, rows: Int[Array, ' batch']) -> 'Cache':
    """The cache of these rows. A row only takes that of a copy of the same original row."""


def write(buffer: Any, new: Array, start: Int[Array, ''], axis: int) -> Array:
  """`buffer` with `new` from index `start` of `axis` on; unchanged where `new` does not fit in."""
  length = new.shape[axis]
  if length > buffer.shape[axis]:
    return buffer
  old = jax.lax.dynamic_slice_in_dim(buffer, start, length, axis)
  fits = start + length <= buffer.shape[axis]
  new = jnp.where(fits, jnp.broadcast_to(new.astype(buffer.dtype), old.shape), old)
  return jax.lax.dynamic_update_slice_in_dim(buffer, new, start, axis)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots(Cache):
  """The tokens in the slots of all key-value caches of a body. A slot is not a position.

  Attributes:
    tokens: positions, segments and marks, [batch, slots]; segment 0: the slot is empty or holds padding.
    start: the slot of the first token of this call, int32.
    next: the first free slot, int32.
  """

  # Tree functions put other things than arrays into the fields.
  tokens: Tokens
  start: Any
  next: Any

  @staticmethod
  def empty(batch: int, num_slots: int, marks: Collection[str] = ()) -> 'Slots':
    """Slots of which none is written, for tokens with these marks."""
    zeros, none = jnp.zeros((batch, num_slots), jnp.int32), jnp.zeros((), jnp.int32)
    return Slots(Tokens(zeros, zeros, marks=dict.fromkeys(marks, zeros.astype(bool))), none, none)

  def extend(self, tokens: Tokens) -> 'Slots':
    """The slots after the tokens of a call are written to the first free ones; missing marks are False."""
    length = tokens.positions.shape[1]
    ones, old = jnp.ones((1, length), jnp.int32), self.tokens
    segments = ones if tokens.segments is None else tokens.segments
    written = Tokens(
      write(old.positions, tokens.positions, self.next, 1),
      write(old.segments, segments, self.next, 1),
      marks={
        name: write(mark, tokens.marks.get(name, 0 * ones), self.next, 1)
        for name, mark in old.marks.items()
      },
    )
    return Slots(written, self.next, self.next + length)

  def repeat(self, copies: int) -> 'Slots':
    tokens = jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self.tokens)
    return dataclasses.replace(self, tokens=tokens)

  def take(self, rows: Int[Array, ' batch']) -> 'Slots':
    return dataclasses.replace(self, tokens=jax.tree.map(lambda a: a[rows], self.tokens))


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['tokens', 'encoding', 'source', 'slots', 'repeat', 'key', 'keep', 'extras'],
  meta_fields=['pattern', 'place', 'record'],
)
@dataclasses.dataclass(frozen=True)
class Call:
  """What a sublayer is called with besides its input. A new field changes no part that ignores it.

  Attributes:
    tokens: metadata of the tokens of x.
    pattern: which keys a query may see.
    encoding: rotates queries and keys or adds to the scores; None: no positions in the layers.
    source: what cross-attention reads; None for other sublayers.
    slots: where the tokens of x are in the key-value caches; None without a cache.
    place: index of the block in the repeating group of its stack.
    repeat: index of the group, a traced int32.
    key: for dropout; None: no dropout.
    keep: factor of the branch, [batch, 1, 1] (stochastic depth); None: 1.
    record: names of the intermediate arrays to return in `Result.recorded`.
    extras: what parts of earlier layers returned in `Result.extras`, by name; see `ExtrasSublayer`.
  """

  tokens: Tokens
  pattern: Pattern = Full()
  encoding: PositionEncoding | None = None
  source: Source | None = None
  slots: Slots | None = None
  place: int = 0
  repeat: int | Int[Array, ''] = 0
  key: Array | None = None
  keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None
  record: frozenset[str] = frozenset()
  extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Result:
  """What a sublayer returns.

  Attributes:
    x: the output, [batch, length, d_model].
    cache: the new cache, or None without one.
    aux: auxiliary losses and metrics.
    recorded: the intermediate arrays that `Call.record` names and the part has, by name.
    tokens: metadata of the tokens of `x` where they are others than those of the call; else None.
    extras: new values of those of `Call.extras` that the part changes.
  """

  x: Float[Array, 'batch length d_model']
  cache: Any = None
  aux: Aux = NO_AUX
  recorded: Mapping[str, Array] = dataclasses.field(default_factory=dict)
  tokens: Tokens | None = None
  extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Sublayer(Protocol):
  """A token mixer, cross-attention, a feed-forward layer: everything that a block wires.

  A part that moves information between tokens must follow `Call.pattern` and `Call.tokens`, or raise.
  """

  @property
  def reads(self) -> frozenset[str]:
    """What it uses: 'pattern', 'encoding', 'source', 'extras' (then it is an `ExtrasSublayer`), and the
    names that it can record as 'record.NAME'."""
    ...

  @property
  def max_length(self) -> int | None:
    """The longest sequence it can process; None: any."""
    ...

  def init_cache(self, batch: int, num_slots: int, dtype: Any) -> Cache | None:
    """An empty cache for `num_slots` tokens of `batch` rows; None for a part that needs none."""
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """The output, the new cache, auxiliary losses and recorded arrays."""
    ...


@runtime_checkable
class CrossSublayer(Sublayer, Protocol):
  """A sublayer that can read a source."""

  def source_cache(self, source: Source) -> Cache:
    """What is computed of the source once for a whole generation."""
    ...


@runtime_checkable
class ExtrasSublayer(Sublayer, Protocol):
  """A sublayer, or a block of a stack, whose `reads` has 'extras'.

  Extras are arrays beside the residual stream that parts pass from layer to layer. All parts of a stack
  share them by name.
  """

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    """The extras that the first layer is called with, for the input `x` of the stack.

    Parts that use the same name return the same value. Layers keep shapes and dtypes.
    """
    ...


@runtime_checkable
class Norm(Protocol):
  """Normalises over the last dimension."""

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    """The normalised vectors, in the dtype of `x`."""
    ...


@runtime_checkable
class Scores(Protocol):
  """Scores of the pairs of queries and keys. Built as `Scores(num_heads, head_dim, rngs=rngs)`.

  Attributes:
    reads: which arguments the scores depend on: 'q', 'k', 'positions' and 'scale'. Attention creates only
      those of the projections q and k that are read.
    max_length: most positions that there are scores for; None: no limit.
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
  ) -> DotProduct | Logits:
    """Returns the scores before position terms and mask.

    Args:
      q: projected and rotated queries; None unless read.
      k: projected and rotated keys; None unless read.
      q_tokens: tokens of the queries.
      k_tokens: tokens of the keys.
      scale: multiplies dot products.
    """
    ...


@runtime_checkable
class Wiring(Protocol):
  """Puts a sublayer around the residual stream."""

  @property
  def ends_with_norm(self) -> bool:
    """Whether the new stream is normalised."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Callable[[Array], Result],
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> Result:
    """The result of `sublayer` with the new stream as its `x`; `keep` multiplies the branch."""
    ...


@runtime_checkable
class Merge(Protocol):
  """Merges tokens into fewer, wider ones, built as `Merge(d_model, rngs=rngs)`.

  Attributes:
    num_merged: how many tokens become one.
  """

  num_merged: int

  @property
  def output_dim(self) -> int:
    """Width of the output."""
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> tuple[Float[Array, 'batch merged output_dim'], Tokens]:
    """The merged vectors and their metadata."""
    ...


@runtime_checkable
class GridPositions(Protocol):
  """Positions of the tokens of an image."""

  def embed_grid(
    self, x: Float[Array, 'batch tokens d_model'], grid: tuple[int, int]
  ) -> Float[Array, 'batch tokens d_model']:
    """x plus its positions."""
    ...
