"""Protocols of the parts of a model, against which configs are checked."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.hyperparameters import Tunable
from t2x.layers import (
  NO_AUX,
  Aux,
  Cache,
  Call,
  Pattern,
  PositionEncoding,
  Result,
  SourceSequence,
  TextEmbedding,
  Tokens,
  Wiring,
)
from t2x.layers.interfaces import CacheT
from t2x.models.cache import BodyCache
from t2x.models.loss_blocks import Chunk
from t2x.models.losses import Sums
from t2x.models.spec import ModelSpec

__all__ = [
  'DecodingModel',
  'FlexibleModel',
  'Head',
  'InspectableModel',
  'Model',
  'Output',
  'OutputHead',
  'Pooling',
  'TextModel',
]

# Segment of each token, 0 for padding; None: no padding.
RowSegments = Int[Array, 'batch length'] | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
  """Output of a model or of its body.

  Attributes:
    x: hidden vectors or logits, [batch, length, ...].
    cache: the new cache; None without one.
    aux: auxiliary losses and metrics, summed over layers.
    recorded: intermediate arrays by name, as `Stack` returns them.
    tokens: metadata of the tokens of hidden vectors; None for the output of a head.
    inputs: input of the first layer of a body, [batch, length, d_model]; None for the output of a head.
    heads: outputs of each head by name, of a model with several: 'labels' and 'teacher' (logits that learn
      from labels and from a teacher, of which `x` is the mean), or 'classes' and 'boxes' of a detector
      [batch, layers, queries, ...].
  """

  x: Float[Array, 'batch *rest']
  cache: BodyCache | None = None
  aux: Aux = NO_AUX
  recorded: Mapping[str, Array] = dataclasses.field(default_factory=dict)
  tokens: Tokens | None = None
  inputs: Float[Array, 'batch length d_model'] | None = None
  heads: Mapping[str, Array] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Layer(Protocol):
  """Interface of a stack's layers, which are residual blocks.

  Attributes:
    pattern: narrows the body's pattern.
  """

  pattern: Pattern

  @property
  def reads(self) -> frozenset[str]:
    """Names of the fields of `Call` that the layer reads; it receives no other source or encoding."""
    ...

  @property
  def max_length(self) -> int | None:
    """Maximum length in tokens; None: unlimited."""
    ...

  @property
  def wirings(self) -> Mapping[str, Wiring]:
    """Wirings of the sublayers, in the order of application; empty for a layer that is not made of them."""
    ...

  @property
  def num_streams(self) -> int:
    """Number of residual streams; if it is above 1, inputs and outputs are [batch, length, streams, d_model]."""
    ...

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> dict[str, Cache]:
    """Returns empty caches by sublayer, with everything that they compute from the source."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: Mapping[str, Cache] | None = None,
  ) -> Result:
    """Returns the new residual stream, the new caches, auxiliary losses and recorded arrays."""
    ...


@runtime_checkable
class LayerStack(Protocol[CacheT]):
  """Interface of a sequence of layers."""

  @property
  def blocks(self) -> Sequence[Layer]:
    """Layers in the order of application; of repeated layers, those of one repeat."""
    ...

  @property
  def num_layers(self) -> int:
    """Number of layers."""
    ...

  @property
  def output_dim(self) -> int:
    """Width of the output."""
    ...

  @property
  def max_length(self) -> int | None:
    """Maximum length in tokens; None: unlimited."""
    ...

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """Returns the attention pattern of each kind of layer inside a body with `pattern`."""
    ...

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> Any:
    """Returns empty caches of the layers, a list over `blocks`, with everything that they compute from the source."""
    ...

  def unstacked(self) -> Any:
    """Returns a stack of the layers separately, for decoding token by token."""
    ...

  def unstacked_cache(self, cache: CacheT) -> Any:
    """Returns the caches of the layers that `unstacked` returns."""
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: CacheT | None = None
  ) -> Result:
    """Returns the residual stream, the caches, auxiliary losses summed over layers and recorded arrays."""
    ...


@runtime_checkable
class Body(Protocol):
  """Interface of `Encoder` and `Decoder`: embedded tokens in, hidden vectors out."""

  @property
  def output_dim(self) -> int:
    """Width of the hidden vectors."""
    ...

  @property
  def max_length(self) -> int | None:
    """Maximum length in tokens; None: unlimited."""
    ...

  @property
  def patterns(self) -> list[Pattern]:
    """Attention pattern of each kind of layer."""
    ...

  @property
  def recordable(self) -> frozenset[str] | None:
    """Names of the arrays that it can record; None: any."""
    ...

  @property
  def reads_of_source(self) -> frozenset[str]:
    """Names of the arrays of the encoder's layers that its layers read (`SourceSequence.recorded`)."""
    ...

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> BodyCache:
    """Returns an empty cache for `num_slots` tokens of `batch` rows, with what layers compute from `source`."""
    ...

  def unstacked(self, cache: BodyCache) -> tuple[Any, BodyCache]:
    """Returns the body and its cache with separate layers, for decoding token by token."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length input_dim'],
    source: SourceSequence | None = None,
    *,
    tokens: Tokens | None = None,
    cache: BodyCache | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Computes hidden vectors [batch, length, d_model] of embedded tokens."""
    ...


@runtime_checkable
class Pooling(Protocol):
  """Computes one vector of each row. Built as `Pooling(d_model, rngs=rngs)`."""

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    segments: RowSegments = None,
    key: Array | None = None,
  ) -> Float[Array, 'batch d_model']:
    """Returns the vectors; tokens of segment 0 are padding, and `key` is that of dropout."""
    ...


@runtime_checkable
class OutputHead(Protocol):
  """Interface of the heads of text models, built as `OutputHead(d_model, vocab_size, rngs=rngs)`."""

  @property
  def outputs(self) -> frozenset[str]:
    """Names of the outputs that the head computes."""
    ...

  @property
  def num_classes(self) -> int | None:
    """Number of class logits; None without a classifier."""
    ...

  def __call__(
    self, x: Float[Array, 'batch length d_model'], embedding: TextEmbedding
  ) -> Float[Array, 'batch *rest']:
    """Returns the outputs of hidden vectors `x`; tied heads read the embedding."""
    ...


@runtime_checkable
class Head(OutputHead, Protocol):
  """Interface of heads that compute logits for each token, or their cross-entropy.

  Attributes:
    chunk: number of tokens of each row whose logits `cross_entropy` computes at a time; None: all;
      'auto': by the size of the logits.
  """

  chunk: Chunk

  def logits(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """Returns the logits of `x`."""
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
    """Returns `classification_sums` of the logits, which an implementation may compute in blocks of tokens.

    Only the sum of the loss has a gradient.

    Args:
      x: hidden vectors.
      embedding: token embedding, which tied heads read.
      labels: class index of each token.
      weights: weight of each token; 0 for padding.
      smoothing: label smoothing.
      z_loss: coefficient of the squared logarithm of the softmax's normaliser.
      axes: logical axes of the first two dimensions.
    """
    ...


@runtime_checkable
class ClassHead(Protocol):
  """Interface of classifiers of pooled vectors, or of each token."""

  num_classes: int

  def __call__(
    self, x: Float[Array, 'batch *rest d_model'], key: Array | None = None
  ) -> Float[Array, 'batch *rest classes']:
    """Returns the class logits."""
    ...


@runtime_checkable
class Model(Protocol):
  """Interface of all models."""

  @property
  def spec(self) -> ModelSpec:
    """Inputs, outputs and sizes of the model."""
    ...


@dataclasses.dataclass(frozen=True)
class ModelSide:
  """A body of a model with the parts around it.

  Attributes:
    body: the body.
    embedding: embeds its inputs.
    encodings: position encodings outside of the body.
  """

  body: Body
  embedding: Any
  encodings: tuple[PositionEncoding, ...] = ()


@runtime_checkable
class InspectableModel(Model, Protocol):
  """Interface of models that declare their bodies, for pictures and lenses of layers."""

  @property
  def sides(self) -> Mapping[str, ModelSide]:
    """The bodies by name: 'encoder' and 'decoder' of an encoder-decoder, else ''."""
    ...

  def class_logits(self, x: Float[Array, 'batch length width']) -> Float[Array, 'batch classes']:
    """Returns the class logits of hidden vectors without padding; only of models with the output 'class logits'."""
    ...


@runtime_checkable
class FlexibleModel(Model, Protocol):
  """Interface of models of images whose patch size may change."""

  def at_patch_size(self, size: int) -> 'FlexibleModel':
    """Returns the model with the same parameters and patches of `size` x `size` pixels."""
    ...


@runtime_checkable
class TextModel(Model, Protocol):
  """Interface of models that compute logits, or their cross-entropy, from hidden vectors.

  The arguments of `hidden` and of the call depend on `spec.inputs`.
  """

  def hidden(self, *inputs: Any, **settings: Any) -> Output:
    """Returns the hidden vectors [batch, length, d_model] that the head reads."""
    ...

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch length logits']:
    """Returns the logits of hidden vectors."""
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
    """Returns weighted sums of the loss and of correct predictions; see `Head.cross_entropy`."""
    ...


@runtime_checkable
class DecodingModel(Model, Protocol):
  """Interface of models that generate tokens with a cache."""

  def init_cache(self, batch: int, num_slots: int, *inputs: Any, **settings: Any) -> BodyCache:
    """Returns an empty cache for `num_slots` tokens; an encoder-decoder also needs its source."""
    ...

  def unstacked(self, cache: BodyCache) -> tuple[Any, BodyCache]:
    """Returns the model and its cache with separate layers, for decoding token by token."""
    ...

  def decode(
    self,
    ids: Int[Array, 'batch length'],
    tokens: Tokens,
    cache: BodyCache,
    last: Int[Array, ' batch'] | None = None,
  ) -> tuple[Float[Array, 'batch picked vocab'], BodyCache]:
    """Returns the logits of `ids`, which continue the cached tokens, and the new cache.

    Args:
      ids: token ids.
      tokens: metadata of the tokens; those of segment 0 are padding.
      cache: cache that `init_cache` or an earlier call returned.
      last: index of the token in each row whose logits are computed, as [batch, 1, vocab]; None: all.
    """
    ...
