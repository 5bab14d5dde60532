"""Token models: an embedding, a body, a head. Causal and masked language models alike."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.errors import UserError
from t2x.hyperparameters import Tunable
from t2x.layers import TokenEmbedding, Tokens, named_key
from t2x.layers.constraints import constrain
from t2x.models.bodies import Decoder, replaced
from t2x.models.cache import BodyCache
from t2x.models.heads import TiedHead
from t2x.models.interfaces import Body, Head, Output, OutputHead, TextEmbedding
from t2x.models.losses import Sums
from t2x.models.spec import ModelSpec
from t2x.ranges import Size


def select(
  x: Float[Array, 'batch length d_model'], index: Int[Array, 'batch picked']
) -> Float[Array, 'batch picked d_model']:
  """The vectors at `index` of each row."""
  return jnp.take_along_axis(x, index[:, :, None], axis=1)


def with_logits(head: OutputHead) -> Head:
  """The head of a model that is asked for logits.

  Raises:
    UserError: the head computes none.
  """
  if not isinstance(head, Head):
    raise UserError(
      f'@{type(head).__name__} computes {", ".join(sorted(head.outputs))}, not logits for each token: '
      'bind another head, such as @TiedHead'
    )
  return head


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
    self.head = head(self.body.output_dim, self.embedding.vocab_size, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    """Facts about the model."""
    return ModelSpec(
      inputs='a text',
      outputs=self.head.outputs,
      patterns=tuple(self.body.patterns),
      max_length=self.body.max_length,
      vocab_size=self.embedding.vocab_size,
      num_classes=self.head.num_classes,
      num_types=self.embedding.num_types,
    )

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
    x, tokens = self.embedding(ids, tokens, types=types)
    body_key = named_key(key, 'body')
    return self.body(x, tokens=tokens, cache=cache, key=body_key, record=record)

  def logits(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch length logits']:
    """Logits of hidden vectors."""
    return with_logits(self.head).logits(x, self.embedding)

  def cross_entropy(
    self,
    x: Float[Array, 'batch length d_model'],
    labels: Int[Array, 'batch length'],
    weights: Float[Array, 'batch length'],
    *,
    smoothing: Tunable = 0.0,
    z_loss: Tunable = 0.0,
    axes: Sequence[str | None] = ('batch', 'length'),
  ) -> Sums:
    """Sums of the loss and of correct predictions over hidden vectors; see `Head.cross_entropy`."""
    return with_logits(self.head).cross_entropy(
      x, self.embedding, labels, weights, smoothing=smoothing, z_loss=z_loss, axes=axes
    )

  def __call__(
    self,
    ids: Int[Array, 'batch length'],
    *,
    tokens: Tokens | None = None,
    types: Int[Array, 'batch length'] | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """The outputs of the head: logits [batch, length, vocab] of every token."""
    out = self.hidden(ids, tokens=tokens, types=types, key=key, record=record)
    x = self.head(out.x, self.embedding)
    if 'token logits' in self.head.outputs:
      x = constrain(x, 'batch', 'length', 'vocab')
    return Output(x, None, out.aux, out.recorded)

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
