"""The vision encoder (ViT, https://arxiv.org/abs/2010.11929): image patches as tokens."""

from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers import LearnedGrid, PatchEmbedding, PositionEncoding, dropout, named_key
from t2x.models.bodies import Encoder
from t2x.models.classifiers import Classifier, first_token
from t2x.models.interfaces import Body, ClassHead, Embedder, Output
from t2x.models.spec import ModelSpec
from t2x.ranges import Size, TunableRate


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

  def __init__(
    self,
    *,
    d_model: Size,
    embedding: Callable[..., Embedder] = PatchEmbedding,
    positions: Callable[..., PositionEncoding] = LearnedGrid,
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
    self.head = head and head(self.body.output_dim, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    """Facts about the model."""
    return ModelSpec(
      inputs='images',
      outputs=frozenset({'vectors' if self.head is None else 'class logits'}),
      patterns=tuple(self.body.patterns),
      num_classes=None if self.head is None else self.head.num_classes,
    )

  def hidden(
    self,
    images: Float[Array, 'batch height width channels'],
    *,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Hidden vectors [batch, tokens, output_dim] after the last layer, class token first; `record` names
    intermediate arrays."""
    x, tokens = self.embedding(images)
    if tokens.grid is None or len(tokens.grid) != 2:
      raise UserError(
        f'VisionTransformer.positions needs a grid of rows and columns, but '
        f'@{type(self.embedding).__name__} returns tokens with the grid {tokens.grid}'
      )
    x = self.positions.embed(x, tokens)
    x = dropout(x, self.input_dropout, named_key(key, 'input_dropout'))
    return self.body(x, tokens=tokens, key=named_key(key, 'body'), record=record)

  def __call__(
    self, images: Float[Array, 'batch height width channels'], *, key: Array | None = None
  ) -> Output:
    """Class logits [batch, classes], or pooled vectors [batch, output_dim] without a head."""
    out = self.hidden(images, key=key)
    x = self.pool(out.x)
    if self.head is not None:
      x = self.head(x, named_key(key, 'head'))
    return Output(x, None, out.aux)
