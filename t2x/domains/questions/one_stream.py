"""One encoder over several inputs, such as a text and a picture (ViLT, https://arxiv.org/abs/2102.03334)."""

from collections.abc import Callable, Mapping
from typing import Annotated

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from t2x.base.ranges import NonEmpty, Size, TunableRate
from t2x.layers import (
  Embedder,
  Initializer,
  LayerNorm,
  Linear,
  NoPositions,
  Norm,
  PositionEncoding,
  Tokens,
  dropout,
  gelu_exact,
  named_key,
  normal,
  param,
)
from t2x.layers.composites import set_part
from t2x.layers.norms import norm_over
from t2x.layers.products import broadcast
from t2x.models.bodies import Encoder
from t2x.models.classifiers import Classifier
from t2x.models.interfaces import Body, ClassHead, Model, Output, Pooling
from t2x.models.pooling import first_token
from t2x.models.spec import ModelSpec

__all__ = ['AnswerClassifier', 'EmbeddedInput', 'OneStream']


class EmbeddedInput(nnx.Module):
  """Embeds an input with positions of its own.

  Args:
    d_model: width of the residual stream.
    embedding: builds the embedder of the input.
    positions: builds the position encoding, which adds vectors to the tokens.
    norm: builds a norm after the positions, as BERT's embedding of text has. None: no norm.
    input_dropout: dropout rate after the norm.
  """

  def __init__(
    self,
    d_model: int,
    *,
    embedding: Callable[..., Embedder],
    positions: Callable[..., PositionEncoding] = NoPositions,
    norm: Callable[..., Norm] | None = None,
    input_dropout: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.positions = positions(d_model, rngs=rngs)
    self.norm = norm and norm(d_model, rngs=rngs)
    self.input_dropout = input_dropout

  def __call__(
    self, inputs: Shaped[Array, 'batch *shape'], tokens: Tokens | None, key: Array | None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors and their metadata."""
    x, tokens = self.embedding(inputs, tokens)
    x = self.positions.embed(x, tokens)
    x = x if self.norm is None else self.norm(x)
    return dropout(x, self.input_dropout, key), tokens


class OneStream(nnx.Module):
  """Computes class logits of several inputs, whose tokens one encoder processes as one sequence; a learned vector is
  added to all tokens of an input.

  Args:
    d_model: width of the residual stream.
    inputs: builders of the embedded inputs by name, in the order of their tokens.
    body: builds the encoder.
    pool: builds the pooling, such as `first_token`, that of the first input.
    head: builds the classifier.
    init: initialiser of the vectors of the inputs.
  """

  implements = (Model,)

  def __init__(
    self,
    *,
    d_model: Size,
    inputs: Annotated[Mapping[str, Callable[..., EmbeddedInput]], NonEmpty],
    body: Callable[..., Body] = Encoder,
    pool: Callable[..., Pooling] = first_token,
    head: Callable[..., ClassHead] = Classifier,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.names = tuple(inputs)
    for name, build in inputs.items():
      set_part(self, name, build(d_model, rngs=rngs))
    self.types = param(init, (len(inputs), d_model), ('types', 'embed'), rngs, kind='table')
    self.body = body(d_model, rngs=rngs)
    self.pool = pool(self.body.output_dim, rngs=rngs)
    self.head = head(self.body.output_dim, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={name: vars(self)[name].embedding.input for name in self.names},
      outputs=frozenset({'class logits'}),
      patterns=tuple(self.body.patterns),
      num_classes=self.head.num_classes,
    )

  def hidden(
    self,
    *inputs: Shaped[Array, 'batch ...'],
    tokens: Mapping[str, Tokens] | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Returns hidden vectors [batch, tokens, output_dim] of all inputs, one after another.

    Args:
      inputs: the inputs in their order.
      tokens: metadata of the tokens of inputs by name; others are unpadded.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
      record: names of the intermediate arrays to return.
    """
    vectors, segments = [], []
    for number, (name, array) in enumerate(zip(self.names, inputs, strict=True)):
      part = vars(self)[name]
      x, own = part(array, (tokens or {}).get(name), named_key(key, name))
      vectors.append(x + broadcast(self.types[number], x.shape, x.dtype))
      segments.append(jnp.broadcast_to(own.row_segments, x.shape[:2]))
    x = jnp.concatenate(vectors, axis=1)
    row = Tokens.row(x.shape[1], segments=jnp.concatenate(segments, axis=1))
    return self.body(x, tokens=row, key=named_key(key, 'body'), record=record)

  def __call__(self, *inputs, tokens=None, key=None, record=frozenset()):
    """Returns class logits [batch, classes]; see `hidden`."""
    out = self.hidden(*inputs, tokens=tokens, key=key, record=record)
    segments = None if out.tokens is None else out.tokens.segments
    pooled = self.pool(out.x, segments, named_key(key, 'pool'))
    return Output(self.head(pooled, named_key(key, 'head')), None, out.aux, out.recorded)


class AnswerClassifier(nnx.Module):
  """ViLT's classifier of answers: BERT's pooler (a projection and tanh), a wider layer with a norm, and the logits.

  Args:
    d_model: width of the pooled vector.
    num_classes: number of logits.
    hidden_dim: width of the layer after the pooler. None: 2 d_model.
    norm: builds its norm.
    activation: elementwise function after the norm.
    dropout_rate: dropout rate after the activation.
    init: initialiser of all projections.
  """

  implements = (ClassHead,)

  def __init__(
    self,
    d_model: int,
    *,
    num_classes: Size,
    hidden_dim: Size | None = None,
    norm: Callable[..., Norm] = LayerNorm,
    activation: Callable[[Array], Array] = gelu_exact,
    dropout_rate: TunableRate = 0.0,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    width = hidden_dim or 2 * d_model
    self.num_classes, self.activation, self.dropout_rate = num_classes, activation, dropout_rate
    self.pooler = Linear((d_model,), (d_model,), ('embed', 'embed'), init=init, rngs=rngs)
    self.up = Linear((d_model,), (width,), ('embed', 'mlp'), init=init, rngs=rngs)
    self.norm = norm_over('mlp', norm, width, rngs)
    axes = ('mlp', 'classes')
    self.out = Linear((width,), (num_classes,), axes, init=init, kind='table', rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch *rest d_model'], key: Array | None = None
  ) -> Float[Array, 'batch *rest classes']:
    hidden = self.activation(self.norm(self.up(jnp.tanh(self.pooler(x)))))
    return self.out(dropout(hidden, self.dropout_rate, named_key(key, 'dropout')))
