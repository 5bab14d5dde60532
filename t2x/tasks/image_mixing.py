"""Augmentations that mix the images of a training batch and their labels."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.base.ranges import NonEmpty, Positive
from t2x.layers import named_key

__all__ = ['AnyMixing', 'CutMix', 'MixUp', 'Mixing']


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
      The mixed images, the index of each partner image, and the share of the own label.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutMix(Mixing):
  """CutMix: a rectangle of each image is that of another image, and the share of its label is the area that remains
  (https://arxiv.org/abs/1905.04899).

  The share is drawn first; the rectangle has the proportions of the image and a random centre, and is cut off at
  the border. The share of the label is then that of the pixels that remain, as in timm. All images of a batch
  have the same rectangle.

  Attributes:
    alpha: the first share is drawn from Beta(alpha, alpha).
  """

  alpha: Positive = 1.0

  def __call__(self, images, key):
    """Cuts a rectangle out of each image, for that of its image in a random permutation of the batch."""
    share = jax.random.beta(named_key(key, 'share'), self.alpha, self.alpha, (1,))
    other = jax.random.permutation(named_key(key, 'other'), len(images))
    centres = jax.random.uniform(named_key(key, 'centre'), (2,))
    sides, insides = images.shape[1:3], []
    for side, centre in zip(sides, centres, strict=True):
      length = jnp.floor(side * jnp.sqrt(1 - share))
      places = jnp.arange(side) - jnp.floor(side * centre) + length // 2
      insides.append((places >= 0) & (places < length))
    inside = insides[0][:, None] & insides[1][None]
    mixed = jnp.where(inside[None, :, :, None], images[other], images)
    return mixed, other, 1 - inside.mean(dtype=share.dtype)[None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyMixing(Mixing):
  """Mixes each batch with one of several parts, which is drawn with equal probabilities.

  Attributes:
    parts: the parts, such as `MixUp` and `CutMix` (DeiT, https://arxiv.org/abs/2012.12877).
  """

  parts: Annotated[Sequence[Mixing], NonEmpty]

  def __call__(self, images, key):
    """Returns what the part that was drawn returns."""
    index = jax.random.randint(named_key(key, 'part'), (), 0, len(self.parts))
    return jax.lax.switch(index, list(self.parts), images, named_key(key, 'mixing'))
