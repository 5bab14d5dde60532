"""What the hidden vectors are turned into: logits over a vocabulary or over classes.

A head over the vocabulary is built as `head(d_model, vocab_size, rngs=rngs)` and called with the
hidden vectors and the token embedding, which a tied head reads.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.hyperparameters import Tunable
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
from t2x.layers.constraints import constrain, num_parts
from t2x.layers.embeddings import float32_logits
from t2x.models.interfaces import ClassHead, Head, OutputKind, TextEmbedding
from t2x.models.losses import Sums, classification_sums
from t2x.ranges import Size, TunableRate

__all__ = [
  'Classifier',
  'LMHead',
  'LogitHead',
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


class LogitHead(nnx.Module):
  """Base class of heads that compute logits for each token; a subclass defines `logits`.

  Attributes:
    chunk: None: `cross_entropy` computes all logits at once. A number: it computes the logits of so
      many tokens of each row at a time, once for the loss and once more for the gradient, so that only
      [batch, chunk, vocab] of them are in memory. Where rows are split over devices, each device takes
      `chunk` tokens of its part.
  """

  chunk: int | None = None
  # The logical axis of the logits.
  axis: str | None = 'vocab'

  @property
  def outputs(self) -> frozenset[OutputKind]:
    """Logits over the vocabulary."""
    return frozenset({'token logits'})

  @property
  def num_classes(self) -> int | None:
    """None: the logits are those of tokens."""
    return None

  def logits(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """Logits for `x`."""
    raise NotImplementedError(f'{type(self).__name__} has no logits')

  def __call__(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """As `logits`."""
    return self.logits(x, embedding)

  def cross_entropy(
    self,
    x: Float[Array, 'batch length d_model'],
    embedding: TextEmbedding,
    labels: Int[Array, 'batch length'],
    weights: Float[Array, 'batch length'],
    *,
    smoothing: Tunable = 0.0,
    z_loss: Tunable = 0.0,
    axes: Sequence[str | None] = ('batch', 'length'),
  ) -> Sums:
    """Weighted sums of the loss and of correct predictions; see `Head` and `classification_sums`."""

    def sums(head, embedding, x, labels, weights):
      logits = constrain(head.logits(x, embedding), *axes, self.axis)
      return classification_sums(logits, labels, weights, smoothing, z_loss)

    if self.chunk is None:
      return sums(self, embedding, x, labels, weights)
    parts = 1 if axes[1] is None else num_parts(axes[1])
    return _in_chunks(sums, self, embedding, (x, labels, weights), self.chunk, parts)


def _in_chunks(
  sums: Callable[..., Sums],
  head: LogitHead,
  embedding: TextEmbedding,
  arrays: Sequence[Array],
  chunk: int,
  parts: int,
) -> Sums:
  """`sums` over chunks of arrays [batch, length, ...], of which `parts` parts are on different devices.

  The parameters enter the loop in float32, so that their gradients are accumulated in float32 and rounded
  once.
  """
  batch, length = arrays[0].shape[:2]
  size = length // parts
  chunk = min(chunk, size)
  padding = -size % chunk

  def chunked(array):
    rest = array.shape[2:]
    array = array.reshape(batch, parts, size, *rest)
    array = jnp.pad(array, ((0, 0), (0, 0), (0, padding), *[(0, 0)] * len(rest)))
    array = array.reshape(batch, parts, -1, chunk, *rest)
    return jnp.moveaxis(array, 2, 0).reshape(-1, batch, parts * chunk, *rest)

  parameters, structure = jax.tree.flatten((head, embedding))
  wide = [_widened(leaf) for leaf in parameters]

  @jax.checkpoint
  def one(arrays):
    narrow = [leaf.astype(was.dtype) for leaf, was in zip(wide, parameters, strict=True)]
    return sums(*jax.tree.unflatten(structure, narrow), *arrays)

  by_chunk = jax.lax.map(one, tuple(map(chunked, arrays)))
  return jax.tree.map(lambda array: array.sum(axis=0), by_chunk)


def _widened(parameter: Array) -> Array:
  return parameter.astype(jnp.float32) if parameter.dtype == jnp.bfloat16 else parameter


class TiedHead(LogitHead):
  """Logits by the token embedding's own table (https://arxiv.org/abs/1608.05859).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias by token.
    scaled: divides the hidden vectors by sqrt(d_model) first (T5 1.0).
    chunk: tokens of each row whose logits are computed at a time in the loss; see `LogitHead`.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    use_bias: bool = False,
    scaled: bool = False,
    chunk: Size | None = None,
    rngs: nnx.Rngs,
  ):
    self.chunk = chunk
    self.scale = d_model**-0.5 if scaled else 1.0
    self.bias = param(zeros(), (vocab_size,), ('vocab',), rngs) if use_bias else None

  def logits(self, x, embedding):
    """Logits by the embedding's table."""
    logits = embedding.attend(x * self.scale)
    return logits if self.bias is None else logits + self.bias[...].astype(logits.dtype)


class LMHead(LogitHead):
  """Logits by a projection of its own, in float32 as those of `TiedHead`.

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias by token.
    init: initialiser of the projection.
    chunk: tokens of each row whose logits are computed at a time in the loss; see `LogitHead`.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    use_bias: bool = False,
    init: Initializer = normal(0.02),
    chunk: Size | None = None,
    rngs: nnx.Rngs,
  ):
    self.chunk = chunk
    self.out = Linear(
      (d_model,), (vocab_size,), ('embed', 'vocab'), init=init, use_bias=use_bias, rngs=rngs
    )

  def logits(self, x, embedding):
    """Logits by the head's own projection."""
    logits = float32_logits(x, self.out.kernel[...].astype(x.dtype).T)
    return logits if self.out.bias is None else logits + self.out.bias[...].astype(logits.dtype)


class MaskedLMHead(LogitHead):
  """BERT's: projection, activation, norm, then the embedding's table and a bias
  (https://arxiv.org/abs/1810.04805).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    embedding_dim: width of the embedding's table, which the projection leads to; None: d_model.
    activation: elementwise function.
    norm: builds the norm.
    init: initialiser of the projection.
    chunk: tokens of each row whose logits are computed at a time in the loss; see `LogitHead`.
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
    chunk: Size | None = None,
    rngs: nnx.Rngs,
  ):
    self.chunk = chunk
    width = embedding_dim or d_model
    self.activation = activation
    self.transform = Linear((d_model,), (width,), ('embed', None), init=init, rngs=rngs)
    self.norm = norm(width, rngs=rngs)
    self.bias = param(zeros(), (vocab_size,), ('vocab',), rngs)

  def logits(self, x, embedding):
    """Logits of the transformed vectors by the embedding's table."""
    x = self.norm(self.activation(self.transform(x)))
    logits = embedding.attend(x)
    return logits + self.bias[...].astype(logits.dtype)


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
    return frozenset({'class logits'}) | self.language_head.outputs

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
