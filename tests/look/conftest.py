"""A `Look` with values that a test can predict."""

import numpy as np
import pytest

from t2x.look import Attention, ExpertLoad, Grid, Look
from t2x.look.attention import cross_statistics, grid_statistics


@pytest.fixture
def look():
  """Cross-attention of one layer with two heads, and attention between 2x2 patches of an image."""
  cross = np.array([[[1, 0, 0], [0, 1, 0]], [[0.5, 0, 0.5], [0, 0.25, 0.75]]], np.float32)
  grid = Grid(2, 2, 1)
  patches = np.zeros((1, 5, 5), np.float32)
  # The class token sees the first patch, every other query the last patch.
  patches[0, 0, 1], patches[0, 1:, 4] = 1, 1
  names = ('class token', 'top left', 'top right', 'bottom left', 'bottom right')
  return Look(
    attention=(
      Attention(
        'cross-attention',
        ('drei', '</script>$'),
        ('three', 'cats', '</s>'),
        (cross,),
        (cross_statistics(cross, np.array([False, False, True])),),
      ),
      Attention(
        'self-attention', names, names, (patches,), (grid_statistics(patches, grid),), grid
      ),
    ),
    pixels=np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 16,
  )


@pytest.fixture
def loads():
  """The load of three experts of two layers, by two groups."""
  shares = np.array([[0.5, 0.25, 0.25], [0, 0.75, 0.25]], np.float32)
  names = ('layer 2', 'layer 4')
  return tuple(ExpertLoad(name, ('en$', '</script>'), shares) for name in names)
