"""Vision transformer for several patch sizes (FlexiViT, https://arxiv.org/abs/2212.08013)."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from t2x.layers import Embedder, FlexiblePatches
from t2x.models.interfaces import FlexibleModel
from t2x.models.vision import VisionTransformer

__all__ = ['FlexibleVisionTransformer']


class FlexibleVisionTransformer(VisionTransformer):
  """Vision transformer that is trained with the patch sizes of `ImageClassification.patch_sizes`.

  `FlexiblePatches.patch_size` is the size in evaluation, which may be another one for each evaluation.

  Args:
    embedding: builds the embedding, whose `patch_size` may change.
    settings: those of `VisionTransformer`.
  """

  implements = (FlexibleModel,)

  def __init__(
    self, *, embedding: Callable[..., Embedder] = FlexiblePatches, rngs: nnx.Rngs, **settings: Any
  ):
    super().__init__(embedding=embedding, rngs=rngs, **settings)

  def at_patch_size(self, size: int) -> 'FlexibleVisionTransformer':
    model = jax.tree.map(lambda leaf: leaf, self)
    model.embedding.patch_size = size
    return model
