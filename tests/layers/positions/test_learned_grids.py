"""Learned positions of videos. `tests/parity` compares those of images and of trained sizes with transformers."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import LearnedFrames, LearnedGrid, Tokens, normal


def added(encoding, grid, extra=1):
  tokens = Tokens.row(extra + int(np.prod(grid)), grid=grid, num_extra=extra)
  return encoding.embed(jnp.zeros((2, tokens.positions.shape[1], 4)), tokens)[1]


def learned(part, **sizes):
  return part(4, init=normal(1.0), rngs=nnx.Rngs(0), **sizes)


def test_frames_have_the_vectors_of_an_image_or_their_own():
  places = learned(LearnedGrid, height=2, width=3)
  vectors = added(places, (4, 2, 3))
  np.testing.assert_array_equal(vectors[:1], places.table[:1])
  for frame in vectors[1:].reshape(4, 6, 4):
    np.testing.assert_array_equal(frame, places.table[1:])
  both = learned(LearnedGrid, height=2, width=3, frames=4)
  np.testing.assert_array_equal(added(both, (4, 2, 3)), both.table)
  frames = learned(LearnedFrames, frames=4)
  vectors = added(frames, (4, 2, 3))
  assert not vectors[0].any()
  np.testing.assert_array_equal(vectors[1:].reshape(4, 6, 4)[:, 5], frames.table)


def test_other_sizes_are_interpolated_along_each_axis():
  """A table that is linear along one axis and constant along the others stays so, apart from its ends."""
  encoding = learned(LearnedGrid, height=2, width=2, frames=4, interpolation='linear')
  ramp = jnp.broadcast_to(jnp.arange(4.0)[:, None, None, None], (4, 2, 2, 4)).reshape(16, 4)
  encoding.table[...] = jnp.concatenate([encoding.table[:1], ramp])
  vectors = added(encoding, (8, 3, 2))
  np.testing.assert_array_equal(vectors[0], encoding.table[0])
  expected = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)
  np.testing.assert_allclose(vectors[1:].reshape(8, 6, 4)[:, 4, 0], expected, atol=1e-6)
  frames = learned(LearnedFrames, frames=4)
  frames.table[...] = ramp[::4]
  np.testing.assert_allclose(added(frames, (8, 1, 1))[1:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
  ('encoding', 'grid', 'message'),
  [
    (
      learned(LearnedGrid, height=2, width=2, frames=4),
      (2, 2),
      r'LearnedGrid needs a grid of frames, rows and columns, .* the grid \(2, 2\): .* Tubelets',
    ),
    (learned(LearnedFrames, frames=4), (2, 2), 'LearnedFrames needs a grid of frames'),
    (learned(LearnedGrid, height=2, width=2), (4,), 'needs a grid of rows and columns'),
  ],
)
def test_other_grids_are_refused(encoding, grid, message):
  with pytest.raises(UserError, match=message):
    added(encoding, grid)


def test_a_resized_table_is_logged_once(caplog):
  caplog.set_level('INFO', 't2x')
  # Other sides than in other tests of the process.
  encoding = learned(LearnedGrid, height=5, width=7)
  added(encoding, (5, 7))
  assert not caplog.messages
  for _ in range(2):
    added(encoding, (8, 9))
  assert caplog.messages == ['positions: a table of 5 x 7 is resized to 8 x 9']
