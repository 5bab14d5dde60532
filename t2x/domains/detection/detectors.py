"""Detectors, which predict a set of boxes with classes: DETR (https://arxiv.org/abs/2005.12872) and YOLOS
(https://arxiv.org/abs/2106.00666)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.layers import (
  AddressPositions,
  Embedder,
  Initializer,
  LayerNorm,
  LearnedGrid,
  Linear,
  Norm,
  PatchEmbedding,
  PositionEncoding,
  SourceSequence,
  lecun_normal,
  named_key,
  xavier_uniform,
)
from t2x.layers.composites import recorded_by
from t2x.layers.parameters import Kind
from t2x.models.bodies import Encoder
from t2x.models.interfaces import Body, Model, Output
from t2x.models.spec import ModelSpec
from t2x.models.stack import by_layer
from t2x.models.vision import VisionTransformer

__all__ = ['DETR', 'YOLOS', 'BoxHead']


class BoxHead(nnx.Module):
  """Computes class logits and a box from the vector of each query: an MLP with ReLU for each.

  The last logit is that of the class of queries without an object. Boxes are centre, width and height (x, y, w, h) as
  shares of the image, each a sigmoid.

  Args:
    d_model: width of the vectors.
    num_classes: number of classes of objects.
    class_layers: number of linear layers of the class logits: 1 in DETR, 3 in YOLOS.
    box_layers: number of linear layers of the boxes.
    init: initialiser of all layers.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_classes: Size,
    class_layers: Size = 1,
    box_layers: Size = 3,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.num_classes = num_classes

    def layers(count: int, outputs: int, axis: str) -> nnx.List:
      hidden: tuple[str, int, Kind] = ('embed', d_model, 'matrix')
      last: tuple[str, int, Kind] = (axis, outputs, 'table')
      return nnx.List(
        Linear((d_model,), (size,), ('embed', name), init=init, kind=kind, rngs=rngs)
        for name, size, kind in [*[hidden] * (count - 1), last]
      )

    self.classes = layers(class_layers, num_classes + 1, 'classes')
    self.boxes = layers(box_layers, 4, 'coords')

  def __call__(
    self, x: Float[Array, '*rest d_model']
  ) -> tuple[Float[Array, '*rest classes'], Float[Array, '*rest 4']]:
    """Returns class logits and boxes."""
    return _perceptron(self.classes, x), jax.nn.sigmoid(_perceptron(self.boxes, x))

  def output(self, x: Float[Array, 'batch layers queries d_model'], out: Output) -> Output:
    """Returns the output of a detector.

    Args:
      x: vectors of the queries after each layer that learns, the last of which predicts.
      out: output of the body.
    """
    classes, boxes = self(x)
    heads = {'classes': classes, 'boxes': boxes}
    return Output(classes[:, -1], None, out.aux, out.recorded, heads=heads)


def _perceptron(layers: nnx.List, x: Array) -> Array:
  for layer in layers[:-1]:
    x = jax.nn.relu(layer(x))
  return layers[-1](x)


class YOLOS(VisionTransformer):
  """Vision transformer with learned detection tokens beside the patches, each of which predicts a box (You Only Look
  at One Sequence, https://arxiv.org/abs/2106.00666).

  Detection tokens are the last registers of the embedding: `PatchEmbedding.num_registers = %num_queries`. They come
  before the patches; as self-attention does not depend on the order, this equals the published order, and they include
  their position vectors. Only the last layer learns.

  Args:
    num_queries: number of detection tokens.
    embedding: builds the patch embedding.
    positions: builds the position encoding of the patch grid.
    head: builds the head of the detection tokens.

  Raises:
    UserError: the embedding has fewer tokens before the patches.
  """

  def __init__(
    self,
    *,
    d_model: Size,
    num_queries: Size,
    embedding: Callable[..., Embedder] = PatchEmbedding,
    positions: Callable[..., PositionEncoding] = LearnedGrid,
    body: Callable[..., Body] = Encoder,
    head: Callable[..., BoxHead] = BoxHead,
    input_dropout: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model=d_model,
      embedding=embedding,
      positions=positions,
      body=body,
      head=None,
      input_dropout=input_dropout,
      rngs=rngs,
    )
    if num_queries > self.embedding.num_extra:
      raise UserError(
        f'YOLOS.num_queries = {num_queries}, but @{type(self.embedding).__name__} has '
        f'{self.embedding.num_extra} tokens '
        'before the patches: set PatchEmbedding.num_registers = %num_queries'
      )
    self.num_queries = num_queries
    self.box_head = head(self.body.output_dim, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={self.embedding.input.kind: self.embedding.input},
      outputs=frozenset({'boxes'}),
      patterns=tuple(self.body.patterns),
      num_classes=self.box_head.num_classes,
    )

  def __call__(self, images, *, key=None, record=frozenset()):
    """Returns logits [batch, queries, classes + 1]; `Output.heads`: 'classes', 'boxes' [batch, 1, queries, ...]."""
    out = self.hidden(images, key=key, record=record)
    end = self.embedding.num_extra
    return self.box_head.output(out.x[:, None, end - self.num_queries : end], out)


class DETR(nnx.Module):
  """Detection Transformer (https://arxiv.org/abs/2005.12872): features of an image, an encoder, and a decoder whose
  tokens, the object queries, predict a box each after every layer.

  Object queries are zeros; only the positions that `decoder` adds to queries and keys distinguish them. As published:
  `@AddressPositions` with `@LearnedPositions`.

  Args:
    d_model: width of encoder and decoder.
    num_queries: number of object queries.
    backbone: builds a vision model without a head, whose features a linear layer projects to d_model.
    encoder: builds the encoder of the features.
    decoder: builds the body of the object queries, an `Encoder` whose blocks have `cross`, without a final norm.
    source_encoding: builds the position encoding of the features in the decoder's cross-attention.
    norm: builds the norm of the queries after each layer, which all layers share.
    head: builds the head of the queries.
    init: initialiser of the projection of the features.

  Raises:
    UserError: the backbone has a head or tokens before the grid, or the decoder has a final norm.
  """

  implements = (Model,)

  def __init__(
    self,
    *,
    d_model: Size,
    num_queries: Size,
    backbone: Callable[..., Model],
    encoder: Callable[..., Body] = Encoder,
    decoder: Callable[..., Body] = Encoder,
    source_encoding: Callable[..., PositionEncoding] = AddressPositions,
    norm: Callable[..., Norm] = LayerNorm,
    head: Callable[..., BoxHead] = BoxHead,
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.num_queries = num_queries
    features: Any = backbone(rngs=rngs)
    has_grid = isinstance(features, VisionTransformer) and not features.embedding.num_extra
    if not has_grid or features.head is not None:
      raise UserError(
        'DETR.backbone must compute features of a grid: use @VisionTransformer with head = None, without class token '
        'and registers'
      )
    self.backbone = features
    width = self.backbone.body.output_dim
    self.projection = Linear((width,), (d_model,), ('features', 'embed'), init=init, rngs=rngs)
    self.encoder = encoder(d_model, rngs=rngs)
    self.decoder = decoder(d_model, rngs=rngs)
    if isinstance(self.decoder, Encoder) and self.decoder.final_norm is not None:
      raise UserError(
        'DETR.decoder has a final norm, but DETR.norm is that of every layer: set final_norm of the decoder to None'
      )
    self.source_encoding = source_encoding(d_model, rngs=rngs)
    self.norm = norm(d_model, rngs=rngs)
    self.box_head = head(d_model, rngs=rngs)

  @property
  def embedding(self) -> Embedder:
    """The embedder of the images."""
    return self.backbone.embedding

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs=self.backbone.spec.inputs,
      outputs=frozenset({'boxes'}),
      patterns=tuple(self.decoder.patterns),
      num_classes=self.box_head.num_classes,
    )

  def __call__(
    self,
    images: Float[Array, 'batch height width channels'],
    *,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Returns class logits [batch, queries, classes + 1] and, in `Output.heads`, 'classes' and 'boxes'
    [batch, layers, queries, ...].

    Args:
      images: pixels.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
      record: names of the intermediate arrays to return.
    """
    features = self.backbone.hidden(images, key=named_key(key, 'backbone'))
    tokens, x = features.tokens, self.projection(features.x)
    encoded = self.encoder(x, tokens=tokens, key=named_key(key, 'encoder'), record=record)
    assert tokens is not None
    queries = jnp.zeros((len(x), self.num_queries, x.shape[-1]), x.dtype)
    decoded = self.decoder(
      queries,
      SourceSequence(encoded.x, tokens, self.source_encoding),
      key=named_key(key, 'decoder'),
      record=record | {'hidden'},
    )
    hidden = self.norm(by_layer(decoded.recorded, 'hidden'))
    recorded = recorded_by({'encoder': encoded, 'decoder': decoded}) if record else {}
    out = Output(decoded.x, None, features.aux + encoded.aux + decoded.aux, recorded)
    return self.box_head.output(hidden, out)
