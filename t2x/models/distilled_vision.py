"""Vision transformer with a second token and head that learn from a teacher (DeiT, https://arxiv.org/abs/2012.12877)."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers import named_key
from t2x.models.classifiers import Classifier
from t2x.models.interfaces import ClassHead, Output
from t2x.models.vision import VisionTransformer

__all__ = ['DistilledVisionTransformer', 'LogitMean', 'MeanOfHeads', 'ProbabilityMean']


@runtime_checkable
class MeanOfHeads(Protocol):
  """Combines the class logits of two heads for prediction."""

  def __call__(
    self, a: Float[Array, 'batch classes'], b: Float[Array, 'batch classes']
  ) -> Float[Array, 'batch classes']:
    """Returns the logits of the prediction."""
    ...


@dataclasses.dataclass(frozen=True)
class LogitMean(MeanOfHeads):
  """The mean of the logits, as in the authors' code and transformers: a geometric mean of probabilities."""

  def __call__(self, a, b):
    return (a + b) / 2


@dataclasses.dataclass(frozen=True)
class ProbabilityMean(MeanOfHeads):
  """The logarithm of the mean of the probabilities, as in section 4 of the paper."""

  def __call__(self, a, b):
    logs = (jax.nn.log_softmax(logits.astype(jnp.float32)) for logits in (a, b))
    return (jnp.logaddexp(*logs) - jnp.log(2.0)).astype(a.dtype)


class DistilledVisionTransformer(VisionTransformer):
  """Vision transformer with a distillation token after the class token, and a head for each.

  The head of the class token learns from labels, that of the distillation token from a teacher. The distillation
  token is the first register of the embedding: `PatchEmbedding.num_registers = 1`, and `LearnedGrid.num_extra =
  2` for its position.

  Args:
    teacher_head: builds the classifier of the distillation token; `head` is that of the class token.
    mean: the mean of both heads that predicts: `LogitMean` or `ProbabilityMean`.
    settings: those of `VisionTransformer`.

  Raises:
    UserError: the model has no head, or fewer than two tokens before the patches.
  """

  def __init__(
    self,
    *,
    teacher_head: Callable[..., ClassHead] = Classifier,
    mean: MeanOfHeads = LogitMean(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(rngs=rngs, **settings)
    if self.head is None or self.embedding.num_extra < 2:
      raise UserError(
        f'DistilledVisionTransformer has {self.embedding.num_extra} tokens before the patches and '
        f'{"no head" if self.head is None else "a head"}: it needs a class token and PatchEmbedding.num_registers of '
        'at least 1, and a head for the labels'
      )
    self.teacher_head = teacher_head(self.body.output_dim, rngs=rngs)
    self.mean = mean

  def __call__(self, images, *, key=None, record=frozenset()):
    """Returns the mean of the class logits [batch, classes] of both heads, and each in `Output.heads`."""
    out = self.hidden(images, key=key, record=record)
    assert self.head is not None  # The constructor requires it.
    heads = {
      'labels': self.head(self.pool(out.x, None, named_key(key, 'pool')), named_key(key, 'head')),
      'teacher': self.teacher_head(out.x[:, 1], named_key(key, 'teacher_head')),
    }
    return Output(self.mean(*heads.values()), None, out.aux, out.recorded, heads=heads)
