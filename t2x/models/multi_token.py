"""Multi-token prediction: a chain of modules that predict tokens after the next one
(DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 2.2)."""

from collections.abc import Callable, Iterator

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import (
  Initializer,
  Linear,
  Norm,
  RMSNorm,
  TextEmbedding,
  Tokens,
  lecun_normal,
  named_key,
)
from t2x.models.bodies import Decoder
from t2x.models.heads import LogitHead, TiedHead
from t2x.models.interfaces import Body, Head, Output

__all__ = ['MultiTokenHead']


class FurtherToken(nnx.Module):
  """A module of the chain: body(projection([norm(h); norm(embedding of the next token)]))."""

  def __init__(self, d_model, body, norm, init, rngs):
    self.hidden_norm, self.token_norm = norm(d_model, rngs=rngs), norm(d_model, rngs=rngs)
    self.projection = Linear(
      (2, d_model), (d_model,), (None, 'embed', 'embed'), init=init, use_bias=False, rngs=rngs
    )
    self.body = body(d_model, rngs=rngs)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    vectors: Float[Array, 'batch length d_model'],
    tokens: Tokens | None,
    key: Array | None,
  ) -> Output:
    both = jnp.stack([self.hidden_norm(x), self.token_norm(vectors)], axis=2)
    return self.body(self.projection(both), tokens=tokens, key=key)


class MultiTokenHead(LogitHead):
  """A head with modules that predict further tokens in training, for `MultiTokenPrediction`.

  Module k reads the hidden vectors that predict the token at k - 1 places ahead and the embedding of that token, and
  predicts the token at k places ahead. All share the embedding and the inner head. As in Megatron-Core, a module
  reads vectors after the final norm of the body before it. Generation and logits use only the inner head.

  Args:
    d_model: width of the hidden vectors, and of the token embedding.
    vocab_size: number of tokens.
    depth: number of modules (D in the paper).
    head: builds the inner head.
    body: builds the body of each module, with its final norm.
    norm: builds the norms of both inputs of a module.
    init: initialiser of the projections.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    depth: Size = 1,
    head: Callable[..., Head] = TiedHead,
    body: Callable[..., Body] = Decoder,
    norm: Callable[..., Norm] = RMSNorm,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.head = head(d_model, vocab_size, rngs=rngs)
    self.outputs = frozenset({*self.head.outputs, 'further tokens'})
    self.num_classes, self.depth = self.head.num_classes, depth
    self.ahead = nnx.List([FurtherToken(d_model, body, norm, init, rngs) for _ in range(depth)])

  def further(
    self,
    out: Output,
    following: Int[Array, 'batch length'],
    embedding: TextEmbedding,
    key: Array | None = None,
  ) -> Iterator[Output]:
    """Yields the output of each module.

    Args:
      out: the model's hidden vectors, which predict `following`, and the metadata of its tokens.
      following: the token after each token of the model's input.
      embedding: the token embedding.
      key: random keys of the rows, [batch]; None: no dropout.

    Raises:
      UserError: the vectors of the embedding are not as wide as the hidden vectors.
    """
    for number, module in enumerate(self.ahead):
      # Zeros where a row has no such token; no target depends on them.
      ids = jnp.pad(following[:, number:], ((0, 0), (0, number)))
      vectors, _ = embedding(ids, out.tokens)
      if vectors.shape != out.x.shape:
        raise UserError(
          f'MultiTokenHead needs vectors of tokens of the shape {out.x.shape} of the hidden vectors, but the '
          f'embedding returns {vectors.shape}: leave out LanguageModel.embedding_dim and GlobalTokens'
        )
      out = module(out.x, vectors, out.tokens, named_key(key, f'module_{number}'))
      yield out

  def logits(self, x, embedding):
    return self.head.logits(x, embedding)

  def cross_entropy(self, x, embedding, labels, weights, **settings):
    return self.head.cross_entropy(x, embedding, labels, weights, **settings)
