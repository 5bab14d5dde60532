"""Token models: an embedding, a body, a head. Causal and masked language models alike."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.layers import Pattern, TokenEmbedding, Tokens, named_key
from t2x.layers.constraints import constrain
from t2x.models.bodies import Decoder, replaced
from t2x.models.heads import TiedHead
from t2x.models.interfaces import Body, BodyCache, Inputs, Output, TextEmbedding, TokenHead
from t2x.ranges import Size

__all__ = ['LanguageModel', 'select']


def select(
  x: Float[Array, 'batch length d_model'], index: Int[Array, 'batch picked']
) -> Float[Array, 'batch picked d_model']:
  """The vectors at `index` of each row."""
  return jnp.take_along_axis(x, index[:, :, None], axis=1)


class LanguageModel(nnx.Module):
  """Token ids -> logits over the vocabulary.

  Args:
    d_model: width of the residual stream.
    embedding_dim: width of the token embedding, for a body whose `input_dim` it is (ALBERT); None:
      d_model.
    embedding: builds the token embedding.
    body: builds `Decoder` (GPT) or `Encoder` (BERT).
    head: builds what turns hidden vectors into logits.
  """

  inputs: ClassVar[Inputs] = 'a text'

  def __init__(
    self,
    *,
    d_model: Size,
    embedding_dim: Size | None = None,
    embedding: Callable[..., TextEmbedding] = TokenEmbedding,
    body: Callable[..., Body] = Decoder,
    head: Callable[..., TokenHead] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(embedding_dim or d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    self.head = head(d_model, self.vocab_size, rngs=rngs)

  @property
  def vocab_size(self) -> int:
    """Rows of the token embedding."""
    return self.embedding.vocab_size

  @property
  def max_length(self) -> int | None:
    """Positions that the model knows; None: any number."""
    return self.body.max_length

  @property
  def patterns(self) -> list[Pattern]:
    """The attention patterns of the body's blocks."""
    return self.body.patterns

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
    """Hidden vectors [batch, length, d_model] after the last layer; `record` names intermediate arrays."""
    x = self.embedding(ids, types)
    body_key = named_key(key, 'body')
    return self.body(x, tokens=tokens, cache=cache, key=body_key, record=record)

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch *rest']:
    """Hidden vectors -> logits [batch, length, vocab]."""
    return self.head(x, self.embedding)

  def __call__(
    self,
    ids: Int[Array, 'batch length'],
    *,
    tokens: Tokens | None = None,
    types: Int[Array, 'batch length'] | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Logits [batch, length, vocab] for every token."""
    out = self.hidden(ids, tokens=tokens, types=types, key=key, record=record)
    logits = constrain(self.logits(out.x), 'batch', 'length', 'vocab')
    return Output(logits, None, out.aux, out.recorded)

  def init_cache(self, batch: int, num_slots: int, dtype: Any = jnp.float32) -> BodyCache:
    """An empty cache for `num_slots` tokens."""
    return self.body.init_cache(batch, num_slots, dtype)

  def unstacked(self, cache: BodyCache) -> tuple['LanguageModel', BodyCache]:
    """The model and its cache layer by layer, for decoding token by token."""
    body, cache = self.body.unstacked(cache)
    return replaced(self, body=body), cache

  def decode(
    self,
    ids: Int[Array, 'batch length'],
    tokens: Tokens,
    cache: BodyCache,
    last: Int[Array, ' batch'] | None = None,
  ) -> tuple[Float[Array, 'batch picked vocab'], BodyCache]:
    """Logits for `ids`, which follow what the cache holds, and the new cache.

    With `last`, only the logits of that token of each row are computed: [batch, 1, vocab].
    """
    out = self.hidden(ids, tokens=tokens, cache=cache)
    x = out.x if last is None else select(out.x, last[:, None])
    return self.logits(x), out.cache
