"""Gated DeltaNet: chunks and states against the recurrence, token by token in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding, double, moved
from flax import nnx
from tiny_lm import lm

from t2x.layers import (
  MLP,
  AttentionFree,
  Causal,
  GatedDeltaNet,
  LinearState,
  NoBias,
  Tokens,
)
from t2x.layers.mixers.gated_delta import gated_delta_rule
from t2x.models import Block

WIDTH, HEADS, LENGTH = 12, 2, 11
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = np.asarray([[1, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0], [0, 1, 1, 0, 1, 2, 2, 2, 0, 2, 0]])
ONES = np.ones((2, LENGTH), int)

run = jax.jit(applied, static_argnames='pattern')
rule = jax.jit(gated_delta_rule, static_argnames='chunk')


def build(**settings):
  return moved(GatedDeltaNet(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings))


def recurrence(q, k, v, log_alpha, beta, segments, state=None, segment=None):
  """Equation 10 of the paper for each row and head, from a zero state at the start of each segment."""
  batch, _, heads, dim = k.shape
  y = np.zeros(v.shape)
  state = np.zeros((batch, heads, v.shape[-1], dim)) if state is None else state.copy()
  segment = np.zeros(batch, int) if segment is None else segment.copy()
  for b in range(batch):
    for t in np.flatnonzero(segments[b]):
      if segments[b, t] != segment[b]:
        state[b], segment[b] = 0, segments[b, t]
      for h in range(heads):
        key, strength = k[b, t, h], beta[b, t, h]
        forget = np.exp(log_alpha[b, t, h]) * (np.eye(dim) - strength * np.outer(key, key))
        state[b, h] = state[b, h] @ forget + strength * np.outer(v[b, t, h], key)
        y[b, t, h] = state[b, h] @ q[b, t, h]
  return y, state, segment


def random_inputs(decay):
  """Queries, normalised keys, wider values, logarithms of decays and strengths."""
  q, k = RNG.normal(size=(2, 2, LENGTH, HEADS, 5))
  k /= np.linalg.norm(k, axis=-1, keepdims=True)
  v = RNG.normal(size=(2, LENGTH, HEADS, 3))
  log_alpha = -decay * RNG.uniform(size=(2, LENGTH, HEADS))
  return q, k, v, log_alpha, RNG.uniform(size=(2, LENGTH, HEADS))


def single(*arrays):
  return [jnp.asarray(a, jnp.float32) for a in arrays]


# The last decay makes exp(G_j - G_i) overflow for later tokens.
@pytest.mark.parametrize('decay', [0.0, 1.0, 60.0])
@pytest.mark.parametrize('chunk', [1, 4, 64])
@pytest.mark.parametrize('segments', [ONES, SEGMENTS], ids=['plain', 'packed'])
def test_chunks_equal_the_recurrence(segments, chunk, decay):
  inputs = random_inputs(decay)
  # The first row continues the segment of the state, the second starts a new one.
  sums, segment = RNG.normal(size=(2, HEADS, 5, 3)), np.asarray([1, 7])
  expected = recurrence(*inputs, segments, sums.swapaxes(-1, -2), segment)
  state = LinearState(*single(sums), jnp.asarray(segment))
  y, state = rule(*single(*inputs), jnp.asarray(segments), state, chunk=chunk)
  np.testing.assert_allclose(y, expected[0], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(state.sums.swapaxes(-1, -2), expected[1], rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(state.segment, expected[2])


def layer(mixer, x, positions, segments):
  """The layer in float64; the convolution sees the tokens at the preceding indices and positions."""

  def sigmoid(a):
    return 1 / (1 + np.exp(-a))

  x = np.asarray(x, np.float64)
  linears = (mixer.q, mixer.k, mixer.v)
  inputs = np.stack([np.einsum('blm,mhd->blhd', x, double(a.kernel)) for a in linears], axis=2)
  mixed, kernel = np.zeros_like(inputs), double(mixer.taps)
  for b, i in zip(*np.nonzero(segments), strict=True):
    for tap in range(len(kernel)):
      back = len(kernel) - 1 - tap
      j = i - back
      if j >= 0 and segments[b, j] == segments[b, i] and positions[b, j] == positions[b, i] - back:
        mixed[b, i] += kernel[tap] * inputs[b, j]
  q, k, v = np.moveaxis(mixed * sigmoid(mixed), 2, 0)
  q, k = (a / np.sqrt((a**2).sum(axis=-1, keepdims=True) + 1e-6) for a in (q, k))
  q = q / np.sqrt(q.shape[-1])
  softplus = np.log1p(np.exp(x @ double(mixer.alpha.kernel) + double(mixer.step)))
  log_alpha = -np.exp(double(mixer.decay)) * softplus
  y, *_ = recurrence(q, k, v, log_alpha, sigmoid(x @ double(mixer.beta.kernel)), segments)
  y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + 1e-6) * double(mixer.norm.scale)
  gate = np.einsum('blm,mhd->blhd', x, double(mixer.gate.kernel))
  return np.einsum('blhd,hdm->blm', y * gate * sigmoid(gate), double(mixer.out.kernel))


@pytest.mark.parametrize('segments', [ONES, SEGMENTS], ids=['plain', 'packed'])
def test_the_layer_equals_its_definition(segments):
  positions = np.zeros((2, LENGTH), int)
  for row, segment in zip(positions, segments, strict=True):
    for name in np.unique(segment):
      row[segment == name] = np.arange((segment == name).sum())
  mixer, tokens = build(chunk=4), Tokens(jnp.asarray(positions), jnp.asarray(segments))
  y, _ = run(mixer, X, pattern=Causal(), tokens=tokens)
  expected = layer(mixer, X, positions, segments)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_gradients_do_not_depend_on_the_chunk():
  tokens = Tokens(jnp.arange(LENGTH)[None], jnp.asarray(SEGMENTS))

  def loss(mixer, x):
    return (applied(mixer, x, pattern=Causal(), tokens=tokens)[0] ** 2).sum()

  one, many = (jax.jit(jax.grad(loss, (0, 1)))(build(chunk=chunk), X) for chunk in (64, 3))
  for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(many), strict=True):
    assert jnp.isfinite(a).all() and (a != 0).any(), jax.tree_util.keystr(path)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_decays_that_overflow_have_finite_gradients():
  q, k, v, log_alpha, beta = single(*random_inputs(1e3))
  state = LinearState(jnp.zeros((2, HEADS, 5, 3)), jnp.zeros(2, int))

  def loss(k, log_alpha):
    return (gated_delta_rule(q, k, v, log_alpha, beta, jnp.asarray(ONES), state, 64)[0] ** 2).sum()

  for gradient in jax.jit(jax.grad(loss, (0, 1)))(k, log_alpha):
    assert jnp.isfinite(gradient).all()


def test_a_language_model_of_two_recurrences_decodes_as_it_reads():
  mixers = (
    functools.partial(GatedDeltaNet, num_heads=HEADS),
    functools.partial(AttentionFree, bias=NoBias),
  )
  feed_forward = functools.partial(MLP, hidden_dim=16)
  blocks = [functools.partial(Block, mixer=mixer, feed_forward=feed_forward) for mixer in mixers]
  model = moved(lm(WIDTH, vocab_size=9, num_layers=4, blocks=blocks)(rngs=nnx.Rngs(0)))
  check_decoding(model)
