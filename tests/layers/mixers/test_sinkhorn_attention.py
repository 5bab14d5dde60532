"""Sinkhorn attention against loops over blocks in float64, its cost, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, growth, moved
from flax import nnx

from t2x.layers import Causal, Full, SinkhornAttention, Tokens

WIDTH, HEADS, LENGTH, BLOCK = 12, 2, 22, 4
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
# The last block is incomplete; the second row ends two blocks earlier and has a hole.
LENGTHS = jnp.asarray([[LENGTH], [13]])
SEGMENTS = ((jnp.arange(LENGTH)[None] < LENGTHS) & (jnp.arange(LENGTH) != 5)[None]).astype(int)
TOKENS = {'plain': Tokens.row(LENGTH), 'padded': Tokens.row(LENGTH, segments=SEGMENTS)}

run = jax.jit(applied, static_argnames='pattern')


def build(**settings):
  settings = {'num_heads': HEADS, 'block': BLOCK, 'iterations': 3, 'temperature': 0.2, **settings}
  mixer = SinkhornAttention(WIDTH, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


def sorting_matrix(q, k, present, is_causal):
  """The matrix that mixes the blocks of one head of one row, entry by entry."""
  starts = [s for s in range(0, len(q), BLOCK) if present[s : s + BLOCK].any()]
  s = np.zeros((len(starts), len(starts)))
  for i, a in enumerate(starts):
    own = slice(0, a + 1) if is_causal else slice(a, a + BLOCK)
    mean = q[own][present[own]].mean(0)
    for j, b in enumerate(starts):
      if j < i or not is_causal:
        theirs = k[b : b + BLOCK][present[b : b + BLOCK]].mean(0)
        s[i, j] = np.exp(mean @ theirs / np.sqrt(q.shape[-1]) / 0.2)
  for _ in range(3):
    sums = s.sum(1, keepdims=True)
    s = s / np.where(sums == 0, 1, sums)
    sums = np.cumsum(s, 0) if is_causal else s.sum(0, keepdims=True)
    s = s / np.where(sums == 0, 1, sums)
  return s, starts


def attend_head(q, k, v, present, is_causal):
  """The output of one head of one row."""
  s, starts = sorting_matrix(q, k, present, is_causal)
  y = np.zeros_like(q)
  for i, t in np.ndindex(len(starts), BLOCK):
    place = starts[i] + t
    if place >= len(q) or not present[place]:
      continue
    keys, values = [], []
    for u in range(BLOCK):
      at = starts[i] + u
      if at < len(q) and present[at] and (u <= t or not is_causal):
        keys.append(k[at]), values.append(v[at])
      others = [
        (s[i, j], b + u)
        for j, b in enumerate(starts)
        if (j < i or not is_causal) and b + u < len(q) and present[b + u]
      ]
      if others:
        keys.append(sum(weight * k[at] for weight, at in others))
        values.append(sum(weight * v[at] for weight, at in others))
    weights = np.exp(np.stack(keys) @ q[place] / np.sqrt(q.shape[-1]))
    y[place] = weights @ np.stack(values) / weights.sum()
  return y


@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_equals_loops_over_blocks(pattern, tokens):
  mixer, tokens = build(), TOKENS[tokens]
  present = np.ones((2, LENGTH), bool) if tokens.segments is None else tokens.segments != 0
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens)
  q, k, v = (
    np.einsum('bnm,mhd->bhnd', double(X), double(p.kernel)) + double(p.bias)[:, None]
    for p in (mixer.q, mixer.k, mixer.v)
  )
  heads = np.zeros_like(q)
  for b, h in np.ndindex(2, HEADS):
    row = np.asarray(present[b])
    heads[b, h] = attend_head(q[b, h], k[b, h], v[b, h], row, pattern == Causal())
  expected = np.einsum('bhnd,hdm->bnm', heads, double(mixer.out.kernel)) + double(mixer.out.bias)
  np.testing.assert_allclose(y[present], expected[present], rtol=1e-5, atol=2e-5)


def test_a_change_of_a_block_changes_no_earlier_output_and_all_later_blocks():
  mixer = build()
  y, _ = run(mixer, X, pattern=Causal())
  changed, _ = run(mixer, X.at[:, 6:8].add(1.0), pattern=Causal())
  difference = jnp.abs(changed - y).max(axis=(0, 2))
  assert (difference[:6] == 0).all() and (difference[6:] > 1e-5).all()


@pytest.mark.nightly
def test_time_and_memory_grow_as_length_to_the_power_of_one_and_a_half():
  flops, memory = growth({256: build(block=16), 1024: build(block=32)}, WIDTH, Causal())
  assert flops < 8.5 and memory < 8.5
