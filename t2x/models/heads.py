"""What the hidden vectors are turned into: logits over a vocabulary or over classes.

A head over the vocabulary is built as `head(d_model, vocab_size, rngs=rngs)` and called with the
hidden vectors and the token embedding, which a tied head reads.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.layers import (
  Initializer,
  LayerNorm,
  Linear,
  Norm,
  dropout,
  gelu_exact,
  named_key,
  normal,
  param,
  zeros,
)
from t2x.layers.embeddings import float32_logits
from t2x.models.interfaces import ClassHead, TokenHead
from t2x.ranges import Size, TunableRate

__all__ = [
  'Classifier',
  'LMHead',
  'MaskedLMHead',
  'PooledClassifier',
  'Pooler',
  'SequenceClassifier',
  'TiedHead',
  'TokenClassifier',
  'first_token',
  'last_token',
  'mean_tokens',
]


class TiedHead(nnx.Module):
  """Logits by the token embedding's own table (https://arxiv.org/abs/1608.05859).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias by token.
    scaled: divides the hidden vectors by sqrt(d_model) first (T5 1.0).
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    use_bias: bool = False,
    scaled: bool = False,
    rngs: nnx.Rngs,
  ):
    self.scale = d_model**-0.5 if scaled else 1.0
    self.bias = param(zeros(), (vocab_size,), ('vocab',), rngs) if use_bias else None

  def __call__(self, x: Float[Array, '... d_model'], embedding: Any) -> Float[Array, '... vocab']:
    logits = embedding.attend(x * self.scale)
    return logits if self.bias is None else logits + self.bias[...].astype(logits.dtype)


class LMHead(nnx.Module):
  """Logits by a projection of its own, in float32 as those of `TiedHead`."""

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    use_bias: bool = False,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.out = Linear(
      (d_model,), (vocab_size,), ('embed', 'vocab'), init=init, use_bias=use_bias, rngs=rngs
    )

  def __call__(self, x: Float[Array, '... d_model'], embedding: Any) -> Float[Array, '... vocab']:
    logits = float32_logits(x, self.out.kernel[...].astype(x.dtype).T)
    return logits if self.out.bias is None else logits + self.out.bias[...].astype(logits.dtype)


class MaskedLMHead(nnx.Module):
  """BERT's: projection, activation, norm, then the embedding's table and a bias
  (https://arxiv.org/abs/1810.04805).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    embedding_dim: width of the embedding's table, which the projection leads to; None: d_model.
    activation: elementwise function.
    norm: builds the norm.
    init: initialiser of the projection.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    embedding_dim: Size | None = None,
    activation: Callable[[Array], Array] = gelu_exact,
    norm: Callable[..., Norm] = LayerNorm,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    width = embedding_dim or d_model
    self.activation = activation
    self.transform = Linear((d_model,), (width,), ('embed', None), init=init, rngs=rngs)
    self.norm = norm(width, rngs=rngs)
    self.bias = param(zeros(), (vocab_size,), ('vocab',), rngs)

  def __call__(self, x: Float[Array, '... d_model'], embedding: Any) -> Float[Array, '... vocab']:
    x = self.norm(self.activation(self.transform(x)))
    logits = embedding.attend(x)
    return logits + self.bias[...].astype(logits.dtype)


class Pooler(nnx.Module):
  """BERT's vector for a whole sequence: tanh of a projection of the first token."""

  def __init__(
    self, d_model: int, vocab_size: int, *, init: Initializer = normal(0.02), rngs: nnx.Rngs
  ):
    self.projection = Linear((d_model,), (d_model,), ('embed', None), init=init, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], embedding: Any
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


class SequenceClassifier(nnx.Module):
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
    language_head: Callable[..., TokenHead] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.pool = pool
    self.classifier = classifier(d_model, rngs=rngs)
    self.language_head = language_head(d_model, vocab_size, rngs=rngs)

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

  def __call__(self, x: Float[Array, '... d_model'], embedding: Any) -> Float[Array, '... vocab']:
    """Logits over the vocabulary."""
    return self.language_head(x, embedding)


class TokenClassifier(nnx.Module):
  """Class logits for each token, in the place of a head over the vocabulary: tags of words, and with
  two classes the start and the end of a span (https://arxiv.org/abs/1810.04805). Dropout before it
  is the body's `final_dropout`.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    num_classes: Size,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.num_classes = num_classes
    self.out = Linear((d_model,), (num_classes,), ('embed', 'classes'), init=init, rngs=rngs)

  def __call__(self, x: Float[Array, '... d_model'], embedding: Any) -> Float[Array, '... classes']:
    return self.out(x)
