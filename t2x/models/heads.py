"""Heads that compute logits over the vocabulary, or their cross-entropy, from hidden vectors.

A head is built as `head(d_model, vocab_size, rngs=rngs)` and called with the hidden vectors and the token
embedding, which tied heads read.
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
    chunk: number of tokens of each row whose logits `cross_entropy` computes at a time, once for the loss
      and again for the gradient, so that only [batch, chunk, vocab] logits are in memory. If rows are split
      over devices, it applies to each device's part of a row. None: all tokens at once.
    axis: logical axis of the logits.
  """

  chunk: int | None = None
  axis: str | None = 'vocab'

  @property
  def outputs(self) -> frozenset[OutputKind]:
    """Logits over the vocabulary."""
    return frozenset({'token logits'})

  @property
  def num_classes(self) -> int | None:
    """None: the logits are over the vocabulary."""
    return None

  def logits(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """Returns the logits of `x`."""
    raise NotImplementedError(f'{type(self).__name__} does not define logits()')

  def __call__(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """Returns the logits of `x`."""
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
    """Returns weighted sums of the loss and of correct predictions; see `Head.cross_entropy`."""

    def sums(head, embedding, x, labels, weights):
      logits = constrain(head.logits(x, embedding), *axes, self.axis)
      return classification_sums(logits, labels, weights, smoothing, z_loss)

    if self.chunk is None:
      return sums(self, embedding, x, labels, weights)
    parts = 1 if axes[1] is None else num_parts(axes[1])
    return _chunked_sums(sums, self, embedding, (x, labels, weights), self.chunk, parts)


def _chunked_sums(
  sums: Callable[..., Sums],
  head: LogitHead,
  embedding: TextEmbedding,
  arrays: Sequence[Array],
  chunk: int,
  parts: int,
) -> Sums:
  """Computes `sums` over chunks of arrays [batch, length, ...] whose length is split over `parts` devices.

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
  wide = [_bfloat16_to_float32(leaf) for leaf in parameters]

  @jax.checkpoint
  def chunk_sums(arrays):
    narrow = [leaf.astype(old.dtype) for leaf, old in zip(wide, parameters, strict=True)]
    return sums(*jax.tree.unflatten(structure, narrow), *arrays)

  by_chunk = jax.lax.map(chunk_sums, tuple(map(chunked, arrays)))
  return jax.tree.map(lambda array: array.sum(axis=0), by_chunk)


def _bfloat16_to_float32(parameter: Array) -> Array:
  return parameter.astype(jnp.float32) if parameter.dtype == jnp.bfloat16 else parameter


class TiedHead(LogitHead):
  """Head that uses the token embedding's table as its projection (https://arxiv.org/abs/1608.05859).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias per token.
    scaled: divides the hidden vectors by sqrt(d_model) first (T5 1.0).
    chunk: number of tokens of each row per step of the loss; see `LogitHead`.
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
    """Returns the products of `x` and the embedding's table."""
    logits = embedding.attend(x * self.scale)
    return (
      logits
      if self.bias is None
      else logits + with_rank(self.bias[...].astype(logits.dtype), logits.ndim)
    )


class LMHead(LogitHead):
  """Head with a separate projection, whose logits are in float32 as those of `TiedHead`.

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias per token.
    init: initialiser of the projection.
    chunk: number of tokens of each row per step of the loss; see `LogitHead`.
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
    """Returns the projection of `x` to the vocabulary."""
    logits = float32_logits(x, self.out.kernel[...].astype(x.dtype).T)
    if self.out.bias is None:
      return logits
    return logits + with_rank(self.out.bias[...].astype(logits.dtype), logits.ndim)


class MaskedLMHead(LogitHead):
  """BERT's head: projection, activation, norm, then the embedding's table and a bias
  (https://arxiv.org/abs/1810.04805).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    embedding_dim: output width of the projection, which must be that of the embedding; None: d_model.
    activation: elementwise function.
    norm: builds the norm.
    init: initialiser of the projection.
    chunk: number of tokens of each row per step of the loss; see `LogitHead`.
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
    """Returns the products of the transformed vectors and the embedding's table, plus the bias."""
    x = self.norm(self.activation(self.transform(x)))
    logits = embedding.attend(x)
    return logits + with_rank(self.bias[...].astype(logits.dtype), logits.ndim)
