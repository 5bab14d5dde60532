"""Linear attention: chunks and states against the sum over all pairs of tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty, gradient_bytes
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Causal,
  Full,
  LinearAttention,
  Prefix,
  Source,
  TokenEmbedding,
  Tokens,
  Window,
)
from t2x.models import Block, Decoder, LanguageModel, Stack

WIDTH, HEADS, LENGTH = 12, 2, 11
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0], [0, 1, 1, 0, 1, 2, 2, 2, 0, 2, 0]])
TOKENS = {
  'plain': Tokens.row(LENGTH),
  'packed': Tokens(jnp.arange(LENGTH)[None], SEGMENTS),
}

run = jax.jit(applied, static_argnames='pattern')


def moved(module):
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: leaf + jnp.asarray(0.4 * rng.normal(size=leaf.shape), leaf.dtype), module
  )


def build(**settings):
  return moved(LinearAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings))


def quadratic(mixer, x, segments, is_causal):
  """The definition, over all pairs of tokens, in float64; padding gets zeros before the projection."""

  def double(leaf):
    return np.asarray(leaf[...], np.float64)

  def project(linear):
    return np.einsum('bnm,mhd->bnhd', x, double(linear.kernel)) + double(linear.bias)

  def phi(a):
    return np.where(a > 0, a + 1, np.exp(np.minimum(a, 0)))

  x = np.asarray(x, np.float64)
  q, k, v = phi(project(mixer.q)), phi(project(mixer.k)), project(mixer.v)
  seen = (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, None]
  if is_causal:
    seen = np.tril(seen)
  weights = np.einsum('bihd,bjhd->bhij', q, k) * seen[:, None]
  total = weights.sum(axis=-1, keepdims=True)
  weights = np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))
  y = np.einsum('bhij,bjhd->bihd', weights, v)
  return np.einsum('bihd,hdm->bim', y, double(mixer.out.kernel)) + double(mixer.out.bias)


@pytest.mark.parametrize('chunk', [1, 4, 64])
@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_chunks_equal_the_sum_over_all_pairs(pattern, tokens, chunk):
  mixer, tokens = build(chunk=chunk), TOKENS[tokens]
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens)
  segments = np.ones((2, LENGTH), int) if tokens.segments is None else np.asarray(tokens.segments)
  expected = quadratic(mixer, X, segments, pattern == Causal())
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_gradients_do_not_depend_on_the_chunk(pattern):
  def loss(mixer, x):
    return (applied(mixer, x, pattern=pattern, tokens=TOKENS['packed'])[0] ** 2).sum()

  one, many = (jax.jit(jax.grad(loss, (0, 1)))(build(chunk=chunk), X) for chunk in (64, 3))
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
    assert jnp.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_features_that_underflow_have_finite_gradients():
  mixer = build()

  def loss(x):
    return (applied(mixer, x, pattern=Causal())[0] ** 2).sum()

  assert jnp.isfinite(jax.jit(jax.grad(loss))(1000 * X)).all()


def test_memory_is_linear_in_the_length():
  mixer = build(chunk=16)
  assert gradient_bytes(mixer, WIDTH, 2048) < 2.2 * gradient_bytes(mixer, WIDTH, 1024)


def test_the_state_does_not_grow_with_the_slots():
  mixer = build()
  few, many = (mixer.init_cache(3, num_slots, jnp.bfloat16) for num_slots in (8, 4096))
  assert jax.tree.map(jnp.shape, few) == jax.tree.map(jnp.shape, many)
  head_dim = WIDTH // HEADS
  assert few.sums.shape == (3, HEADS, head_dim, head_dim + 1) and few.sums.dtype == jnp.float32


@pytest.mark.parametrize('chunk', [2, 64])
def test_padding_anywhere_leaves_the_state_unchanged(chunk):
  mixer = build(chunk=chunk)
  alone, _ = run(mixer, X[:, :6], pattern=Causal())
  state = empty(mixer, 2, 9)
  # Rows of 3 and 2 tokens, padded on the right and on the left, then a call of padding in one row.
  prompt = X[:, :4].at[1].set(jnp.roll(X[1, :4], 2, axis=0))
  segments = jnp.asarray([[1, 1, 1, 0], [0, 0, 1, 1]])
  first, state = run(
    mixer, prompt, pattern=Causal(), tokens=Tokens(segments * 0, segments), state=state
  )
  np.testing.assert_allclose(first[0, :3], alone[0, :3], atol=1e-5)
  np.testing.assert_allclose(first[1, 2:], alone[1, :2], atol=1e-5)
  before = state.cache.sums
  tokens = Tokens(jnp.zeros((2, 1), int), jnp.asarray([[0], [1]]))
  second, state = run(mixer, X[:, 2:3], pattern=Causal(), tokens=tokens, state=state)
  np.testing.assert_array_equal(state.cache.sums[0], before[0])
  np.testing.assert_allclose(second[1, 0], alone[1, 2], atol=1e-5)
  tokens = Tokens(jnp.zeros((2, 2), int), jnp.ones((2, 2), int))
  third, _ = run(mixer, X[:, 3:5], pattern=Causal(), tokens=tokens, state=state)
  np.testing.assert_allclose(third, alone[:, 3:5], atol=1e-5)


def test_a_bidirectional_call_with_a_state_sees_the_earlier_calls():
  mixer = build(chunk=3)
  state = empty(mixer, 2, LENGTH)
  _, state = run(mixer, X[:, :4], pattern=Full(), state=state)
  y, _ = run(mixer, X[:, 4:], pattern=Full(), state=state)
  whole, _ = run(mixer, X, pattern=Full())
  np.testing.assert_allclose(y, whole[:, 4:], atol=1e-5)


def test_beams_copy_and_exchange_the_state_of_their_row():
  mixer = build()
  _, state = run(mixer, X, pattern=Causal(), state=empty(mixer, 2, LENGTH))
  beams = state.cache.repeat(2)
  np.testing.assert_array_equal(beams.sums[1], state.cache.sums[0])
  taken = beams.take(jnp.asarray([0, 0, 3, 2]))
  np.testing.assert_array_equal(taken.sums[2], state.cache.sums[1])
  assert taken.segment.tolist() == [1, 1, 1, 1]


def test_a_language_model_decodes_as_it_reads():
  block = functools.partial(
    Block,
    mixer=functools.partial(LinearAttention, num_heads=HEADS),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  model = moved(
    LanguageModel(
      d_model=WIDTH,
      embedding=functools.partial(TokenEmbedding, vocab_size=9),
      body=functools.partial(Decoder, stack=functools.partial(Stack, num_layers=2, blocks=[block])),
      rngs=nnx.Rngs(0),
    )
  )
  ids = jnp.asarray([[1, 2, 3, 4, 5], [5, 3, 4, 2, 1]])
  decode = jax.jit(lambda model, *inputs: model.decode(*inputs))
  whole = jax.jit(lambda model: model(ids).x)(model)
  logits, cache = decode(model, ids[:, :3], Tokens.row(3), model.init_cache(2, 8))
  np.testing.assert_allclose(logits, whole[:, :3], rtol=1e-4, atol=1e-5)
  model, cache = model.unstacked(cache)
  for i in (3, 4):
    logits, cache = decode(model, ids[:, i : i + 1], Tokens(jnp.full((2, 1), i)), cache)
    np.testing.assert_allclose(logits[:, 0], whole[:, i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('pattern', [Window(3), Causal() & Window(3), Causal() | Prefix()], ids=str)
def test_other_patterns_are_refused(pattern):
  with pytest.raises(UserError, match='LinearAttention does not support the pattern'):
    applied(build(), X, pattern=pattern)


def test_patterns_that_equal_causal_are_followed():
  mixer = build()
  y, _ = run(mixer, X, pattern=Causal() & Causal())
  np.testing.assert_array_equal(y, run(mixer, X, pattern=Causal())[0])


def test_a_source_is_refused():
  with pytest.raises(UserError, match='LinearAttention cannot attend to a source'):
    applied(build(), X, source=Source(X, Tokens.row(LENGTH)))


def test_heads_that_do_not_divide_the_width_are_refused():
  with pytest.raises(
    UserError, match=r'LinearAttention.num_heads = 5 does not divide d_model = 12'
  ):
    LinearAttention(WIDTH, num_heads=5, rngs=nnx.Rngs(0))
