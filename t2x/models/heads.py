"""Heads that turn hidden vectors into logits over the vocabulary, or into their cross-entropy.

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
  gelu_exact,
  normal,
  param,
  zeros,
)
from t2x.layers.constraints import constrain, num_parts
from t2x.layers.dtypes import with_rank
from t2x.layers.embeddings import float32_logits
from t2x.models.interfaces import TextEmbedding
from t2x.models.losses import Sums, classification_sums
from t2x.models.spec import OutputKind
from t2x.ranges import Size


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
    return (
      logits
      if self.bias is None
      else logits + with_rank(self.bias[...].astype(logits.dtype), logits.ndim)
    )


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
    if self.out.bias is None:
      return logits
    return logits + with_rank(self.out.bias[...].astype(logits.dtype), logits.ndim)


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
    return logits + with_rank(self.bias[...].astype(logits.dtype), logits.ndim)
