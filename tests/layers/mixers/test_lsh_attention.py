"""LSH attention against a definition without sorting, its cost, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, growth, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Call, Causal, Full, LSHAttention, Tokens
from t2x.layers.mixers.lsh_attention import hashes

WIDTH, HEADS, LENGTH = 12, 2, 23
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
# Rows that do not fill their last chunk, with segments that are not multiples of it and with padding.
SEGMENTS = jnp.asarray([[1] * 9 + [2] * 13 + [0], [0, 3, 3, 0, 3] + [4] * 15 + [0, 4, 4]])
TOKENS = {'plain': Tokens.row(LENGTH), 'packed': Tokens(jnp.arange(LENGTH)[None], SEGMENTS)}

run = jax.jit(applied, static_argnames='pattern')


def build(**settings):
  settings = {'num_heads': HEADS, 'num_buckets': 4, 'rounds': 3, 'chunk': 3, **settings}
  mixer = LSHAttention(WIDTH, use_bias=True, out_bias=True, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


def attend_token(q, v, candidates, place, chunk, is_causal):
  """The output of one token in one round and the logarithm of its denominator."""
  before = [j for j in candidates if j < place][-chunk:]
  after = [] if is_causal else [j for j in candidates if j > place][:chunk]
  keys = before + after or [place]
  if keys == [place]:
    return v[place], -1e5
  k = q[keys] / np.sqrt((q[keys] ** 2).mean(-1, keepdims=True) + 1e-6) / np.sqrt(q.shape[-1])
  weights = np.exp(k @ q[place])
  return weights @ v[keys] / weights.sum(), np.log(weights.sum())


def definition(mixer, x, segments, is_causal):
  """Token by token in float64, with the tokens of the same hash listed instead of sorted."""
  q, v = (
    np.einsum('bnm,mhd->bhnd', double(x), double(p.kernel)) + double(p.bias)[:, None]
    for p in (mixer.q, mixer.v)
  )
  rotated = np.einsum('bhnd,hdrk->bhrnk', q, double(mixer.rotations(Call(TOKENS['plain']))))
  bucket = np.concatenate([rotated, -rotated], axis=-1).argmax(-1)
  y = np.zeros_like(q)
  for b, h, i in np.ndindex(*q.shape[:3]):
    rounds = []
    for r in range(mixer.rounds):
      same = (bucket[b, h, r] == bucket[b, h, r, i]) & (segments[b] == segments[b, i])
      rounds.append(attend_token(q[b, h], v[b, h], np.flatnonzero(same), i, mixer.chunk, is_causal))
    outputs, totals = (np.stack(a) for a in zip(*rounds, strict=True))
    weights = np.exp(totals - totals.max())
    y[b, h, i] = weights @ outputs / weights.sum()
  return np.einsum('bhnd,hdm->bnm', y, double(mixer.out.kernel)) + double(mixer.out.bias)


@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_equals_the_definition_without_sorting(pattern, tokens):
  mixer, tokens = build(), TOKENS[tokens]
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens)
  segments = np.ones((2, LENGTH), int) if tokens.segments is None else np.asarray(tokens.segments)
  expected = definition(mixer, X, segments, pattern == Causal())
  present = segments != 0
  np.testing.assert_allclose(y[present], expected[present], rtol=1e-5, atol=1e-5)


def test_a_token_attends_to_itself_only_if_it_is_the_first_of_its_hash():
  mixer = build(num_buckets=2, rounds=1)
  y, _ = run(mixer, X[:, :2], pattern=Causal())
  own = mixer.output(mixer.v(X[:, :2]))
  np.testing.assert_allclose(y[:, 0], own[:, 0], atol=1e-5)
  # The second token of the same vector has the same hash and sees only the first.
  twice = jnp.repeat(X[:, :1], 2, axis=1).at[:, 1].multiply(2.0)
  mixer.q.bias[...] = jnp.zeros_like(mixer.q.bias[...])
  y, _ = run(mixer, twice, pattern=Causal())
  np.testing.assert_allclose(y[:, 1], y[:, 0], atol=1e-5)


def test_hashes_are_the_same_in_each_call_and_differ_between_seeds_layers_rounds_and_heads():
  mixer, tokens = build(), TOKENS['plain']
  first = mixer.rotations(Call(tokens))
  np.testing.assert_array_equal(first, build().rotations(Call(tokens)))
  others = [
    build(seed=1).rotations(Call(tokens)),
    mixer.rotations(Call(tokens, place=1)),
    mixer.rotations(Call(tokens, repeat=jnp.asarray(1))),
    jnp.roll(first, 1, axis=0),
    jnp.roll(first, 1, axis=2),
  ]
  assert all(jnp.abs(first - other).max() > 0.1 for other in others)
  q = jnp.asarray(np.random.default_rng(2).normal(size=(1, HEADS, 50, WIDTH // HEADS)), jnp.float32)
  found = hashes(q, first)
  assert set(np.unique(found)) == {0, 1, 2, 3}
  np.testing.assert_array_equal(hashes(-q, first), (found + 2) % 4)


def test_gradients_reach_the_projections_and_are_finite_for_zero_vectors():
  mixer = build()

  @jax.jit
  @jax.grad
  def gradient(mixer, x):
    return (applied(mixer, x, pattern=Causal(), tokens=TOKENS['packed'])[0] ** 2).sum()

  for x in (X, jnp.zeros_like(X)):
    gradients = gradient(mixer, x)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  assert (gradient(mixer, X).q.kernel[...] != 0).all()


def test_time_and_memory_are_linear_in_the_length():
  mixer = build(num_buckets=8, rounds=2, chunk=16)
  flops, memory = growth({512: mixer, 1024: mixer}, WIDTH, Causal())
  assert flops < 2.1 and memory < 2.1


def test_an_odd_number_of_buckets_is_refused():
  with pytest.raises(UserError, match=r'LSHAttention.num_buckets = 3 is odd'):
    build(num_buckets=3)
