"""Routing attention against a loop over clusters in float64, its auxiliary loss, its cost, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from applying import double, growth, moved
from flax import nnx

from t2x.layers import Call, Causal, Full, RoutingAttention, Tokens

WIDTH, HEADS, LENGTH, CLUSTERS, WINDOW = 12, 2, 17, 3, 5
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
# The second row has fewer tokens than a cluster has places.
SEGMENTS = (jnp.arange(LENGTH)[None] < jnp.asarray([[14], [4]])).astype(int)
TOKENS = {'plain': Tokens.row(LENGTH), 'padded': Tokens.row(LENGTH, segments=SEGMENTS)}


@functools.partial(jax.jit, static_argnames='pattern')
def run(mixer, x, tokens, pattern=Full()):
  return mixer(x, Call(tokens, pattern))


def build(**settings):
  settings = {'num_heads': HEADS, 'num_clusters': CLUSTERS, 'window': WINDOW, **settings}
  mixer = RoutingAttention(WIDTH, commitment=0.5, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


def normalized(a):
  return a / np.linalg.norm(a, axis=-1, keepdims=True)


def attend_head(q, k, v, centroids):
  """The output of one head of a row without padding, and how many clusters each query is in."""
  y, count = np.zeros_like(q), np.zeros(len(q))
  for centroid in normalized(centroids):
    queries, keys = (np.argsort(-(normalized(a) @ centroid))[:WINDOW] for a in (q, k))
    weights = np.exp(q[queries] @ k[keys].T / np.sqrt(q.shape[-1]))
    y[queries] += weights @ v[keys] / weights.sum(1, keepdims=True)
    count[queries] += 1
  return y / np.maximum(count, 1)[:, None], count


@pytest.mark.parametrize('tokens', TOKENS)
def test_equals_a_loop_over_clusters(tokens):
  mixer, tokens = build(), TOKENS[tokens]
  result = run(mixer, X, tokens)
  lengths = [LENGTH, LENGTH] if tokens.segments is None else [14, 4]
  unrouted = 0
  for b, n in enumerate(lengths):
    q, k, v = (
      np.einsum('nm,mhd->hnd', double(X)[b, :n], double(p.kernel)) + double(p.bias)[:, None]
      for p in (mixer.q, mixer.k, mixer.v)
    )
    centroids = double(mixer.centroids)
    heads, counts = zip(
      *(attend_head(q[h], k[h], v[h], centroids[h]) for h in range(HEADS)), strict=True
    )
    expected = np.einsum('hnd,hdm->nm', heads, double(mixer.out.kernel)) + double(mixer.out.bias)
    np.testing.assert_allclose(result.x[b, :n], expected, rtol=1e-5, atol=2e-5)
    both = normalized(np.concatenate([q, k], axis=1))
    difference = both[:, :, None] - normalized(centroids)[:, None]
    loss = 0.5 * (difference**2).mean(-1).min(-1).mean()
    np.testing.assert_allclose(result.aux.losses['commitment'][b], loss, rtol=1e-5)
    unrouted += (np.stack(counts) == 0).sum()
  assert unrouted > 0
  assert [int(n) for n in result.aux.metrics['unrouted_queries']] == [
    unrouted,
    HEADS * sum(lengths),
  ]


def test_causal_attention_sees_the_recent_tokens_of_the_cluster():
  mixer, window = build(window=3), 3
  segments = np.asarray([[1] * 9 + [2] * 8, [0, 1, 1, 0] + [1] * 13])
  y = run(mixer, X, Tokens(jnp.arange(LENGTH)[None], jnp.asarray(segments)), Causal()).x
  q, k, v = (
    np.einsum('bnm,mhd->bhnd', double(X), double(p.kernel)) + double(p.bias)[:, None]
    for p in (mixer.q, mixer.k, mixer.v)
  )
  cluster = np.einsum('bhnd,hcd->bhnc', q, normalized(double(mixer.centroids))).argmax(-1)
  heads = np.zeros_like(q)
  for b, h, i in np.ndindex(*q.shape[:3]):
    same = (cluster[b, h] == cluster[b, h, i]) & (segments[b] == segments[b, i])
    keys = np.flatnonzero(same[: i + 1])[-window - 1 :]
    weights = np.exp(k[b, h, keys] @ q[b, h, i] / np.sqrt(q.shape[-1]))
    heads[b, h, i] = weights @ v[b, h, keys] / weights.sum()
  expected = np.einsum('bhnd,hdm->bnm', heads, double(mixer.out.kernel)) + double(mixer.out.bias)
  present = segments != 0
  np.testing.assert_allclose(y[present], expected[present], rtol=1e-5, atol=2e-5)


def test_the_auxiliary_loss_moves_the_centroids_to_the_queries_and_keys():
  mixer = build()
  optimizer = optax.adam(0.05)

  @jax.jit
  def step(mixer, state):
    def loss(mixer):
      return mixer(X, Call(TOKENS['padded'])).aux.losses['commitment'].sum()

    value, gradient = jax.value_and_grad(loss)(mixer)
    updates, state = optimizer.update(gradient, state)
    return value, optax.apply_updates(mixer, updates), state, gradient

  state, values = optimizer.init(mixer), []
  for _ in range(20):
    value, mixer, state, gradient = step(mixer, state)
    values.append(value)
  assert values[-1] < 0.5 * values[0]
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_the_output_gives_the_centroids_no_gradient_and_the_projections_finite_ones():
  @jax.jit
  @jax.grad
  def gradient(mixer):
    return (run(mixer, X.at[0, 0].set(0.0), TOKENS['padded']).x ** 2).sum()

  gradients = gradient(build())
  assert (gradients.centroids[...] == 0).all() and (gradients.k.kernel[...] != 0).all()
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_time_and_memory_grow_as_length_to_the_power_of_one_and_a_half():
  short, long = (build(num_clusters=n, window=n) for n in (16, 32))
  flops, memory = growth({256: short, 1024: long}, WIDTH, Full())
  assert flops < 8.5 and memory < 8.5
