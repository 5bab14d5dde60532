"""Patches of any size with one kernel, which is resampled by a pseudoinverse (FlexiViT, https://arxiv.org/abs/2212.08013)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.layers.embeddings.patches import PatchEmbedding

__all__ = ['FlexiblePatches', 'resample_patches']


def resample_patches(
  kernel: Float[Array, 'old_height old_width channels d_model'], height: int, width: int
) -> Float[Array, 'height width channels d_model']:
  """Resamples the kernel of a patch embedding to patches of height x width pixels, in float32.

  The result is the least-squares solution w' of <B x, w'> = <x, w> for all patches x, (B^T)^+ w, where B resizes a
  patch bilinearly (section 3.4 of the paper). For larger patches the equation holds exactly.

  Args:
    kernel: products of the pixels of a patch, for each channel and feature.
    height: new height in pixels.
    width: new width in pixels.
  """
  if kernel.shape[:2] == (height, width):
    return kernel
  # B is a Kronecker product of both sides, and so is its pseudoinverse.
  rows, columns = (
    jnp.asarray(np.linalg.pinv(_bilinear(old, new).T), jnp.float32)
    for old, new in zip(kernel.shape[:2], (height, width), strict=True)
  )
  resampled = jnp.einsum('ih,jw,hwcd->ijcd', rows, columns, kernel.astype(jnp.float32))
  return resampled.astype(kernel.dtype)


def _bilinear(old: int, new: int) -> Float[np.ndarray, 'new old']:
  """Returns the weights of linear interpolation from old to new pixels, without antialiasing, in float64."""
  centres = (np.arange(new) + 0.5) * old / new - 0.5
  distances = np.abs(np.clip(centres, 0, old - 1)[:, None] - np.arange(old))
  return np.maximum(1 - distances, 0)


class FlexiblePatches(PatchEmbedding):
  """Patch embedding whose patches may have another size than its kernel, which is then resampled.

  Args:
    kernel_size: side of the kernel that is learned, in pixels.
    patch_size: side of the patches, which may change after training. None: kernel_size.
    settings: those of `PatchEmbedding`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    kernel_size: Size,
    patch_size: Size | None = None,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, patch_size=kernel_size, rngs=rngs, **settings)
    self.patch_size = patch_size or kernel_size

  def __call__(self, images, tokens=None):
    """Returns the vectors of the patches and their metadata, as `PatchEmbedding` does with the resampled kernel."""
    resampled = jax.tree.map(lambda leaf: leaf, self)
    kernel = self.projection.kernel
    patches = resample_patches(kernel[...], self.patch_size, self.patch_size)
    resampled.projection.kernel = kernel.replace(patches)
    return PatchEmbedding.__call__(resampled, images, tokens)
