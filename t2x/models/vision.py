"""The vision encoder (ViT, https://arxiv.org/abs/2010.11929): image patches as tokens."""

import math
from collections.abc import Callable
from typing import ClassVar

from flax import nnx
from jaxtyping import Array, Float

from t2x.layers import LearnedGrid, PatchEmbedding, Pattern, Tokens, dropout, named_key
from t2x.models.bodies import Encoder
from t2x.models.heads import Classifier, first_token
from t2x.models.interfaces import Body, ClassHead, GridPositions, ImageEmbedding, Inputs, Output
from t2x.ranges import Size, TunableRate

__all__ = ['VisionTransformer']


class VisionTransformer(nnx.Module):
  """Images -> class logits.

  Args:
    d_model: width of the residual stream.
    embedding: builds the patch embedding, with or without a class token.
    positions: builds the positions of the grid; another image size than the trained one
      interpolates them.
    body: builds the encoder.
    pool: `first_token` (the class token) or `mean_tokens`.
    head: builds the classifier; None: the pooled vector is what the model gives.
    input_dropout: rate on the embedded patches.
  """

  inputs: ClassVar[Inputs] = 'images'

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., ImageEmbedding] = PatchEmbedding,
    positions: Callable[..., GridPositions] = LearnedGrid,
    body: Callable[..., Body] = Encoder,
    pool: Callable[[Array], Array] = first_token,
    head: Callable[..., ClassHead] | None = Classifier,
    input_dropout: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.positions = positions(d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    self.pool = pool
    self.input_dropout = input_dropout
    self.head = head and head(d_model, rngs=rngs)

  @property
  def num_classes(self) -> int:
    """Number of class logits; 0 without a head."""
    return 0 if self.head is None else self.head.num_classes

  @property
  def patterns(self) -> list[Pattern]:
    """The attention patterns of the body's blocks."""
    return self.body.patterns

  def hidden(
    self, images: Float[Array, 'batch height width channels'], *, key: Array | None = None
  ) -> Output:
    """Hidden vectors [batch, tokens, d_model] after the last layer, class token first."""
    x, grid = self.embedding(images)
    length = x.shape[1]
    tokens = Tokens.row(length, grid=grid, num_extra=length - math.prod(grid))
    x = self.positions.embed_grid(x, grid)
    x = dropout(x, self.input_dropout, named_key(key, 'input_dropout'))
    return self.body(x, tokens=tokens, key=named_key(key, 'body'))

  def __call__(
    self, images: Float[Array, 'batch height width channels'], *, key: Array | None = None
  ) -> Output:
    """Class logits [batch, classes], or pooled vectors [batch, d_model] without a head."""
    out = self.hidden(images, key=key)
    x = self.pool(out.x)
    if self.head is not None:
      x = self.head(x, named_key(key, 'head'))
    return Output(x, None, out.aux)
