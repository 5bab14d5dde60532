"""Mixing in windows: volumes, keys of dropout, and refusals. `tests/parity/test_swin.py` compares it with Swin."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Call, Causal, Full, GridBias, MultiHeadAttention, Tokens, Windowed, normal
from t2x.layers.attention.value_residual import LearnedValueResidual
from t2x.layers.keys import row_keys

attention = functools.partial(MultiHeadAttention, num_heads=2, kernel_init=normal(0.5))


def windowed(size=2, shift=0, mixer=attention, width=8):
  return Windowed(width, mixer=mixer, size=size, shift=shift, rngs=nnx.Rngs(0))


def rows(*grid, batch=2):
  return jax.random.normal(jax.random.key(0), (batch, int(np.prod(grid)), 8)), Tokens.row(
    int(np.prod(grid)), grid=grid
  )


@pytest.mark.parametrize('shift', [0, 1])
def test_windows_of_a_volume_equal_attention_in_each_box(shift):
  """Boxes of 2 x 2 x 2 tokens; with a shift those at the borders are smaller."""
  grid = (4, 2, 5)
  part, (x, tokens) = windowed(2, shift), rows(*grid)
  mix = jax.jit(lambda x, tokens: part.mixer(x, Call(tokens)).x)
  y = np.asarray(jax.jit(lambda x: part(x, Call(tokens)).x)(x)).reshape(2, *grid, 8)
  # The second side is one window; along the third, a zero fills up the map. A shifted window at its end holds it.
  starts = [sorted({-shift, *range(-shift, side, 2)}) for side in grid]
  starts[1] = [0]
  padded = jnp.pad(x.reshape(2, *grid, 8), ((0, 0), (0, 0), (0, 0), (0, 1), (0, 0)))
  for corner in itertools.product(*starts):
    box = tuple(slice(max(start, 0), start + 2) for start in corner)
    inside = padded[(slice(None), *box)]
    if not inside.size:
      continue
    flat = inside.reshape(2, -1, 8)
    expected = mix(flat, Tokens.row(flat.shape[1])).reshape(inside.shape)
    actual = y[(slice(None), *box)]
    np.testing.assert_allclose(actual, expected[:, :, :, : actual.shape[3]], atol=1e-5)


def test_recorded_probabilities_leave_out_what_fills_up_a_map():
  part, (x, tokens) = windowed(2), rows(3, 3)
  found = part(x, Call(tokens, record=frozenset({'probabilities'}))).recorded['probabilities']
  # The bottom right window has one token and three zeros.
  corner = jnp.pad(x[:, 8:], ((0, 0), (0, 3), (0, 0)))
  call = Call(Tokens.row(4, grid=(2, 2)), record=frozenset({'probabilities'}))
  expected = np.zeros((2, 2, 9))
  expected[:, :, 8] = part.mixer(corner, call).recorded['probabilities'][:, :, 0, 0]
  np.testing.assert_allclose(found[:, :, 8], expected, atol=1e-6)
  np.testing.assert_allclose(found[:, :, :2, [0, 1, 3, 4]].sum(-1), 1.0, atol=1e-6)


def test_each_window_of_each_row_has_dropout_of_its_own():
  part = windowed(2, mixer=functools.partial(attention, dropout_rate=0.5))
  _, tokens = rows(4, 4)
  x = jnp.tile(jax.random.normal(jax.random.key(1), (1, 1, 8)), (2, 16, 1))
  keys = row_keys(jax.random.key(3), 2)
  y = np.asarray(part(x, Call(tokens, key=keys)).x).reshape(2, 2, 2, 2, 2, 8).swapaxes(2, 3)
  distinct = {window.tobytes() for window in y.reshape(8, 4, 8)}
  assert len(distinct) == 8
  alone = part(x[1:], Call(tokens, key=keys[1:])).x
  np.testing.assert_allclose(alone.ravel(), y[1].swapaxes(1, 2).ravel(), atol=1e-6)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (Call(Tokens.row(16)), r'have the grid None, 0 before it, and no segments: .*class_token'),
    (Call(Tokens.row(16, grid=(3, 5), num_extra=1)), r'the grid \(3, 5\), 1 before it'),
    (Call(Tokens.row(16, grid=(4, 4), segments=jnp.ones((1, 16), int))), r'and segments'),
  ],
)
def test_tokens_without_windows_are_refused(call, message):
  with pytest.raises(UserError, match=message):
    windowed()(jnp.ones((1, 16, 8)), call)


def test_a_pattern_a_cache_and_extras_are_refused():
  x, tokens = rows(4, 4)
  with pytest.raises(UserError, match=r'does not support the pattern Causal\(\): use Full'):
    windowed()(x, Call(tokens, Causal()))
  with pytest.raises(UserError, match='cannot decode token by token'):
    windowed().init_cache(1, 4, jnp.float32)
  with pytest.raises(UserError, match='passes arrays to later layers'):
    windowed(mixer=functools.partial(attention, values=LearnedValueResidual))
  with pytest.raises(UserError, match=r'shift = 2 must be less than Windowed.size = 2'):
    windowed(2, 2)


def test_a_bias_needs_a_grid_that_fits():
  bias = GridBias(8, num_heads=2, height=2, width=2, rngs=nnx.Rngs(0))
  for grid in ((4, 4), (4, 4, 1)):
    x, tokens = rows(*grid)
    with pytest.raises(UserError, match=r'GridBias has offsets in a grid of 2 x 2'):
      attention(8, rngs=nnx.Rngs(0))(x, Call(tokens, Full(), encoding=bias))
