"""What holds for every mixer that is not attention: packing, padding, caches, gradients, training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty, moved
from flax import nnx

from t2x.layers import (
  Causal,
  DenseScores,
  DynamicConvolution,
  FactorizedDenseScores,
  FactorizedRandomScores,
  FavorPlus,
  FlowAttention,
  Full,
  LightweightConvolution,
  LinearAttention,
  MultiHeadAttention,
  NoPositions,
  Plus,
  PlusAlpha,
  Prefix,
  RandomScores,
  RoPE,
  ShawPositions,
  Synthesizer,
  T5Bias,
  Tokens,
  Window,
)

WIDTH, LENGTH = 12, 7
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)

synthesizer = functools.partial(Synthesizer, num_heads=2)
random = functools.partial(RandomScores, max_length=9)
dense = functools.partial(DenseScores, max_length=9)
MIXERS = {
  'dense': functools.partial(synthesizer, scores=dense),
  'dense_plus': functools.partial(synthesizer, scores=dense, mix=Plus),
  'factorized_dense': functools.partial(
    synthesizer, scores=functools.partial(FactorizedDenseScores, factors=(3, 3))
  ),
  'random': functools.partial(synthesizer, scores=random),
  'factorized_random': functools.partial(
    synthesizer, scores=functools.partial(FactorizedRandomScores, max_length=9, rank=2)
  ),
  'random_plus_alpha': functools.partial(synthesizer, scores=random, mix=PlusAlpha),
  'lightweight': functools.partial(LightweightConvolution, num_heads=3, kernel_size=4),
  'dynamic': functools.partial(DynamicConvolution, num_heads=2, kernel_size=3),
  'shaw': functools.partial(MultiHeadAttention, num_heads=2),
  'linear': functools.partial(LinearAttention, num_heads=2, chunk=3),
  'performer': functools.partial(
    LinearAttention, num_heads=2, chunk=3, features=functools.partial(FavorPlus, num_features=16)
  ),
  'flow': functools.partial(FlowAttention, num_heads=2, chunk=3),
}
# Mixers that follow only the patterns Full() and Causal(), and mixers without probabilities to drop.
ONLY_CAUSAL_OR_FULL = {'linear', 'performer', 'flow'}
ENCODINGS = {
  'shaw': functools.partial(ShawPositions, head_dim=WIDTH // 2, max_distance=2),
  'dense': functools.partial(T5Bias, num_heads=2, bidirectional=True),
  'dense_plus': RoPE,
  'random_plus_alpha': functools.partial(ShawPositions, head_dim=WIDTH // 2, max_distance=2),
}


@functools.cache
def build(name):
  mixer = moved(MIXERS[name](WIDTH, rngs=nnx.Rngs(0)))
  return mixer, moved(ENCODINGS.get(name, NoPositions)(WIDTH, rngs=nnx.Rngs(1)))


run = jax.jit(applied, static_argnames='pattern')


@pytest.mark.parametrize('name', MIXERS)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_packed_equals_unpacked_and_padding_is_not_read(name, pattern):
  mixer, encoding = build(name)
  # The last segment has one token and is not compared.
  tokens = Tokens(jnp.asarray([[0, 1, 2, 0, 1, 2, 0, 0]]), jnp.asarray([[1, 1, 1, 2, 2, 2, 3, 0]]))
  x = jnp.concatenate([X[:1], X[1:, :1]], axis=1)
  packed, _ = run(mixer, x, pattern=pattern, tokens=tokens, encoding=encoding)
  rows = x[0, :6].reshape(2, 3, WIDTH)
  separate, _ = run(mixer, rows, pattern=pattern, encoding=encoding)
  np.testing.assert_allclose(packed[0, :6], separate.reshape(6, WIDTH), atol=1e-5)


@pytest.mark.parametrize('name', MIXERS)
def test_cached_decoding_equals_full_forward(name):
  """Under a window with a prefix that all tokens see, or the only causal pattern of the mixer."""
  mixer, encoding = build(name)
  pattern = Causal() if name in ONLY_CAUSAL_OR_FULL else Causal() & Window(2) | Prefix()
  prefix = jnp.broadcast_to(jnp.arange(LENGTH) < 3, (2, LENGTH))
  full, _ = run(
    mixer,
    X,
    pattern=pattern,
    tokens=Tokens.row(LENGTH, marks={'prefix': prefix}),
    encoding=encoding,
  )
  state, outputs = empty(mixer, 2, LENGTH + 2), []
  for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7)):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))
    tokens = Tokens(positions, jnp.ones_like(positions), marks={'prefix': prefix[:, start:stop]})
    y, state = run(
      mixer, X[:, start:stop], pattern=pattern, tokens=tokens, encoding=encoding, state=state
    )
    outputs.append(y)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), full, atol=1e-5)


@pytest.mark.parametrize('name', MIXERS)
def test_rows_padded_on_the_left_decode_as_single_rows(name):
  mixer, encoding = build(name)
  alone, _ = run(mixer, X[:, :5], pattern=Causal(), encoding=encoding)
  # The second row has three tokens, after two of padding.
  prompt = X[:, :4].at[1].set(jnp.roll(X[1, :4], 1, axis=0))
  positions, segments = (
    jnp.asarray([[0, 1, 2, 3], [0, 0, 1, 2]]),
    jnp.asarray([[1] * 4, [0, 1, 1, 1]]),
  )
  settings = {'pattern': Causal(), 'encoding': encoding}
  state = empty(mixer, 2, 5)
  first, state = run(mixer, prompt, tokens=Tokens(positions, segments), state=state, **settings)
  np.testing.assert_allclose(first[0], alone[0, :4], atol=1e-5)
  np.testing.assert_allclose(first[1, 1:], alone[1, :3], atol=1e-5)
  step = jnp.stack([X[0, 4], X[1, 3]])[:, None]
  tokens = Tokens(jnp.asarray([[4], [3]]), jnp.ones((2, 1), jnp.int32))
  last, _ = run(mixer, step, tokens=tokens, state=state, **settings)
  np.testing.assert_allclose(last[:, 0], jnp.stack([alone[0, 4], alone[1, 3]]), atol=1e-5)


@pytest.mark.parametrize('name', MIXERS)
def test_a_step_against_the_gradient_lowers_a_loss(name):
  """Every parameter has a finite gradient that is not zero, in packed rows."""
  parts = build(name)
  segments = jnp.asarray([[1] * LENGTH, [1] * 4 + [2] * 3])
  positions = jnp.asarray([list(range(LENGTH)), [0, 1, 2, 3, 0, 1, 2]])

  @jax.jit
  @jax.value_and_grad
  def step(parts):
    mixer, encoding = parts
    tokens = Tokens(positions, segments)
    y, _ = applied(mixer, X, pattern=Causal(), tokens=tokens, encoding=encoding)
    return jnp.square(y - X[:, ::-1]).mean()

  before, gradients = step(parts)
  for path, gradient in jax.tree.leaves_with_path(gradients):
    name = jax.tree_util.keystr(path)
    assert jnp.isfinite(gradient).all(), name
    # A bias on keys adds the same to all scores of a query.
    assert (gradient != 0).any() or '.k.bias' in name, name
  after, _ = step(jax.tree.map(lambda p, g: p - 0.01 * g, parts, gradients))
  assert after < before
