"""Light and dynamic convolutions are their formulas, tap by tap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Blocks,
  Causal,
  DynamicConvolution,
  Full,
  Global,
  LightweightConvolution,
  Prefix,
  SourceSequence,
  Tokens,
  Window,
)

WIDTH, HEADS, LENGTH = 12, 3, 7
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = np.asarray([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
POSITIONS = np.asarray([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0]])


def build(kind, kernel_size, **settings):
  settings = {'num_heads': HEADS, 'kernel_size': kernel_size} | settings
  mixer = kind(WIDTH, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


def double(array):
  return np.asarray(array, np.float64)


def softmax(x):
  weights = np.exp(x - x.max())
  return weights / weights.sum()


def oracle(mixer, x, allows, before):
  """Loops over rows, tokens, channels and taps; `allows(i, j)`: does position i see position j?"""
  gated = np.einsum('bld,dgm->blgm', double(x), double(mixer.gate.kernel[...]))
  gated += double(mixer.gate.bias[...])
  source = gated[:, :, 0] / (1 + np.exp(-gated[:, :, 1]))
  y = np.zeros_like(source)
  for row, i, channel in np.ndindex(source.shape):
    head = channel * HEADS // WIDTH
    if isinstance(mixer, DynamicConvolution):
      logits = source[row, i] @ double(mixer.kernel.kernel[...])[:, head]
    else:
      logits = double(mixer.kernel[...])[head]
    for tap, weight in enumerate(softmax(logits)):
      j = i + tap - before
      if not 0 <= j < source.shape[1] or not SEGMENTS[row, i] == SEGMENTS[row, j] != 0:
        continue
      if allows(POSITIONS[row, i], POSITIONS[row, j]):
        y[row, i, channel] += weight * source[row, j, channel]
  return y @ double(mixer.out.kernel[...]) + double(mixer.out.bias[...])


# The pattern, what it lets see, and the taps of 4 and of 9 that lie before the token.
PATTERNS = [
  (Full(), lambda i, j: True, (2, 4)),
  (Causal(), lambda i, j: j <= i, (3, 8)),
  (Causal() & Window(2), lambda i, j: i - 1 <= j <= i, (3, 8)),
  (Causal() | Global(2), lambda i, j: j <= i or i < 2 or j < 2, (2, 4)),
  (Blocks(2), lambda i, j: i // 2 == j // 2, (2, 4)),
]
NAMES = ['full', 'causal', 'window', 'global', 'blocks']


@pytest.mark.parametrize('kind', [LightweightConvolution, DynamicConvolution])
@pytest.mark.parametrize('size', [4, 9])
@pytest.mark.parametrize(('pattern', 'allows', 'before'), PATTERNS, ids=NAMES)
def test_convolution_is_its_formula(kind, size, pattern, allows, before):
  mixer = build(kind, size)
  tokens = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS))
  y, cache = jax.jit(lambda m, x: applied(m, x, pattern=pattern, tokens=tokens))(mixer, X)
  np.testing.assert_allclose(y, oracle(mixer, X, allows, before[size == 9]), atol=1e-5)
  assert cache is None


def test_prefix_is_read_from_behind_and_nothing_else_is():
  mixer = build(LightweightConvolution, 5)
  prefix = jnp.arange(LENGTH)[None] < 3

  def read(x):
    tokens = Tokens.row(LENGTH, marks={'prefix': prefix})
    y, _ = applied(mixer, x, pattern=Causal() | Prefix(), tokens=tokens)
    return y[0, 1].sum()

  gradient = jnp.abs(jax.grad(read)(X)[0]).max(-1)
  np.testing.assert_array_equal(gradient > 0, [True, True, True] + [False] * 4)


def test_default_has_the_nine_taps_of_the_study():
  mixer = LightweightConvolution(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0))
  assert mixer.kernel[...].shape == (HEADS, 9)


def test_user_mistakes_are_errors():
  mixer = build(DynamicConvolution, 3)
  with pytest.raises(
    UserError, match='DynamicConvolution attends to its own tokens and received a source'
  ):
    applied(mixer, X, source=SourceSequence(X, Tokens.row(LENGTH)))
  with pytest.raises(UserError, match='num_heads = 5 does not divide'):
    build(LightweightConvolution, 3, num_heads=5)
  with pytest.raises(UserError, match='kernel_size'):
    build(LightweightConvolution, 0)
