"""Vision Transformer (ViT, https://arxiv.org/abs/2010.11929): an encoder over image patches."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size, TunableRate
from t2x.layers import Embedder, LearnedGrid, PatchEmbedding, PositionEncoding, dropout, named_key
from t2x.models.bodies import Encoder
from t2x.models.classifiers import Classifier
from t2x.models.interfaces import Body, ClassHead, Model, ModelSide, Output, Pooling
from t2x.models.pooling import first_token
from t2x.models.spec import ModelSpec

__all__ = ['VisionTransformer']


class ImageEncoder(nnx.Module):
  """Base class of models that encode the tokens of an image.

  Args:
    d_model: width of the residual stream.
    embedding: builds the patch embedding, with or without a class token. The kind of its input is the name of the
      model's input.
    positions: builds the position encoding of the patch grid, which is interpolated for image sizes other
      than the one trained on. `NoPositions` for tokens without a grid, whose positions are those of the body.
    body: builds the encoder.
    input_dropout: dropout rate on the embedded patches.
  """

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., Embedder] = PatchEmbedding,
    positions: Callable[..., PositionEncoding] = LearnedGrid,
    body: Callable[..., Body] = Encoder,
    input_dropout: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.positions = positions(d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    self.input_dropout = input_dropout

  def hidden(
    self,
    images: Float[Array, 'batch *image'],
    *,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Returns hidden vectors [batch, tokens, output_dim] of the last layer, with the class token first.

    Args:
      images: pixels [batch, height, width, channels], or other inputs of the embedding, such as frames of audio.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
      record: names of the intermediate arrays to return.
    """
    x, tokens = self.embedding(images)
    x = self.positions.embed(x, tokens)
    x = dropout(x, self.input_dropout, named_key(key, 'input_dropout'))
    return self.body(x, tokens=tokens, key=named_key(key, 'body'), record=record)


class VisionTransformer(ImageEncoder):
  """Computes class logits, or pooled vectors, of images, or of other inputs of an embedder, such as recordings.

  Args:
    pool: builds the pooling: `first_token` (the class token), `mean_tokens` or `AttentionPool`.
    head: builds the classifier; None: the model returns pooled vectors.
    settings: those of `ImageEncoder`.
  """

  implements = (Model,)

  def __init__(
    self,
    *,
    pool: Callable[..., Pooling] = first_token,
    head: Callable[..., ClassHead] | None = Classifier,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(rngs=rngs, **settings)
    self.pool = pool(self.body.output_dim, rngs=rngs)
    self.head = head and head(self.body.output_dim, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={self.embedding.input.kind: self.embedding.input},
      outputs=frozenset({'vectors' if self.head is None else 'class logits'}),
      patterns=tuple(self.body.patterns),
      num_classes=None if self.head is None else self.head.num_classes,
    )

  @property
  def sides(self) -> dict[str, ModelSide]:
    """The body, with the name ''."""
    return {'': ModelSide(self.body, self.embedding, (self.positions,))}

  def class_logits(self, x: Float[Array, 'batch length width']) -> Float[Array, 'batch classes']:
    """Returns the class logits of hidden vectors; of a model with a head."""
    if self.head is None:
      raise TypeError('the model has no head')
    return self.head(self.pool(x))

  def __call__(self, images, *, key=None, record=frozenset()):
    """Returns class logits [batch, classes], or pooled vectors [batch, output_dim] without a head; see `hidden`."""
    out = self.hidden(images, key=key, record=record)
    x = self.pool(out.x, None, named_key(key, 'pool'))
    if self.head is not None:
      x = self.head(x, named_key(key, 'head'))
    return Output(x, None, out.aux, out.recorded)
