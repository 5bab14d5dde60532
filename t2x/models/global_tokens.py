"""Global tokens in front of a text (ETC: Ainslie et al. 2020, https://arxiv.org/abs/2004.08483)."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import (
  Initializer,
  Input,
  RowLayout,
  TextEmbedding,
  TokenEmbedding,
  Tokens,
  normal,
)
from t2x.layers.parameters import param
from t2x.layers.products import broadcast

__all__ = ['GlobalTokens']


class GlobalTokens(nnx.Module):
  """Token embedding of an encoder that prepends `n` learned global tokens to each row.

  With the pattern `Window(64) | Global(n)` global tokens see and are seen by all tokens, and the tokens of the text
  (the long input of ETC) see their window, in time linear in the length. Global tokens have the mark 'global', which
  `Marked('global')` and `GlobalTokenBias` read, and the first n positions, so that the text starts at position n. A
  `LanguageModel` removes them after its body: heads get the vectors of the text only.

  ETC's other global inputs (one token for each sentence) and its contrastive objective are not included.

  Args:
    d_model: width of the vectors.
    n: number of global tokens.
    embedding: builds the embedding of the text.
    init: initialiser of the global tokens.

  Raises:
    UserError: when called, a row is not one segment, or the tokens have the mark 'global'.
  """

  implements = (TextEmbedding,)
  vocab_size: int
  vocab_multiple: int
  num_types: int
  num_extra: int

  def __init__(
    self,
    d_model: int,
    *,
    n: Size,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.num_extra = n
    self.embedding = embedding(d_model, rngs=rngs)
    self.vocab_size, self.vocab_multiple = self.embedding.vocab_size, self.embedding.vocab_multiple
    self.num_types = self.embedding.num_types
    self.vectors = param(init, (n, d_model), ('extra', 'embed'), rngs, kind='vector')

  @property
  def input(self) -> Input:
    return self.embedding.input

  def __call__(self, ids, tokens=None, *, types=None):
    """Returns the vectors of the global tokens and of `ids`, and their metadata, with the length n + length."""
    x, tokens = self.embedding(ids, tokens, types=types)
    first = broadcast(self.vectors[...], (len(x), self.num_extra, x.shape[-1]), x.dtype)
    return jnp.concatenate([first, x], axis=1), self._extended(tokens)

  def attend(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest vocab']:
    return self.embedding.attend(x)

  def _extended(self, tokens: Tokens) -> Tokens:
    """Returns the metadata of a row with global tokens before it."""
    one_segment = tokens.segments is None or tokens.right_padded
    if tokens.layout is not RowLayout.CONTIGUOUS or not one_segment or tokens.encoded is not None:
      raise UserError(
        'GlobalTokens needs rows of one document, but these rows hold several: set the `packing` of the task to '
        '@FullRows, or use a task with one example per row'
      )
    if 'global' in tokens.marks:
      raise UserError("the task sets the mark 'global', which GlobalTokens sets: use another name")
    length, segments = tokens.positions.shape[1], tokens.segments
    if segments is not None:
      # Rows of padding only, which fill up a batch, stay padding.
      first = jnp.broadcast_to(segments[:, :1], (len(segments), self.num_extra))
      segments = jnp.concatenate([first, segments], axis=1)
    marks = {
      name: jnp.pad(mark, ((0, 0), (self.num_extra, 0))) for name, mark in tokens.marks.items()
    }
    row = Tokens.row(self.num_extra + length, segments=segments, right_padded=tokens.right_padded)
    marks['global'] = row.positions < self.num_extra
    return dataclasses.replace(row, marks=marks, num_extra=self.num_extra)
