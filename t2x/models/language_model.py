"""Causal and masked language models: a token embedding, a body and a head."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers import (
  Embedder,
  Input,
  Pattern,
  TextEmbedding,
  TokenEmbedding,
  Tokens,
  named_key,
)
from t2x.layers.building import building
from t2x.layers.constraints import constrain
from t2x.models.bodies import Decoder, replace_parts
from t2x.models.cache import BodyCache
from t2x.models.heads import TiedHead
from t2x.models.interfaces import (
  Body,
  DecodingModel,
  Head,
  ModelSide,
  Output,
  OutputHead,
  TextModel,
)
from t2x.models.losses import Sums
from t2x.models.spec import ModelSpec

__all__ = ['LanguageModel']


def select(
  x: Float[Array, 'batch length d_model'], index: Int[Array, 'batch picked']
) -> Float[Array, 'batch picked d_model']:
  """Returns the vectors at the positions `index` of each row."""
  return jnp.take_along_axis(x, index[:, :, None], axis=1)


def limited(embedder: Embedder, body: Body) -> Input:
  """Returns the input of an embedder with the maximum length that a body allows."""
  limit = body.max_length
  # The length of other inputs is not that of their tokens.
  if embedder.input.kind != 'ids' or limit is None:
    return embedder.input
  return dataclasses.replace(embedder.input, max_length=limit - embedder.num_extra)


def _check_extra(embedding: TextEmbedding, patterns: Sequence[Pattern]) -> None:
  """Raises UserError if all patterns are causal or windows, in which the extra tokens of `embedding` see few tokens."""
  num, name = embedding.num_extra, type(embedding).__name__
  for pattern in patterns:
    is_local = pattern.offsets() not in (None, (None, None))
    if not is_local and not pattern.is_causal(num + 2, ['global']):
      return
  raise UserError(
    f'no layer lets the {num} tokens of {name} see and be seen by all tokens (patterns: '
    f'{", ".join(sorted({str(pattern) for pattern in patterns}))}): use an Encoder with a pattern such as '
    f'{patterns[0]} | Global({num})'
  )


def with_logits(head: OutputHead) -> Head:
  """Returns `head` after checking that it computes logits for each token.

  Raises:
    UserError: the head does not compute logits for each token.
  """
  if not isinstance(head, Head):
    raise UserError(
      f'@{type(head).__name__} computes {", ".join(sorted(head.outputs))}, not logits for each token: '
      'bind another head, such as @TiedHead'
    )
  return head


class LogitModel(nnx.Module):
  """Base class of models whose head computes logits over a vocabulary from the hidden vectors of one body."""

  implements: tuple[type, ...] = (TextModel, DecodingModel)
  head: OutputHead

  @property
  def output_embedding(self) -> TextEmbedding:
    """The embedding of the predicted tokens, which tied heads read."""
    raise NotImplementedError

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch length logits']:
    return with_logits(self.head).logits(x, self.output_embedding)

  def cross_entropy(
    self,
    x: Float[Array, 'batch length d_model'],
    labels: Int[Array, 'batch length'],
    weights: Float[Array, 'batch length'],
    **settings: Any,
  ) -> Sums:
    head = with_logits(self.head)
    return head.cross_entropy(x, self.output_embedding, labels, weights, **settings)

  def class_logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch classes']:
    """Returns the class logits of hidden vectors without padding, if the head is a classifier."""
    head: Any = self.head
    return head.classify(x, jnp.ones(x.shape[:2], jnp.int32))

  def decode(
    self,
    ids: Int[Array, 'batch length'],
    tokens: Tokens,
    cache: BodyCache,
    last: Int[Array, ' batch'] | None = None,
  ) -> tuple[Float[Array, 'batch picked vocab'], BodyCache]:
    out = self._continued(ids, tokens, cache)
    x = out.x if last is None else select(out.x, last[:, None])
    assert out.cache is not None
    return self.logits(x), out.cache

  def _continued(self, ids: Array, tokens: Tokens, cache: BodyCache) -> Output:
    """Returns the hidden vectors of tokens that continue the cached tokens, and the new cache."""
    raise NotImplementedError


class LanguageModel(LogitModel):
  """Computes logits over the vocabulary, or other outputs of its head, from token ids.

  Args:
    d_model: width of the residual stream.
    embedding_dim: width of the token embedding, equal to the body's `input_dim` (ALBERT); None: d_model.
    embedding: builds the token embedding.
    body: builds the body: `Decoder` (GPT) or `Encoder` (BERT).
    head: builds the output head.

  Raises:
    UserError: the embedding prepends tokens, but the body does not let them see all tokens.
  """

  def __init__(
    self,
    *,
    d_model: Size,
    embedding_dim: Size | None = None,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    body: Callable[..., Body] = Decoder,
    head: Callable[..., OutputHead] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(embedding_dim or d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    if self.embedding.num_extra:
      _check_extra(self.embedding, self.body.patterns)
    with building(vocab_multiple=self.embedding.vocab_multiple):
      self.head = head(self.body.output_dim, self.embedding.vocab_size, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={'tokens': limited(self.embedding, self.body)},
      outputs=self.head.outputs,
      patterns=tuple(self.body.patterns),
      num_classes=self.head.num_classes,
      num_types=self.embedding.num_types,
    )

  @property
  def sides(self) -> dict[str, ModelSide]:
    """The body, with the name ''."""
    return {'': ModelSide(self.body, self.embedding)}

  @property
  def output_embedding(self):
    return self.embedding

  def hidden(
    self,
    ids: Int[Array, 'batch length'],
    *,
    tokens: Tokens | None = None,
    types: Int[Array, 'batch length'] | None = None,
    cache: BodyCache | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Returns hidden vectors [batch, length, d_model] of the last layer, without those of tokens
    that the embedding prepends.

    Args:
      ids: token ids.
      tokens: metadata of the tokens; None: unpadded rows at positions 0, 1, ....
      types: token types.
      cache: cache that earlier calls returned during generation.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
      record: names of the intermediate arrays to return.
    """
    x, extended = self.embedding(ids, tokens, types=types)
    body_key = named_key(key, 'body')
    out = self.body(x, tokens=extended, cache=cache, key=body_key, record=record)
    if not extended.num_extra:
      return out
    own = Tokens.row(ids.shape[1]) if tokens is None else tokens
    return dataclasses.replace(out, x=out.x[:, extended.num_extra :], tokens=own)

  def __call__(self, ids: Int[Array, 'batch length'], **settings: Any) -> Output:
    """Returns the outputs of the head, by default logits [batch, length, vocab]; see `hidden` for the arguments."""
    out = self.hidden(ids, **settings)
    x = self.head(out.x, self.embedding)
    if 'token logits' in self.head.outputs:
      x = constrain(x, 'batch', 'length', 'vocab')
    return Output(x, None, out.aux, out.recorded)

  def init_cache(self, batch: int, num_slots: int, dtype: DTypeLike = jnp.float32) -> BodyCache:
    """Returns an empty cache for `num_slots` tokens of `batch` rows.

    Raises:
      UserError: the embedding prepends tokens, which see later tokens.
    """
    if self.embedding.num_extra:
      raise UserError(
        f'a model with {type(self.embedding).__name__} is an encoder and cannot generate text token by token'
      )
    return self.body.init_cache(batch, num_slots, dtype)

  def unstacked(self, cache: BodyCache) -> tuple['LanguageModel', BodyCache]:
    body, cache = self.body.unstacked(cache)
    return replace_parts(self, body=body), cache

  def _continued(self, ids, tokens, cache):
    return self.hidden(ids, tokens=tokens, cache=cache)
