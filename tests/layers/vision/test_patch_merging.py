"""Merging of patches: against transformers, and what it refuses."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Call, LayerNorm, PatchMerging, Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytest.importorskip('transformers', reason="the extra 'references' is not installed")
from transformers.models.swin.modeling_swin import SwinPatchMerging  # noqa: E402

WIDTH = 6


def merging():
  return PatchMerging(WIDTH, norm=functools.partial(LayerNorm, epsilon=1e-5), rngs=nnx.Rngs(0))


def test_patch_merging_matches_swin_of_transformers():
  part, layer = merging(), SwinPatchMerging(WIDTH)
  rng = np.random.default_rng(0)
  for parameter in layer.parameters():
    value = rng.normal(size=tuple(parameter.shape), scale=0.2).astype(np.float32)
    parameter.data = torch.from_numpy(value)
  part.norm.scale[...] = jnp.asarray(layer.norm.weight.detach().numpy())
  part.norm.bias[...] = jnp.asarray(layer.norm.bias.detach().numpy())
  part.projection.kernel[...] = jnp.asarray(layer.reduction.weight.detach().numpy().T)
  x = rng.normal(size=(2, 24, WIDTH)).astype(np.float32)
  with torch.no_grad():
    expected = layer(torch.from_numpy(x), (4, 6)).numpy()
  result = part(jnp.asarray(x), Call(Tokens.row(24, grid=(4, 6))))
  y, tokens = result.x, result.tokens
  assert y.shape == (2, 6, part.output_dim) == expected.shape
  np.testing.assert_allclose(y, expected, atol=1e-6, rtol=1e-6)
  assert tokens.grid == (2, 3) and tokens.positions.tolist() == [[0, 1, 2, 3, 4, 5]]


GRID = Tokens.row(16, grid=(4, 4))


@pytest.mark.parametrize(
  ('tokens', 'message'),
  [
    (Tokens.row(16), r'have the grid None: use .* @PatchEmbedding'),
    (Tokens.row(15, grid=(3, 5)), r'do not divide a grid of 3 x 5'),
    (Tokens.row(17, grid=(4, 4), num_extra=1), r'but 1 precede it .*class_token = False'),
    (
      dataclasses.replace(
        GRID, segments=jnp.ones((1, 16), int), marks={'prefix': jnp.ones((1, 16), bool)}
      ),
      r'cannot merge the metadata segments, prefix of tokens',
    ),
  ],
)
def test_tokens_that_do_not_merge_are_refused(tokens, message):
  with pytest.raises(UserError, match=message):
    merging()(jnp.ones((1, tokens.positions.shape[1], WIDTH)), Call(tokens))
