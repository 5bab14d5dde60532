"""Heads that compute class logits, of tokens or of pooled rows."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size, TunableRate
from t2x.layers import Initializer, Linear, Norm, TextEmbedding, dropout, named_key, normal, zeros
from t2x.layers.keys import repeated_keys
from t2x.models.heads import LogitHead, TiedHead
from t2x.models.interfaces import ClassHead, Head, OutputHead, Pooling, RowSegments
from t2x.models.pooling import first_token

__all__ = [
  'Classifier',
  'PooledClassifier',
  'Pooler',
  'SequenceClassifier',
  'TokenClassifier',
]


class Pooler(nnx.Module):
  """BERT's sequence vector: tanh of a projection of the first token."""

  implements = (OutputHead,)
  outputs: frozenset[str] = frozenset({'vectors'})
  num_classes: int | None = None

  def __init__(
    self, d_model: int, vocab_size: int, *, init: Initializer = normal(0.02), rngs: nnx.Rngs
  ):
    self.projection = Linear((d_model,), (d_model,), ('embed', 'embed'), init=init, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], embedding: TextEmbedding
  ) -> Float[Array, 'batch d_model']:
    return jnp.tanh(self.projection(x[:, 0]))


class Classifier(nnx.Module):
  """A linear layer from a pooled vector, or from the vector of each token, to class logits.

  Args:
    d_model: width of the pooled vector.
    num_classes: number of logits.
    norm: builds a norm of the pooled vector, as BEiT, MAE and ConvNeXt have after a mean. None: no norm.
    dropout_rate: dropout rate on the pooled vector.
    use_bias: whether the projection has a bias.
    init: initialiser of the projection.
  """

  implements = (ClassHead,)

  def __init__(
    self,
    d_model: int,
    *,
    num_classes: Size,
    norm: Callable[..., Norm] | None = None,
    dropout_rate: TunableRate = 0.0,
    use_bias: bool = True,
    init: Initializer = zeros(),
    rngs: nnx.Rngs,
  ):
    self.num_classes = num_classes
    self.norm: Norm | None = norm and norm(d_model, rngs=rngs)
    self.dropout_rate = dropout_rate
    self.out = Linear(
      (d_model,),
      (num_classes,),
      ('embed', 'classes'),
      init=init,
      use_bias=use_bias,
      kind='table',
      rngs=rngs,
    )

  def __call__(
    self, x: Float[Array, 'batch *rest d_model'], key: Array | None = None
  ) -> Float[Array, 'batch *rest classes']:
    x = x if self.norm is None else self.norm(x)
    return self.out(dropout(x, self.dropout_rate, named_key(key, 'dropout')))


class PooledClassifier(Classifier):
  """BERT's classifier: a projection and tanh (the pooler), dropout, then a linear layer
  (https://arxiv.org/abs/1810.04805). RoBERTa's also applies dropout before the projection; DistilBERT's has ReLU in
  place of tanh.

  Args:
    activation: elementwise function after the projection.
    transform_bias: whether the projection has a bias (ModernBERT's has none, https://arxiv.org/abs/2412.13663).
    norm: builds a norm after the activation (ModernBERT). None: no norm.
    dropout_rate: dropout rate after the activation or norm.
    input_dropout: dropout rate before the projection.
    init: initialiser of both projections.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_classes: Size,
    activation: Callable[[Array], Array] = jnp.tanh,
    transform_bias: bool = True,
    norm: Callable[..., Norm] | None = None,
    dropout_rate: TunableRate = 0.0,
    input_dropout: TunableRate = 0.0,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    settings: dict[str, Any] = {'norm': norm, 'dropout_rate': dropout_rate, 'init': init}
    super().__init__(d_model, num_classes=num_classes, **settings, rngs=rngs)
    self.activation, self.input_dropout = activation, input_dropout
    axes = 'embed', 'embed'
    self.transform = Linear(
      (d_model,), (d_model,), axes, init=init, use_bias=transform_bias, rngs=rngs
    )

  def __call__(
    self, x: Float[Array, 'batch d_model'], key: Array | None = None
  ) -> Float[Array, 'batch classes']:
    x = dropout(x, self.input_dropout, named_key(key, 'input_dropout'))
    return super().__call__(self.activation(self.transform(x)), key)


class SequenceClassifier(LogitHead):
  """Head that pools each row into one vector and computes its class logits.

  Pools the class token as BERT (https://arxiv.org/abs/1810.04805), the mean of all tokens, or, with a
  causal body, the last token as GPT-1 (Radford et al. 2018).

  Args:
    d_model: width of the hidden vectors.
    vocab_size: number of tokens.
    pool: builds the pooling: `first_token`, `mean_tokens`, `last_token` or `AttentionPool`.
    classifier: builds the classifier of the pooled vector: `Classifier` or `PooledClassifier`.
    language_head: builds the head over the vocabulary, for objectives with a language-modelling term. The
      default has no parameters.
  """

  def __init__(
    self,
    d_model: int,
    vocab_size: Size,
    *,
    pool: Callable[..., Pooling] = first_token,
    classifier: Callable[..., ClassHead] = Classifier,
    language_head: Callable[..., Head] = TiedHead,
    rngs: nnx.Rngs,
  ):
    self.pool = pool(d_model, rngs=rngs)
    self.classifier = classifier(d_model, rngs=rngs)
    self.language_head = language_head(d_model, vocab_size, rngs=rngs)
    self.outputs = frozenset({'class logits', *self.language_head.outputs})
    self.num_classes = self.classifier.num_classes

  def classify(
    self,
    x: Float[Array, 'batch length d_model'],
    segments: RowSegments = None,
    key: Array | None = None,
    texts: int = 1,
  ) -> Float[Array, 'examples classes']:
    """Returns the class logits of each example; tokens of segment 0 are padding.

    Args:
      x: hidden vectors of the rows.
      segments: segments of the tokens, [batch, length].
      key: keys of the examples, [batch / texts].
      texts: number of consecutive rows of an example, whose pooled vectors are added up, as GPT-1 does for both orders
        of two texts (Radford et al. 2018).
    """
    pooled = self.pool(x, segments, repeated_keys(named_key(key, 'pool'), texts))
    pooled = pooled.reshape(-1, texts, pooled.shape[-1]).sum(axis=1) if texts > 1 else pooled
    return self.classifier(pooled, named_key(key, 'classifier'))

  def logits(self, x, embedding):
    return self.language_head.logits(x, embedding)

  def cross_entropy(self, x, embedding, labels, weights, **settings):
    return self.language_head.cross_entropy(x, embedding, labels, weights, **settings)


class TokenClassifier(LogitHead):
  """Head that computes class logits per token: tags of words, or, with two classes, the start and the
  end of a span (https://arxiv.org/abs/1810.04805).

  The body's `final_dropout` sets the dropout before it.
  """

  axis = None
  outputs: frozenset[str] = frozenset({'classes per token'})

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
    self.out = Linear(
      (d_model,), (num_classes,), ('embed', 'classes'), init=init, kind='table', rngs=rngs
    )

  def logits(self, x, embedding):
    return self.out(x)
