"""Augmentations that mix the images of a training batch and their labels."""

import abc
import dataclasses

import jax
from jaxtyping import Array, Float, Int

from t2x.base.ranges import Positive
from t2x.layers import named_key

__all__ = ['MixUp', 'Mixing']


class Mixing(abc.ABC):
  """Mixes each image of a batch with another image of the batch."""

  @abc.abstractmethod
  def __call__(
    self, images: Float[Array, 'batch height width channels'], key: Array
  ) -> tuple[
    Float[Array, 'batch height width channels'], Int[Array, ' batch'], Float[Array, '#batch']
  ]:
    """Mixes the images of a batch.

    Returns:
      The mixed images, for each the index of the other image, and the share of its own label.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixUp(Mixing):
  """MixUp: share * image + (1 - share) * another image, and the same for labels
  (https://arxiv.org/abs/1710.09412).

  All images of a batch have the same share, as in the authors' code.

  Attributes:
    alpha: the share is drawn from Beta(alpha, alpha); small values give shares near 0 and 1, 1 uniform ones.
  """

  alpha: Positive = 0.2

  def __call__(self, images, key):
    """Mixes each image with its image in a random permutation of the batch."""
    share = jax.random.beta(named_key(key, 'share'), self.alpha, self.alpha, (1,))
    other = jax.random.permutation(named_key(key, 'other'), len(images))
    part = share[:, None, None, None].astype(images.dtype)
    return part * images + (1 - part) * images[other], other, share
