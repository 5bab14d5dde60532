"""A discriminator of replaced tokens with the generator that replaces them (ELECTRA: Clark et al. 2020,
https://arxiv.org/abs/2003.10555, section 2)."""

from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import (
  Initializer,
  Linear,
  TextEmbedding,
  TokenEmbedding,
  Tokens,
  gelu_exact,
  named_key,
  normal,
)
from t2x.layers.building import building
from t2x.layers.dtypes import Dtypes
from t2x.models.bodies import Encoder
from t2x.models.heads import MaskedLMHead
from t2x.models.interfaces import Head, Output, OutputHead, TextModel
from t2x.models.language_model import LogitModel, limited
from t2x.models.spec import ModelSpec

__all__ = ['ReplacedTokenHead', 'WithGenerator']


class ReplacedTokenHead(nnx.Module):
  """ELECTRA's head: a projection, an activation, then one logit per token, positive if the token was replaced.

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens, which has no effect.
    activation: elementwise function.
    init: initialiser of both projections.
  """

  implements = (OutputHead,)
  outputs: frozenset[str] = frozenset({'replaced tokens'})
  num_classes: int | None = None

  def __init__(
    self,
    d_model: int,
    vocab_size: int,
    *,
    activation: Callable[[Array], Array] = gelu_exact,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.activation = activation
    self.transform = Linear((d_model,), (d_model,), ('embed', 'embed'), init=init, rngs=rngs)
    self.out = Linear((d_model,), (1,), ('embed', None), init=init, kind='table', rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], embedding: TextEmbedding
  ) -> Float[Array, 'batch length']:
    return self.out(self.activation(self.transform(x)))[..., 0].astype(Dtypes.logits)


class WithGenerator(LogitModel):
  """Predicts masked tokens with a generator, and with its `body`, the discriminator, which tokens of
  a row were replaced.

  Both bodies read the same tables of tokens, types and positions and the same input norm, as published, which each
  projects to its width. `hidden`, `head` and the logits are those of the generator; `detect` runs the discriminator. A
  `LanguageModel` can start from `embedding` and `body`, whose parameters have the same names there (`InitFrom`).

  Args:
    d_model: width of the discriminator.
    generator_dim: width of the generator, 1/4 to 1/2 of d_model as published.
    embedding_dim: width of the embedding, equal to the `input_dim` of bodies of another width; None: d_model.
    embedding: builds the embedding of both bodies.
    body: builds the body of the discriminator.
    generator: builds the body of the generator, without positions, norm and dropout of the input, which are those of
      `body`.
    head: builds the head of the generator.
    detector: builds the head of the discriminator.

  Raises:
    UserError: the generator has positions, a norm or dropout of its input, or the embedding prepends tokens.
  """

  implements = (TextModel,)

  def __init__(
    self,
    *,
    d_model: Size,
    generator_dim: Size,
    embedding_dim: Size | None = None,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    body: Callable[..., Encoder] = Encoder,
    generator: Callable[..., Encoder] = Encoder,
    head: Callable[..., Head] = MaskedLMHead,
    detector: Callable[..., OutputHead] = ReplacedTokenHead,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(embedding_dim or d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    self.generator = own = generator(generator_dim, rngs=rngs)
    if own.input_norm is not None or own.input_dropout != 0.0 or 'embed' in own.encoding.hooks:
      raise UserError(
        'WithGenerator.generator gets tokens with the positions, the norm and the dropout of WithGenerator.body: set '
        'generator/Encoder.encoding = @NoPositions, input_norm = None and input_dropout = 0.0'
      )
    if self.embedding.num_extra:
      raise UserError(
        f'WithGenerator.embedding = @{type(self.embedding).__name__} prepends tokens, which are neither masked nor '
        'replaced: use another embedding'
      )
    vocab_size = self.embedding.vocab_size
    with building(vocab_multiple=self.embedding.vocab_multiple):
      self.head = head(own.output_dim, vocab_size, rngs=rngs)
      self.detector = detector(self.body.output_dim, vocab_size, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={'tokens': limited(self.embedding, self.body)},
      outputs=self.head.outputs | self.detector.outputs,
      patterns=(*self.generator.patterns, *self.body.patterns),
      num_types=self.embedding.num_types,
    )

  @property
  def output_embedding(self) -> TextEmbedding:
    return self.embedding

  def hidden(
    self,
    ids: Int[Array, 'batch length'],
    *,
    tokens: Tokens | None = None,
    types: Int[Array, 'batch length'] | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Returns hidden vectors [batch, length, generator_dim] of the generator; see `LanguageModel.hidden`."""
    x, tokens = self.embedding(ids, tokens, types=types)
    own = named_key(key, 'generator')
    x = self.body.positioned(x, tokens, own)
    return self.generator(x, tokens=tokens, key=own, record=record)

  def detect(
    self,
    ids: Int[Array, 'batch length'],
    *,
    tokens: Tokens | None = None,
    types: Int[Array, 'batch length'] | None = None,
    key: Array | None = None,
  ) -> Output:
    """Returns the logit of each token of the discriminator, float32 [batch, length]; see `LanguageModel.hidden`."""
    x, tokens = self.embedding(ids, tokens, types=types)
    out = self.body(x, tokens=tokens, key=named_key(key, 'body'))
    return Output(self.detector(out.x, self.embedding), None, out.aux)
