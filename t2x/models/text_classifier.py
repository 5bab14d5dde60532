"""Texts to classes: a language model whose hidden vectors are pooled and classified.

From the class token as BERT does (https://arxiv.org/abs/1810.04805), from the mean of all tokens, or,
with a causal body, from the last token as GPT-1 does (Radford et al. 2018).
"""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.layers import TokenEmbedding, Tokens, split_key
from t2x.models.bodies import Encoder, Output
from t2x.models.heads import Classifier, Segments, TiedHead, first_token
from t2x.models.language_model import LanguageModel

__all__ = ['TextClassifier']


class TextClassifier(LanguageModel):
  """Token ids -> class logits.

  `embedding`, `body` and `head` have the names that they have in a language model, so that its
  parameters are found there; `logits` still are those over the vocabulary.

  Args:
    d_model: width of the residual stream.
    embedding: builds the token embedding.
    body: builds `Encoder` (BERT) or `Decoder` (GPT).
    head: builds the head over the vocabulary, for objectives that have a part of language modelling.
    pool: makes one vector of a row: `first_token`, `mean_tokens` or `last_token`.
    classifier: builds what turns that into class logits: `Classifier` or `PooledClassifier`.
  """

  def __init__(
    self,
    *,
    d_model: int,
    embedding: Callable[..., nnx.Module] = TokenEmbedding,
    body: Callable[..., nnx.Module] = Encoder,
    head: Callable[..., nnx.Module] = TiedHead,
    pool: Callable[..., Array] = first_token,
    classifier: Callable[..., nnx.Module] = Classifier,
    rngs: nnx.Rngs,
  ):
    super().__init__(d_model=d_model, embedding=embedding, body=body, head=head, rngs=rngs)
    self.pool = pool
    self.classifier: Any = classifier(d_model, rngs=rngs)

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
    """Hidden vectors -> class logits; tokens of segment 0 are padding."""
    return self.classifier(self.pool(x, segments), key)

  def __call__(
    self,
    ids: Int[Array, 'batch length'],
    *,
    tokens: Tokens = Tokens(),
    types: Int[Array, 'batch length'] | None = None,
    key: Array | None = None,
  ) -> Output:
    """Class logits [batch, classes], one text a row."""
    body_key, classifier_key = split_key(key, 2)
    out = self.hidden(ids, tokens=tokens, types=types, key=body_key)
    return Output(self.classify(out.x, tokens.segments, classifier_key), None, out.aux)
