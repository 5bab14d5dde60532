"""What the parts of a model are to each other, as protocols that configs are checked against."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Int

from t2x.hyperparameters import Tunable
from t2x.layers import NO_AUX, Aux, Cache, Call, Pattern, Result, Source, Tokens
from t2x.models.cache import BodyCache
from t2x.models.losses import Sums
from t2x.models.spec import ModelSpec, OutputKind


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
  """What a model returns.

  Attributes:
    x: hidden vectors or logits, [batch, length, ...].
    cache: the new cache when one was given.
    aux: auxiliary losses and metrics, summed over layers.
    recorded: intermediate arrays by name, as `Stack` returns them.
    tokens: metadata of the tokens of hidden vectors; None for the output of a head.
  """

  x: Float[Array, 'batch *rest']
  cache: Any = None
  aux: Aux = NO_AUX
  recorded: Mapping[str, Array] = dataclasses.field(default_factory=dict)
  tokens: Tokens | None = None


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
  def output_dim(self) -> int:
    """Width of the output."""
    ...

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
  def output_dim(self) -> int:
    """Width of the hidden vectors."""
    ...

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
class Embedder(Protocol):
  """Inputs (token ids, pixels, ...) -> vectors and their metadata.

  The length, coordinates and grid may change; segments and marks are kept.
  """

  def __call__(
    self, inputs: Array, /, tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors and their metadata; `tokens` None is a plain row."""
    ...


@runtime_checkable
class TextEmbedding(Embedder, Protocol):
  """Token ids -> vectors, and back to logits.

  Attributes:
    vocab_size: number of tokens.
    num_types: number of token types; 0: none.
  """

  vocab_size: int
  num_types: int

  def __call__(
    self,
    inputs: Array,
    /,
    tokens: Tokens | None = None,
    *,
    types: Int[Array, 'batch length'] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """As `Embedder`; vectors of `types` are added."""
    ...

  def attend(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest vocab']:
    """Logits by the table."""
    ...


@runtime_checkable
class OutputHead(Protocol):
  """Hidden vectors -> what a model of text returns, built as `OutputHead(d_model, vocab_size, rngs=rngs)`."""

  @property
  def outputs(self) -> frozenset[OutputKind]:
    """The kinds of outputs that it computes."""
    ...

  @property
  def num_classes(self) -> int | None:
    """Number of class logits; None without."""
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], embedding: TextEmbedding
  ) -> Float[Array, 'batch *rest']:
    """Outputs for `x`; a tied head reads the embedding."""
    ...


@runtime_checkable
class Head(OutputHead, Protocol):
  """Hidden vectors -> logits for each token, or their cross-entropy.

  Attributes:
    chunk: tokens of each row whose logits exist at a time in `cross_entropy`; None: all.
  """

  chunk: int | None

  def logits(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """Logits for `x`."""
    ...

  def cross_entropy(
    self,
    x: Float[Array, 'batch length d_model'],
    embedding: TextEmbedding,
    labels: Int[Array, 'batch length'],
    weights: Float[Array, 'batch length'],
    *,
    smoothing: Tunable = 0.0,
    z_loss: Tunable = 0.0,
    axes: Sequence[str | None] = ('batch', 'length'),
  ) -> Sums:
    """`classification_sums` of the logits, which need never exist as a whole.

    Args:
      x: hidden vectors.
      embedding: read by a tied head.
      labels: the index of the right logit.
      weights: weight of each token; 0 for padding.
      smoothing: label smoothing.
      z_loss: coefficient of the squared logarithm of the softmax's normaliser.
      axes: logical axes of the first two dimensions.
    """
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
class Model(Protocol):
  """A whole model."""

  @property
  def spec(self) -> ModelSpec:
    """Facts about the model."""
    ...


@runtime_checkable
class TextModel(Model, Protocol):
  """A model with a head over hidden vectors: `hidden(...)`, then `logits` or `cross_entropy`.

  The arguments of `hidden` and of the call depend on `spec.inputs`.
  """

  def hidden(self, *inputs: Any, **settings: Any) -> Output:
    """Hidden vectors [batch, length, d_model] that the head reads."""
    ...

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch length logits']:
    """Logits of hidden vectors."""
    ...

  def cross_entropy(
    self,
    x: Float[Array, 'batch length d_model'],
    labels: Int[Array, 'batch length'],
    weights: Float[Array, 'batch length'],
    *,
    smoothing: Tunable = 0.0,
    z_loss: Tunable = 0.0,
    axes: Sequence[str | None] = ('batch', 'length'),
  ) -> Sums:
    """Sums of the loss and of correct predictions over hidden vectors; see `Head.cross_entropy`."""
    ...


@runtime_checkable
class DecodingModel(Model, Protocol):
  """A model that extends sequences from a cache."""

  def init_cache(self, batch: int, num_slots: int, *inputs: Any, **settings: Any) -> Cache:
    """An empty cache for `num_slots` tokens; an encoder-decoder needs its source too."""
    ...

  def unstacked(self, cache: Any) -> tuple[Any, Cache]:
    """The model and its cache in the form that a loop over single tokens uses."""
    ...

  def decode(
    self,
    ids: Int[Array, 'batch length'],
    tokens: Tokens,
    cache: Any,
    last: Int[Array, ' batch'] | None = None,
  ) -> tuple[Float[Array, 'batch picked vocab'], Cache]:
    """Returns the logits of `ids`, which follow what the cache holds, and the new cache.

    With `last` [batch], only the logits of that token of each row: [batch, 1, vocab]. Tokens of segment
    0 are padding.
    """
    ...
