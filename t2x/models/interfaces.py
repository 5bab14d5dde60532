"""What the parts of a model are to each other, as protocols that configs are checked against."""

import dataclasses
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Int

from t2x.layers import Aux, Context, Pattern, PositionEncoding, Tokens

__all__ = [
  'Body',
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
  'add_aux',
]


Inputs = Literal['a text', 'a source and a target', 'images']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
  """What a model returns.

  Attributes:
    x: hidden vectors or logits, [batch, length, ...].
    cache: the new cache when one was handed in.
    aux: auxiliary losses [batch] by name, summed over layers.
  """

  x: Float[Array, 'batch *rest']
  cache: Any = None
  aux: Aux = dataclasses.field(default_factory=dict)


def add_aux(a: Aux, b: Aux) -> Aux:
  """Auxiliary losses [batch] of two parts of a model, summed by name."""
  return a | b | {name: a[name] + b[name] for name in a if name in b}


@runtime_checkable
class Layer(Protocol):
  """What a stack repeats: a residual block.

  Attributes:
    pattern: narrows the body's pattern.
  """

  pattern: Pattern

  @property
  def reads_context(self) -> bool:
    """Whether it attends to a context; a layer that does not is never given one."""
    ...

  @property
  def ends_with_norm(self) -> bool:
    """Whether its output is normalised."""
    ...

  def init_cache(self, batch: int, length: int, dtype: Any) -> Any:
    """An empty cache for `length` tokens."""

  def cross_cache(self, context: Context) -> Any:
    """What is computed of the context once for a whole generation."""

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens,
    encoding: PositionEncoding | None = None,
    cache: Any = None,
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Any, Aux]:
    """Returns the new stream, the new cache and auxiliary losses [batch] by name; `keep` scales each
    branch."""
    ...


@runtime_checkable
class LayerStack(Protocol):
  """Layers one after the other."""

  @property
  def ends_with_norm(self) -> bool:
    """Whether the output is normalised."""
    ...

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """The pattern of each kind of layer inside a body with `pattern`."""
    ...

  def init_cache(self, batch: int, length: int, dtype: Any) -> Any:
    """An empty cache for `length` tokens."""

  def cross_cache(self, context: Context) -> Any:
    """What is computed of the context once for a whole generation."""

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens,
    encoding: PositionEncoding | None = None,
    cache: Any = None,
    key: Array | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Any, Aux]:
    """Returns the stream, the caches and auxiliary losses [batch] by name, summed over layers."""
    ...


@runtime_checkable
class Body(Protocol):
  """Vectors in, vectors out: `Encoder` or `Decoder`."""

  encoding: PositionEncoding

  @property
  def patterns(self) -> list[Pattern]:
    """The attention pattern of each kind of layer."""
    ...

  def init_cache(self, batch: int, length: int, dtype: Any) -> Any:
    """An empty cache for `length` tokens of `batch` rows."""

  def fill_cross(self, cache: Any, context: Context) -> Any:
    """The cache with the context's keys and values."""

  def __call__(
    self,
    x: Float[Array, 'batch length input_dim'],
    context: Context | None = None,
    *,
    tokens: Tokens | None = None,
    cache: Any = None,
    key: Array | None = None,
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
