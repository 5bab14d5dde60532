"""Images of a batch mixed with each other in training, and their labels with them."""

import abc
import dataclasses

import jax
from jaxtyping import Array, Float, Int

from t2x.layers import named_key
from t2x.ranges import Positive


class Mixing(abc.ABC):
  """Mixes each image of a batch with another one."""

  @abc.abstractmethod
  def __call__(
    self, images: Float[Array, 'batch height width channels'], key: Array
  ) -> tuple[
    Float[Array, 'batch height width channels'], Int[Array, ' batch'], Float[Array, '#batch']
  ]:
    """The mixed images, which other image is in each, and how much of its own label each keeps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixUp(Mixing):
  """share * image + (1 - share) * another image of the batch, and the labels alike
  (https://arxiv.org/abs/1710.09412). The share is one for a batch, as in the authors' code.

  Attributes:
    alpha: the share is drawn from Beta(alpha, alpha): small is mostly one of the two, 1 any share.
  """

  alpha: Positive = 0.2

  def __call__(self, images, key):
    """As `Mixing`; the others are a permutation of the batch."""
    share = jax.random.beta(named_key(key, 'share'), self.alpha, self.alpha, (1,))
    other = jax.random.permutation(named_key(key, 'other'), len(images))
    part = share[:, None, None, None].astype(images.dtype)
    return part * images + (1 - part) * images[other], other, share
