"""Heads that compute logits over the vocabulary, or their cross-entropy, from hidden vectors.

A head is built as `head(d_model, vocab_size, rngs=rngs)` and called with the hidden vectors and the token
embedding, which tied heads read.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Positive, Size
from t2x.base.step import target
from t2x.layers import (
  Initializer,
  LayerNorm,
  Linear,
  Norm,
  TextEmbedding,
  gelu_exact,
  normal,
  param,
  zeros,
)
from t2x.layers.attention.kernels.base import apply_soft_cap
from t2x.layers.building import build_context
from t2x.layers.constraints import constrain, num_parts
from t2x.layers.dtypes import Dtypes, with_rank
from t2x.layers.embeddings.token_embeddings import float32_logits, round_up
from t2x.layers.norms import norm_over
from t2x.models.interfaces import Head
from t2x.models.loss_blocks import Chunk, block_sums
from t2x.models.losses import classification_sums

__all__ = ['LMHead', 'LogitHead', 'MaskedLMHead', 'TiedHead']

# Maximum bytes of the logits of a block on one device, by backend. Float32 logits of fewer bytes are computed at once.
# The products of a block of 256 MiB are large enough to use a CPU fully (for 50,304 tokens of vocabulary, 1,334 rows),
# and the gradient of the table, which each block reads and writes once, is smaller.
BLOCK_BYTES = {'cpu': 2**28, 'gpu': 2**31, 'tpu': 2**28}


class LogitHead(nnx.Module):
  """Base class of heads that compute logits for each token; a subclass defines `logits`.

  Attributes:
    chunk: number of tokens of each row whose logits `cross_entropy` computes at a time, so that only [batch,
      chunk, vocab] logits are in memory. If rows are split over devices, it applies to each device's part of
      a row. None: all tokens at once. 'auto': all tokens at once if their logits take at most `BLOCK_BYTES`
      (256 MiB, on GPUs 2 GiB) on one device, otherwise the fewest blocks of at most this size.
    axis: logical axis of the logits.
  """

  implements = (Head,)
  chunk: Chunk = None
  axis: str | None = 'vocab'
  outputs: frozenset[str] = frozenset({'token logits'})
  num_classes: int | None = None

  def logits(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    """Returns the logits of `x`."""
    raise NotImplementedError(f'{type(self).__name__} does not define logits()')

  def __call__(
    self, x: Float[Array, '*rest d_model'], embedding: TextEmbedding
  ) -> Float[Array, '*rest logits']:
    return self.logits(x, embedding)

  def cross_entropy(
    self, x, embedding, labels, weights, *, smoothing=0.0, z_loss=0.0, axes=('batch', 'length')
  ):
    def sums(x, labels, weights):
      logits = constrain(self.logits(x, embedding), *axes, self.axis)
      return classification_sums(logits, labels, weights, smoothing, z_loss)

    parts = [1 if axis is None else num_parts(axis) for axis in (*axes, self.axis)]
    chunk = self.chunk
    if chunk == 'auto':
      logits = jax.eval_shape(lambda x: self.logits(x, embedding), x)
      chunk = tokens_per_block(
        *(math.ceil(n / count) for n, count in zip(logits.shape, parts, strict=True))
      )
    if chunk is None:
      return sums(x, labels, weights)
    return block_sums(sums, x, labels, weights, chunk, parts[1])


def tokens_per_block(batch: int, length: int, vocab: int) -> int | None:
  """Returns the number of tokens of each row in a block of at most `BLOCK_BYTES`; None: one block is enough.

  Blocks have equal numbers of tokens, except the last block.

  Args:
    batch: number of rows on one device.
    length: number of tokens of a row on one device.
    vocab: number of logits of a token on one device.
  """
  logit_bytes = jnp.dtype(Dtypes.logits).itemsize
  largest = max(1, BLOCK_BYTES[target()] // (logit_bytes * batch * vocab))
  if largest >= length:
    return None
  return math.ceil(length / math.ceil(length / largest))


def padded_size(vocab_size: int) -> int:
  """Returns the size of a parameter over the vocabulary in the model under construction."""
  return round_up(vocab_size, build_context().vocab_multiple or 1)


def _token_bias(vocab_size: int, rngs: nnx.Rngs) -> nnx.Param:
  return param(zeros(), (padded_size(vocab_size),), ('vocab',), rngs, kind='vector')


def _finish(
  products: Float[Array, '*rest vocab'], bias: nnx.Param | None, soft_cap: float | None
) -> Float[Array, '*rest vocab']:
  """Returns logits: products with the vocabulary, plus a bias (which may be padded), capped."""
  if bias is not None:
    own = bias[: products.shape[-1]].astype(products.dtype)
    products = products + with_rank(own, products.ndim)
  return apply_soft_cap(products, soft_cap)


class TiedHead(LogitHead):
  """Head that uses the token embedding's table as its projection (https://arxiv.org/abs/1608.05859).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias per token.
    scaled: divides the hidden vectors by sqrt(d_model) first (T5 1.0).
    logit_scale: factor of the products with the table, before bias and cap (Cohere, Granite).
    soft_cap: replaces logits z by soft_cap * tanh(z / soft_cap) (Gemma 2, https://arxiv.org/abs/2408.00118).
    chunk: number of tokens of each row per block of the loss; see `LogitHead`.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    use_bias: bool = False,
    scaled: bool = False,
    logit_scale: Positive = 1.0,
    soft_cap: Positive | None = None,
    chunk: Chunk = 'auto',
    rngs: nnx.Rngs,
  ):
    self.logit_scale, self.soft_cap, self.chunk = logit_scale, soft_cap, chunk
    self.scale = (d_model / build_context().scale.width_ratio) ** -0.5 if scaled else 1.0
    self.bias = _token_bias(vocab_size, rngs) if use_bias else None

  def logits(self, x, embedding):
    products = embedding.attend(x * (self.scale * self.logit_scale))
    return _finish(products, self.bias, self.soft_cap)


class LMHead(LogitHead):
  """Head with a separate projection, whose logits are in float32 as those of `TiedHead`.

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    use_bias: adds a bias per token.
    unpredicted: number of last ids that have no logit, such as the start token of ImageGPT.
    init: initialiser of the projection.
    logit_scale: factor of the products with the projection, before bias and cap (Granite).
    soft_cap: replaces logits z by soft_cap * tanh(z / soft_cap) (Gemma 2, https://arxiv.org/abs/2408.00118).
    chunk: number of tokens of each row per block of the loss; see `LogitHead`.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    use_bias: bool = False,
    unpredicted: Natural = 0,
    init: Initializer = normal(0.02),
    logit_scale: Positive = 1.0,
    soft_cap: Positive | None = None,
    chunk: Chunk = 'auto',
    rngs: nnx.Rngs,
  ):
    if unpredicted >= vocab_size:
      raise UserError(
        f'LMHead.unpredicted = {unpredicted} leaves no logits for a vocabulary of {vocab_size}: decrease it'
      )
    self.vocab_size, self.logit_scale = vocab_size - unpredicted, logit_scale
    self.soft_cap, self.chunk = soft_cap, chunk
    self.out = Linear(
      (d_model,),
      (padded_size(self.vocab_size),),
      ('embed', 'vocab'),
      init=init,
      use_bias=use_bias,
      kind='table',
      rngs=rngs,
    )

  def logits(self, x, embedding):
    x = x * self.logit_scale
    products = float32_logits(x, self.out.kernel[...].astype(x.dtype), axis=0)
    return _finish(products[..., : self.vocab_size], self.out.bias, self.soft_cap)


class MaskedLMHead(LogitHead):
  """BERT's head: projection, activation, norm, then the embedding's table and a bias
  (https://arxiv.org/abs/1810.04805).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    embedding_dim: output width of the projection, which must be that of the embedding; None: d_model.
    activation: elementwise function.
    norm: builds the norm.
    transform_bias: whether the projection has a bias (ModernBERT's has none, https://arxiv.org/abs/2412.13663).
    use_bias: adds a bias per token.
    init: initialiser of the projection.
    soft_cap: replaces logits z by soft_cap * tanh(z / soft_cap) (Gemma 2, https://arxiv.org/abs/2408.00118).
    chunk: number of tokens of each row per block of the loss; see `LogitHead`.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    embedding_dim: Size | None = None,
    activation: Callable[[Array], Array] = gelu_exact,
    norm: Callable[..., Norm] = LayerNorm,
    transform_bias: bool = True,
    use_bias: bool = True,
    init: Initializer = normal(0.02),
    soft_cap: Positive | None = None,
    chunk: Chunk = 'auto',
    rngs: nnx.Rngs,
  ):
    self.soft_cap, self.chunk = soft_cap, chunk
    width, axis = (d_model, 'embed') if embedding_dim is None else (embedding_dim, 'factor')
    self.activation = activation
    axes = 'embed', axis
    self.transform = Linear(
      (d_model,), (width,), axes, init=init, use_bias=transform_bias, rngs=rngs
    )
    self.norm = norm_over(axis, norm, width, rngs)
    self.bias = _token_bias(vocab_size, rngs) if use_bias else None

  def logits(self, x, embedding):
    x = self.norm(self.activation(self.transform(x)))
    return _finish(embedding.attend(x), self.bias, self.soft_cap)
