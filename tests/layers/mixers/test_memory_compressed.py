"""MemoryCompressedAttention: the formula by loops, decoding, cost, padding, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import State, applied, double, empty
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Blockwise,
  Causal,
  Dense,
  Full,
  MemoryCompressedAttention,
  MultiHeadAttention,
  Tokens,
)
from t2x.testing.subject import perturbed

WIDTH, HEADS, LENGTH, RATIO = 12, 2, 11, 3
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)

run = jax.jit(applied, static_argnames='pattern')


def build(ratio=RATIO, **settings):
  return perturbed(
    MemoryCompressedAttention(WIDTH, num_heads=HEADS, ratio=ratio, rngs=nnx.Rngs(0), **settings)
  )


def formula(mixer, x, is_causal):
  """Section 4.2.3 of the paper in float64 for one row without padding, query by query."""

  def compressed(values, conv, null, head):
    blocks, filters = [double(null)[head]], double(conv.kernel)[head]
    for start in range(0, len(values), RATIO):
      taps = zip(values[start : start + RATIO], filters, strict=False)
      blocks.append(double(conv.bias)[head] + sum(value @ tap for value, tap in taps))
    return np.stack(blocks)

  x, total = np.asarray(x, np.float64), double(mixer.out.bias)
  for head in range(HEADS):
    q, k, v = (
      x @ double(linear.kernel)[:, head] + double(linear.bias)[head]
      for linear in (mixer.q, mixer.k, mixer.v)
    )
    k = compressed(k, mixer.k_conv, mixer.k_null, head)
    v = compressed(v, mixer.v_conv, mixer.v_null, head)
    y = []
    for place, query in enumerate(q):
      # A query sees the null key and the blocks whose last token is not after it.
      end = 1 + (place + 1) // RATIO if is_causal else len(k)
      weights = np.exp(k[:end] @ query / np.sqrt(WIDTH // HEADS))
      y.append(weights @ v[:end] / weights.sum())
    total = total + np.stack(y) @ double(mixer.out.kernel)[head]
  return total


@pytest.mark.parametrize('kernel', [Dense(), Blockwise(4, 2)], ids=str)
@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=str)
def test_equals_the_formula(pattern, kernel):
  mixer = build(kernel=kernel)
  y, _ = run(mixer, X, pattern=pattern)
  np.testing.assert_allclose(y[0], formula(mixer, X[0], pattern == Causal()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('kernel', [Dense(), Blockwise(4, 2)], ids=str)
def test_later_tokens_change_no_bit_of_an_output(kernel):
  mixer = build(kernel=kernel)
  y, _ = run(mixer, X, pattern=Causal())
  for place in range(LENGTH):
    changed, _ = run(mixer, X.at[:, place:].multiply(-50.0), pattern=Causal())
    np.testing.assert_array_equal(changed[:, :place], y[:, :place])
    # The first queries see only the null key, whose weight is 1 whatever the query.
    assert np.allclose(changed[:, place], y[:, place]) == (place < RATIO - 1)


def test_a_query_reads_itself_and_the_tokens_of_complete_blocks():
  mixer = build()
  jacobian = jax.jit(jax.jacobian(lambda x: applied(mixer, x, pattern=Causal())[0][0].sum(axis=-1)))
  is_read = np.abs(np.asarray(jacobian(X))[:, 0]).max(axis=-1) > 0
  places = np.arange(LENGTH)
  in_blocks = places[None] < (places[:, None] + 1) // RATIO * RATIO
  own = np.diag(places >= RATIO - 1)
  np.testing.assert_array_equal(is_read, in_blocks | own)


@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=str)
def test_padding_is_not_read(pattern):
  mixer, segments = build(), (jnp.arange(LENGTH) < 7).astype(int)[None]
  y, _ = run(mixer, X, tokens=Tokens.row(LENGTH, segments=segments), pattern=pattern)
  expected = formula(mixer, X[0, :7], pattern == Causal())
  np.testing.assert_allclose(y[0, :7], expected, rtol=1e-5, atol=1e-5)


def test_decoding_in_calls_of_any_length_equals_the_row():
  """Calls of 4, 1, 2 and 4 tokens, and 2 tokens of padding in the second row, before its last tokens."""
  mixer = build()
  whole, _ = run(mixer, X, pattern=Causal())
  state = empty(mixer, 2, LENGTH)
  for start, stop in ((0, 4), (4, 5), (5, 7)):
    tokens = Tokens(jnp.arange(start, stop)[None])
    y, state = run(mixer, X[:, start:stop], tokens=tokens, pattern=Causal(), state=state)
    np.testing.assert_allclose(y, whole[:, start:stop], rtol=1e-5, atol=1e-5)
  assert state.cache.count.tolist() == [7, 7]
  is_token = jnp.asarray([[1, 1, 1, 1], [0, 1, 0, 1]])
  tokens = Tokens(jnp.asarray([[7, 8, 9, 10], [0, 7, 0, 8]]), is_token)
  x = X[:, 7:].at[1, jnp.asarray([1, 3])].set(X[1, 7:9])
  y, state = run(mixer, x, tokens=tokens, pattern=Causal(), state=state)
  np.testing.assert_allclose(y[0], whole[0, 7:], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(y[1, 1::2], whole[1, 7:9], rtol=1e-5, atol=1e-5)
  assert state.cache.count.tolist() == [11, 9]


def test_a_row_with_more_tokens_than_its_memory_holds_is_nan_and_without_jit_an_error():
  """6 slots; the first row has 6 tokens and its last call one more, which is padding in the second row."""
  mixer, fits = build(), jnp.asarray([[1], [0]])
  _, state = run(mixer, X[:, :6], pattern=Causal(), state=empty(mixer, 2, 6))
  call = {'tokens': Tokens(6 * fits, fits), 'pattern': Causal(), 'state': state}
  y, after = run(mixer, X[:, 6:7], **call)
  assert np.isnan(y[0]).all() and np.isfinite(y[1]).all()
  assert np.isfinite(after.cache.v[1]).all()
  slots = dataclasses.replace(state.slots, next=jnp.int32(0))  # Their own limit is another test's.
  with pytest.raises(UserError, match='a cache with 6 slots cannot hold 7 tokens: raise num_slots'):
    applied(mixer, X[:, 6:7], **call | {'state': State(state.cache, slots)})


def test_scores_and_the_cache_are_smaller_by_the_ratio():
  """FLOPs and temporary memory of the compiled program, which does not run, and the cached arrays."""

  def cost(mixer, length):
    @jax.grad
    def gradient(x):
      return (applied(mixer, x, pattern=Causal())[0] ** 2).sum()

    compiled = jax.jit(gradient).lower(jnp.zeros((1, length, WIDTH))).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes
    return np.asarray([compiled.cost_analysis()['flops'], memory])

  full = MultiHeadAttention(WIDTH, num_heads=HEADS, kernel=Dense(), rngs=nnx.Rngs(0))
  compressed = build(8, kernel=Dense())
  flops, memory = cost(full, 2048) / cost(compressed, 2048)
  assert 6 < flops < 8.5 and 6 < memory < 10
  few, many = (compressed.init_cache(3, slots, jnp.bfloat16) for slots in (80, 800))
  assert few.k.shape == (3, 10, HEADS, WIDTH // HEADS) and many.k.shape[1] == 100
  assert few.k.dtype == jnp.bfloat16 and few.k_tail.shape == many.k_tail.shape
