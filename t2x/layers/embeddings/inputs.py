"""Descriptions of a model's inputs, and the interfaces of the modules that embed them."""

import dataclasses
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int

from t2x.layers.tokens import Tokens

__all__ = ['Embedder', 'Input', 'InputKind', 'TextEmbedding']

InputKind = Literal['ids', 'image', 'video', 'audio', 'series', 'boxes']


@dataclasses.dataclass(frozen=True)
class Input:
  """Describes an input array of a model.

  Attributes:
    kind: 'ids' (token ids), 'image' (pixels), 'video' (pixels of frames), 'audio' (frames of features), 'series'
      (values over time) or 'boxes'.
    shape: shape of one example; None for sizes that may differ.
    dtype: dtype of the array.
    max_length: maximum length in tokens; None: unlimited.
    vocab_size: number of different ids; None for other kinds.
  """

  kind: InputKind = 'ids'
  shape: tuple[int | None, ...] = (None,)
  dtype: str = 'int32'
  max_length: int | None = None
  vocab_size: int | None = None


@runtime_checkable
class Embedder(Protocol):
  """Interface of modules that embed inputs (token ids, pixels, ...) as vectors with token metadata.

  Length, coordinates, grid and segments may change: a stem with stride 2 returns half of the frames. `tokens` is the
  metadata of the inputs, or of the result where inputs have another number of dimensions (images).
  """

  @property
  def input(self) -> Input:
    """The array that is embedded."""
    ...

  @property
  def num_extra(self) -> int:
    """Number of tokens that are added before those of the inputs (class token, global tokens)."""
    ...

  def __call__(
    self, inputs: Array, /, tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors and their metadata; without `tokens`, rows are unpadded."""
    ...


@runtime_checkable
class TextEmbedding(Embedder, Protocol):
  """Interface of token embeddings, whose table also computes logits.

  Attributes:
    vocab_size: number of tokens.
    vocab_multiple: number that the sizes of parameters over the vocabulary are rounded up to a multiple of,
      those of the head included; 1: none are padded.
    num_types: number of token types; 0: no types.
  """

  vocab_size: int
  vocab_multiple: int
  num_types: int

  def __call__(
    self,
    inputs: Array,
    /,
    tokens: Tokens | None = None,
    *,
    types: Int[Array, 'batch length'] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors, plus those of `types`, and their metadata; see `Embedder`."""
    ...

  def attend(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest vocab']:
    """Returns the products of `x` and the table without its padding: logits."""
    ...
