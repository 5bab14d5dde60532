"""Mixing along axes of a grid: recorded probabilities, keys of dropout, and what it refuses.
`tests/parity/test_videos.py` compares it with TimeSformer and ViViT."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import AlongAxes, Call, Causal, MeanOverAxes, MultiHeadAttention, Tokens, normal
from t2x.layers.attention.value_residual import LearnedValueResidual

GRID = 3, 2, 2
attention = functools.partial(MultiHeadAttention, num_heads=2, kernel_init=normal(0.5))


def along(axes, mixer=attention, **settings):
  return AlongAxes(8, mixer=mixer, axes=axes, rngs=nnx.Rngs(0), **settings)


def rows(extra=0, grid=GRID):
  length = extra + int(np.prod(grid))
  x = jax.random.normal(jax.random.key(0), (2, length, 8))
  return x, Tokens.row(length, grid=grid, num_extra=extra)


@pytest.mark.parametrize(
  ('axes', 'extra', 'settings'), [([1, 2], 2, {}), ([0], 1, {'with_extra': False}), ([0, 2], 0, {})]
)
def test_recorded_probabilities_times_values_are_the_output(axes, extra, settings):
  """Of tokens before the grid too, which see those of all rows."""
  part, (x, tokens) = along(axes, **settings), rows(extra)
  result = part(x, Call(tokens, record=frozenset({'probabilities'})))
  probabilities = result.recorded['probabilities']
  v = part.mixer.v(x)
  expected = part.mixer.out(jnp.einsum('bhqk,bkhd->bqhd', probabilities, v))
  seen = slice(0, None) if part.with_extra else slice(extra, None)
  np.testing.assert_allclose(result.x[:, seen], expected[:, seen], atol=1e-5)
  np.testing.assert_allclose(probabilities[:, :, seen].sum(-1), 1, atol=1e-6)
  assert not np.any(result.x[:, : seen.start])
  # The first token of the grid sees those of its row.
  places = np.argwhere(np.ones(GRID))
  others = [axis for axis in range(3) if axis not in axes]
  same = [extra + i for i, place in enumerate(places) if not place[others].any()]
  first = np.flatnonzero(probabilities[0, 0, extra] > 0)
  assert [i for i in first if i >= extra] == same


def test_rows_draw_dropout_of_their_own():
  part, (x, tokens) = along([1, 2], functools.partial(attention, dropout_rate=0.5)), rows()
  x = jnp.broadcast_to(x[:1, :4], (2, 4, 8))
  x = jnp.tile(x, (1, 3, 1))
  keys = jax.random.split(jax.random.key(1), 2)
  y = part(x, Call(tokens, key=keys)).x.reshape(6, -1)
  assert len(np.unique(np.asarray(y).round(5), axis=0)) == 6


@pytest.mark.parametrize(
  ('make', 'tokens', 'message'),
  [
    (lambda: along([2, 1]), rows()[1], r'AlongAxes.axes = \[2, 1\]: must be ascending'),
    (
      lambda: along([1, 3]),
      rows()[1],
      r'axes = \[1, 3\], but the tokens have the grid \(3, 2, 2\)',
    ),
    (lambda: along([0]), Tokens.row(12), 'AlongAxes needs one grid of tokens per row'),
    (lambda: along([0], with_extra=False), rows()[1], 'with_extra = False has no effect'),
    (
      lambda: along([0], functools.partial(attention, values=LearnedValueResidual)),
      rows()[1],
      'AlongAxes.mixer passes arrays to later layers',
    ),
    (
      lambda: MeanOverAxes(8, axes=[1, 2], rngs=nnx.Rngs(0)),
      rows(1)[1],
      'MeanOverAxes needs one grid of tokens per row',
    ),
    (
      lambda: MeanOverAxes(8, axes=[0, 1, 2], rngs=nnx.Rngs(0)),
      rows()[1],
      r'MeanOverAxes.axes = \(0, 1, 2\): the tokens of the grid \(3, 2, 2\) have no other axis',
    ),
  ],
)
def test_what_is_refused(make, tokens, message):
  x = jnp.zeros((1, tokens.positions.shape[1], 8))
  with pytest.raises(UserError, match=message):
    make()(x, Call(tokens))


def test_patterns_and_caches_are_refused():
  part, (x, tokens) = along([0]), rows()
  with pytest.raises(UserError, match='AlongAxes does not support the pattern'):
    part(x, Call(tokens, Causal()))
  with pytest.raises(UserError, match='cannot decode token by token'):
    part.init_cache(1, 12, jnp.float32)


def test_means_over_axes_keep_the_others():
  x, tokens = rows()
  result = MeanOverAxes(8, axes=[0, 2], rngs=nnx.Rngs(0))(x, Call(tokens))
  np.testing.assert_allclose(result.x, x.reshape(2, *GRID, 8).mean(axis=(1, 3)), atol=1e-6)
  assert result.tokens.grid == (2,)
