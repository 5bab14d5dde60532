"""What the parts of a model are to each other, as protocols that configs are checked against."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Int

from t2x.layers import NO_AUX, Aux, Cache, Call, Pattern, Result, Slots, Source, Tokens

__all__ = [
  'Body',
  'BodyCache',
  'ClassHead',
  'GridPositions',
  'ImageEmbedding',
  'Inputs',
  'Layer',
  'LayerStack',
  'Model',
  'Output',
  'TextEmbedding',
  'TokenHead',
]


Inputs = Literal['a text', 'a source and a target', 'images']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
  """What a model returns.

  Attributes:
    x: hidden vectors or logits, [batch, length, ...].
    cache: the new cache when one was given.
    aux: auxiliary losses and metrics, summed over layers.
    recorded: intermediate arrays by name, as `Stack` returns them.
  """

  x: Float[Array, 'batch *rest']
  cache: Any = None
  aux: Aux = NO_AUX
  recorded: Mapping[str, Array] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BodyCache(Cache):
  """What a body remembers of a generation.

  Attributes:
    layers: the caches of the layers, as the stack made them.
    slots: the tokens in the slots of all key-value caches.
    source: the tokens of the source, whose copies of a row share them; None without a source.
  """

  layers: Any
  slots: Slots
  source: Tokens | None = None

  def repeat(self, copies: int) -> 'BodyCache':
    layers = self._each_layer(lambda cache: cache.repeat(copies))
    return BodyCache(layers, self.slots.repeat(copies), self.source)

  def take(self, rows: Int[Array, ' batch']) -> 'BodyCache':
    layers = self._each_layer(lambda cache: cache.take(rows))
    return BodyCache(layers, self.slots.take(rows), self.source)

  def _each_layer(self, change: Callable[[Cache], Cache]) -> list[dict[str, Cache]]:
    """The caches of single layers, changed; those of a stack have another axis before the batch."""
    return [{name: change(cache) for name, cache in layer.items()} for layer in self.layers]


@runtime_checkable
class Layer(Protocol):
  """What a stack repeats: a residual block.

  Attributes:
    pattern: narrows the body's pattern.
  """

  pattern: Pattern

  @property
  def reads(self) -> frozenset[str]:
    """What its sublayers read, of the fields of `Call`; only then it is given a source or an encoding."""
    ...

  @property
  def max_length(self) -> int | None:
    """The longest sequence it can process; None: any."""
    ...

  @property
  def ends_with_norm(self) -> bool:
    """Whether its output is normalised."""
    ...

  def init_cache(self, batch: int, num_slots: int, dtype: Any) -> dict[str, Cache]:
    """Empty caches by sublayer."""
    ...

  def source_cache(self, source: Source) -> dict[str, Cache]:
    """What is computed of the source once for a whole generation, by sublayer."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: Mapping[str, Cache] | None = None,
  ) -> Result:
    """The new stream, the new caches, auxiliary losses and recorded arrays."""
    ...


@runtime_checkable
class LayerStack(Protocol):
  """Layers one after the other."""

  @property
  def ends_with_norm(self) -> bool:
    """Whether the output is normalised."""
    ...

  @property
  def max_length(self) -> int | None:
    """The longest sequence it can process; None: any."""
    ...

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """The pattern of each kind of layer inside a body with `pattern`."""
    ...

  def init_cache(self, batch: int, num_slots: int, dtype: Any) -> Any:
    """Empty caches of the layers."""
    ...

  def source_cache(self, source: Source) -> Any:
    """What is computed of the source once for a whole generation."""
    ...

  def unstacked(self) -> Any:
    """The layers one by one, for decoding token by token."""
    ...

  def unstacked_cache(self, cache: Any) -> Any:
    """The caches of `unstacked`."""
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """The stream, the caches, auxiliary losses and metrics summed over layers, recorded arrays."""
    ...


@runtime_checkable
class Body(Protocol):
  """Vectors in, vectors out: `Encoder` or `Decoder`."""

  @property
  def max_length(self) -> int | None:
    """The longest sequence it can process; None: any."""
    ...

  @property
  def patterns(self) -> list[Pattern]:
    """The attention pattern of each kind of layer."""
    ...

  def init_cache(
    self, batch: int, num_slots: int, dtype: Any, source: Source | None = None
  ) -> BodyCache:
    """An empty cache for `num_slots` tokens of `batch` rows, with what is computed of the source."""
    ...

  def unstacked(self, cache: BodyCache) -> tuple[Any, BodyCache]:
    """The body and its cache layer by layer, for decoding token by token."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length input_dim'],
    source: Source | None = None,
    *,
    tokens: Tokens | None = None,
    cache: BodyCache | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Embedded tokens -> hidden vectors [batch, length, d_model]."""
    ...


@runtime_checkable
class TextEmbedding(Protocol):
  """Token ids -> vectors, and back to logits."""

  vocab_size: int

  def __call__(
    self, ids: Int[Array, 'batch length'], types: Int[Array, 'batch length'] | None = None
  ) -> Float[Array, 'batch length d_model']:
    """Vectors of `ids`."""
    ...

  def attend(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest vocab']:
    """Logits by the table."""
    ...


@runtime_checkable
class TokenHead(Protocol):
  """Hidden vectors -> logits for each token, built as `Head(d_model, vocab_size, rngs=rngs)`."""

  def __call__(self, x: Float[Array, '... d_model'], embedding: Any) -> Float[Array, '... vocab']:
    """Logits; a tied head reads the embedding."""
    ...


@runtime_checkable
class ClassHead(Protocol):
  """A pooled vector -> class logits."""

  num_classes: int

  def __call__(
    self, x: Float[Array, 'batch d_model'], key: Array | None = None
  ) -> Float[Array, 'batch classes']:
    """Logits of the classes."""
    ...


@runtime_checkable
class ImageEmbedding(Protocol):
  """Images -> tokens."""

  def __call__(
    self, images: Float[Array, 'batch height width channels']
  ) -> tuple[Float[Array, 'batch tokens d_model'], tuple[int, int]]:
    """The tokens, and the rows and columns of their grid."""
    ...


@runtime_checkable
class GridPositions(Protocol):
  """Positions of the tokens of an image."""

  def embed_grid(
    self, x: Float[Array, 'batch tokens d_model'], grid: tuple[int, int]
  ) -> Float[Array, 'batch tokens d_model']:
    """x plus its positions."""
    ...


@runtime_checkable
class Model(Protocol):
  """A whole model.

  Attributes:
    inputs: what it is called with.
  """

  inputs: ClassVar[Inputs]

  @property
  def patterns(self) -> list[Pattern]:
    """The attention patterns of the layers whose output the head reads."""
    ...
