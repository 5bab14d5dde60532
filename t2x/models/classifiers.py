"""Heads that turn hidden vectors into one vector for each row, or into class logits."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.layers import Initializer, Linear, dropout, named_key, normal, zeros
from t2x.models.heads import LogitHead, TiedHead
from t2x.models.interfaces import ClassHead, Head, TextEmbedding
from t2x.models.spec import OutputKind
from t2x.ranges import Size, TunableRate


class Pooler(nnx.Module):
  """BERT's vector for a whole sequence: tanh of a projection of the first token."""

  def __init__(
    self, d_model: int, vocab_size: int, *, init: Initializer = normal(0.02), rngs: nnx.Rngs
  ):
    self.projection = Linear((d_model,), (d_model,), ('embed', None), init=init, rngs=rngs)

  @property
  def outputs(self) -> frozenset[OutputKind]:
    """A vector for each row."""
    return frozenset({'vectors'})

  @property
  def num_classes(self) -> int | None:
    """None: vectors have no classes."""
    return None

  def __call__(
    self, x: Float[Array, 'batch length d_model'], embedding: TextEmbedding
  ) -> Float[Array, 'batch d_model']:
    return jnp.tanh(self.projection(x[:, 0]))


# What makes one vector of a row, given its hidden vectors and, where rows have padding, the segments.
Segments = Int[Array, 'batch length'] | None


def first_token(
  x: Float[Array, 'batch length d_model'], segments: Segments = None
) -> Float[Array, 'batch d_model']:
  """The class token's vector."""
  return x[:, 0]


def last_token(
  x: Float[Array, 'batch length d_model'], segments: Segments = None
) -> Float[Array, 'batch d_model']:
  """The vector of the last token before the padding: what a causal body has seen everything at."""
  if segments is None:
    return x[:, -1]
  places = jnp.arange(x.shape[1])
  last = jnp.where(segments != 0, places, 0).max(axis=1)
  return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]


def mean_tokens(
  x: Float[Array, 'batch length d_model'], segments: Segments = None
) -> Float[Array, 'batch d_model']:
  """The average over all tokens but padding (Sentence-BERT, https://arxiv.org/abs/1908.10084)."""
  if segments is None:
    return x.mean(axis=1)
  present = (segments != 0).astype(x.dtype)
  total = jnp.einsum('bld,bl->bd', x, present, preferred_element_type=jnp.float32)
  # Counted as integers: bfloat16 cannot count beyond 256.
  count = jnp.maximum(jnp.count_nonzero(segments, axis=1), 1)
  return (total / count[:, None]).astype(x.dtype)


class Classifier(nnx.Module):
  """A linear layer from a pooled vector to class logits.

  Args:
    d_model: width of the pooled vector.
    num_classes: number of logits.
    dropout_rate: rate on the pooled vector.
    init: initialiser of the projection.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_classes: Size,
    dropout_rate: TunableRate = 0.0,
    init: Initializer = zeros(),
    rngs: nnx.Rngs,
  ):
    self.num_classes = num_classes
    self.dropout_rate = dropout_rate
    self.out = Linear((d_model,), (num_classes,), ('embed', 'classes'), init=init, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch d_model'], key: Array | None = None
  ) -> Float[Array, 'batch classes']:
    return self.out(dropout(x, self.dropout_rate, named_key(key, 'dropout')))


class PooledClassifier(Classifier):
  """BERT's: a projection and tanh (the pooler), dropout, then the linear layer
  (https://arxiv.org/abs/1810.04805). RoBERTa's also drops out before the projection.

  Args:
    d_model: width of the pooled vector.
    num_classes: number of logits.
    dropout_rate: rate behind the tanh.
    input_dropout: rate before the projection.
    init: initialiser of both projections.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_classes: Size,
    dropout_rate: TunableRate = 0.0,
    input_dropout: TunableRate = 0.0,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model, num_classes=num_classes, dropout_rate=dropout_rate, init=init, rngs=rngs
    )
    self.input_dropout = input_dropout
    self.transform = Linear((d_model,), (d_model,), ('embed', None), init=init, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch d_model'], key: Array | None = None
  ) -> Float[Array, 'batch classes']:
    x = dropout(x, self.input_dropout, named_key(key, 'input_dropout'))
    return super().__call__(jnp.tanh(self.transform(x)), key)


class SequenceClassifier(LogitHead):
  """One vector of a row and its class, in the place of a head over the vocabulary.

  From the class token as BERT does (https://arxiv.org/abs/1810.04805), from the mean of all tokens,
  or with a causal body from the last one as GPT-1 does (Radford et al. 2018).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    pool: makes the vector: `first_token`, `mean_tokens` or `last_token`.
    classifier: builds what turns it into class logits: `Classifier` or `PooledClassifier`.
    language_head: builds the head over the vocabulary, for objectives that have a part of language
      modelling. The default has no parameters.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    pool: Callable[..., Array] = first_token,
    classifier: Callable[..., ClassHead] = Classifier,
    language_head: Callable[..., Head] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.pool = pool
    self.classifier = classifier(d_model, rngs=rngs)
    self.language_head = language_head(d_model, vocab_size, rngs=rngs)

  @property
  def outputs(self) -> frozenset[OutputKind]:
    """Class logits of rows, beside the outputs of the language head."""
    return frozenset({'class logits', *self.language_head.outputs})

  @property
  def num_classes(self) -> int:
    """Number of class logits."""
    return self.classifier.num_classes

  def classify(
    self,
    x: Float[Array, 'batch length d_model'],
    segments: Segments = None,
    key: Array | None = None,
  ) -> Float[Array, 'batch classes']:
    """Class logits; tokens of segment 0 are padding."""
    return self.classifier(self.pool(x, segments), named_key(key, 'classifier'))

  def logits(self, x, embedding):
    """Logits over the vocabulary."""
    return self.language_head.logits(x, embedding)

  def cross_entropy(self, x, embedding, labels, weights, **settings):
    """That of the language head."""
    return self.language_head.cross_entropy(x, embedding, labels, weights, **settings)


class TokenClassifier(LogitHead):
  """Class logits for each token, in the place of a head over the vocabulary: tags of words, and with
  two classes the start and the end of a span (https://arxiv.org/abs/1810.04805). Dropout before it
  is the body's `final_dropout`.
  """

  axis = None

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    num_classes: Size,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.out = Linear((d_model,), (num_classes,), ('embed', 'classes'), init=init, rngs=rngs)

  @property
  def outputs(self) -> frozenset[OutputKind]:
    """Class logits of tokens."""
    return frozenset({'classes per token'})

  @property
  def num_classes(self) -> int:
    """Number of class logits."""
    return self.out.kernel.shape[-1]

  def logits(self, x, embedding):
    """Class logits for `x`."""
    return self.out(x)
