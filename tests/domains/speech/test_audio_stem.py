"""The stem of audio encoders: what it refuses, and the metadata of its tokens.

`tests/parity/test_sources.py` compares its vectors.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.domains.speech import AudioStem
from t2x.layers import RowLayout, Tokens, relu

FRAMES = jnp.ones((2, 7, 3))


def stem(**settings):
  return AudioStem(8, num_features=3, rngs=nnx.Rngs(0), **settings)


@pytest.mark.parametrize('stride', [1, 2, 3])
def test_a_token_has_the_segment_and_the_marks_of_its_middle_frame(stride):
  segments = jnp.array([[1, 1, 1, 0, 0, 0, 0], [1] * 7])
  marks = {'loud': jnp.arange(7)[None] % 2 == 0}
  tokens = Tokens.row(7, segments=segments, marks=marks, right_padded=True)
  x, short = stem(stride=stride)(FRAMES, tokens)
  length = -(-7 // stride)
  assert x.shape == (2, length, 8) and short.right_padded
  assert short.layout is RowLayout.CONTIGUOUS
  np.testing.assert_array_equal(short.positions, np.arange(length)[None])
  np.testing.assert_array_equal(short.segments, segments[:, ::stride])
  np.testing.assert_array_equal(short.marks['loud'], marks['loud'][:, ::stride])


def test_the_activation_follows_both_convolutions():
  module = stem(activation=relu, kernel_size=1, stride=1)
  x, _ = module(FRAMES)
  w, v = (np.asarray(p.kernel[0], np.float64) for p in (module.first, module.second))
  expected = np.maximum(np.maximum(np.asarray(FRAMES) @ w, 0) @ v, 0)
  np.testing.assert_allclose(x, expected, atol=1e-5)
  assert (module.input.kind, module.input.shape, module.num_extra) == ('audio', (None, 3), 0)


def test_rows_of_several_recordings_and_other_shapes_are_refused():
  packed = Tokens(jnp.zeros((2, 7), int), jnp.ones((2, 7), int), layout=RowLayout.PACKED)
  with pytest.raises(UserError, match='rows of one recording'):
    stem()(FRAMES, packed)
  with pytest.raises(UserError, match='rows of one recording'):
    stem()(FRAMES, Tokens.row(7, segments=jnp.ones((2, 7), int)))
  with pytest.raises(UserError, match='metadata of 6 frames'):
    stem()(FRAMES, Tokens.row(6))
  with pytest.raises(UserError, match='num_features = 3'):
    stem()(FRAMES[..., :2])
  with pytest.raises(UserError, match='kernel_size = 2: must be odd'):
    stem(kernel_size=2)
