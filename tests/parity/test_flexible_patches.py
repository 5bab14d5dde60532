"""Resampling of patches and positions against timm, against the published formula in float64, and in a model."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import FlexiblePatches, LearnedGrid, resample_patches
from t2x.train import ResamplePatches

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
resample_patch_embed = pytest.importorskip(
  'timm.layers', reason="the extra 'references' is not installed"
).resample_patch_embed

part = functools.partial
rng = np.random.default_rng(0)
KERNEL = rng.normal(size=(8, 8, 2, 5)).astype(np.float32)
SIZES = [(12, 16), (4, 5), (8, 3), (8, 8)]
interpolate = torch.nn.functional.interpolate


def published(kernel, height, width):
  """The formula of big_vision: B resizes each pixel of a basis, and the inverse is that of all of B."""
  old = kernel.shape[:2]
  basis = torch.eye(old[0] * old[1], dtype=torch.float64).reshape(-1, 1, *old)
  resized = interpolate(basis, (height, width), mode='bilinear').reshape(len(basis), -1).numpy()
  flat = kernel.astype(np.float64).reshape(len(basis), -1)
  return (np.linalg.pinv(resized) @ flat).reshape(height, width, *kernel.shape[2:])


@pytest.mark.parametrize('size', SIZES, ids=str)
def test_resampled_kernels_equal_timm_and_the_published_formula(size, compared):
  ours = resample_patches(jnp.asarray(KERNEL), *size)
  compared('FlexiViT', 'NumPy, float64', ours, published(KERNEL, *size))
  theirs = resample_patch_embed(
    torch.tensor(KERNEL.transpose(3, 2, 0, 1)),
    list(size),
    interpolation='bilinear',
    antialias=False,
  )
  compared('FlexiViT', 'timm resample_patch_embed', ours, theirs.numpy().transpose(2, 3, 1, 0))


@pytest.mark.parametrize(('method', 'theirs'), [('linear', 'bilinear'), ('cubic', 'bicubic')])
def test_resized_positions_equal_pytorch(method, theirs, compared):
  """Linear ones for a finer and a coarser grid. Cubic ones with the filter for coarser grids: PyTorch's antialiased."""
  part = LearnedGrid(5, height=6, width=4, num_extra=0, interpolation=method, rngs=nnx.Rngs(0))
  table = np.asarray(part.table[...]).reshape(1, 6, 4, 5).transpose(0, 3, 1, 2)
  for grid in ((3, 2), (9, 8)):
    expected = interpolate(torch.tensor(table).double(), grid, mode=theirs, antialias=True).numpy()
    tokens = FlexiblePatches(5, kernel_size=2, class_token=False, rngs=nnx.Rngs(0))(
      jnp.zeros((1, 2 * grid[0], 2 * grid[1], 3))
    )[1]
    ours = part.embed(jnp.zeros((1, grid[0] * grid[1], 5)), tokens)
    expected = expected[0].transpose(1, 2, 0).reshape(1, -1, 5)
    compared('FlexiViT', 'torch interpolate', ours, expected)


def test_enlarged_images_have_the_vectors_of_the_originals():
  part = FlexiblePatches(7, kernel_size=4, channels=2, class_token=False, rngs=nnx.Rngs(0))
  patches = rng.normal(size=(3, 2, 4, 4)).astype(np.float32)
  large = interpolate(torch.tensor(patches), (6, 6), mode='bilinear').numpy()
  expected, _ = part(jnp.asarray(patches.transpose(0, 2, 3, 1)))
  part.patch_size = 6
  y, tokens = part(jnp.asarray(large.transpose(0, 2, 3, 1)))
  assert tokens.grid == (1, 1)
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_a_saved_kernel_is_resampled_to_that_of_a_new_model():
  resized = ResamplePatches()(jnp.asarray(KERNEL), jnp.zeros((4, 4, 2, 5)))
  np.testing.assert_allclose(resized, published(KERNEL, 4, 4), atol=1e-5)
