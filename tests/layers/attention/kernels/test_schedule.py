"""The tiles that blockwise attention visits: counted, against those that the exact mask needs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_patterns import marked, patterns, small, true_verdicts

from t2x.layers.attention.kernels import AttentionInputs, Blockwise, Dense, DotProduct
from t2x.layers.attention.kernels.base import visible
from t2x.layers.attention.kernels.schedule import tiles_to_visit
from t2x.layers.patterns.algebra import Causal, Marked, Prefix, Window
from t2x.layers.patterns.tiles import FULL, PARTIAL, SKIP
from t2x.layers.tokens import RowLayout, Tokens


def visited(pattern, q, k, q_block, k_block, layout):
  """The tiles that a kernel visits, counted at run time, and whether they are computed unmasked."""
  codes = np.zeros((-(-q.positions.shape[1] // q_block), -(-k.positions.shape[1] // k_block)), int)
  lists = jax.jit(lambda q, k: tiles_to_visit(pattern, q, k, q_block, k_block, layout))(
    *jax.tree.map(jnp.asarray, (q, k))
  )
  for tiles in lists:
    table = np.asarray(tiles.table)[: tiles.count]
    assert not codes[tuple(table.T)].any()
    codes[tuple(table.T)] = PARTIAL if tiles.is_masked else FULL
  return codes


@settings(max_examples=30, deadline=None)
@given(patterns, st.lists(small, min_size=1, max_size=5), small, small, st.integers(0, 2**32))
def test_visited_tiles_of_packed_and_marked_rows_cover_all_visible_pairs(
  pattern, sizes, q_block, k_block, seed
):
  rng = np.random.default_rng(seed)
  length = sum(sizes) + 2
  rows = [np.array([*sizes, 2]), np.array([*sizes[::-1], 2])]
  segments = np.stack([np.repeat([*range(1, len(row)), 0], row) for row in rows])
  positions = np.stack([np.concatenate([np.arange(n) for n in row]) for row in rows])
  tokens = dataclasses.replace(
    marked(rng, length, batch=2), positions=positions, segments=segments, layout=RowLayout.PACKED
  )
  seen = np.asarray(visible(pattern, tokens, tokens))
  codes = visited(pattern, tokens, tokens, q_block, k_block, RowLayout.PACKED)
  needed = np.stack([true_verdicts(one, q_block, k_block) for one in seen])
  assert (codes[(needed != SKIP).any(0)] != SKIP).all()
  assert (needed[:, codes == FULL] == FULL).all()


def test_window_or_marked_visits_the_tiles_that_the_marks_need():
  """At 4096 tokens of which 3 are marked: 87 tiles in marked rows and columns, 33 of the window."""
  pattern, length, block = Window(64) | Marked('global'), 4096, 256
  marks = np.zeros((1, length), bool)
  marks[0, [0, 700, 3100]] = True
  tokens = Tokens(np.arange(length)[None], marks={'global': marks}, layout=RowLayout.CONTIGUOUS)
  codes = visited(pattern, tokens, tokens, block, block, RowLayout.CONTIGUOUS)
  needed = true_verdicts(pattern.mask(tokens, tokens), block, block)
  np.testing.assert_array_equal(codes != SKIP, needed != SKIP)
  assert (codes != SKIP).sum() == 120


def test_packed_rows_skip_the_tiles_between_their_segments():
  segments = np.repeat([1, 2, 3, 4], 1024)[None]
  positions = np.tile(np.arange(1024), 4)[None]
  tokens = Tokens(positions, segments, layout=RowLayout.PACKED)
  codes = visited(Causal(), tokens, tokens, 256, 256, RowLayout.PACKED)
  assert (codes != SKIP).sum() == 4 * 10
  padded = dataclasses.replace(tokens, segments=segments * (segments < 3))
  assert (visited(Causal(), padded, padded, 256, 256, RowLayout.PACKED) != SKIP).sum() == 2 * 10


def test_arbitrary_positions_skip_by_their_bounds():
  positions = np.arange(64)[None, ::-1]
  tokens = Tokens(positions)
  codes = visited(Causal(), tokens, tokens, 8, 8, RowLayout.ARBITRARY)
  truth = true_verdicts(Causal().mask(tokens, tokens), 8, 8)
  np.testing.assert_array_equal(codes, truth)


def test_without_marks_and_segments_tiles_are_constants():
  tokens = Tokens.row(64)
  lists = tiles_to_visit(Causal() & Window(9), tokens, tokens, 8, 8, RowLayout.CONTIGUOUS)
  assert all(tiles.count is None for tiles in lists)


def arrays(rng, length):
  shapes = (2, length, 4, 8), (2, length, 2, 8), (2, length, 2, 8)
  return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(kernel, pattern, q, k, v, q_tokens, k_tokens):
  def loss(q, k, v):
    out = kernel(AttentionInputs(DotProduct(q, k, 0.3), v, pattern, q_tokens, k_tokens, None))
    return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

  gradients, out = jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
  return out, gradients


def test_tiles_without_marked_tokens_are_never_read():
  """Only the key tile of the marked token is read beside the window, forward and backward."""
  q, k, v = arrays(np.random.default_rng(11), 64)
  poisoned = slice(16, 40)
  k, v = k.at[:, poisoned].set(jnp.nan), v.at[:, poisoned].set(jnp.nan)
  marked = jnp.zeros((2, 64), bool).at[0, 41].set(True).at[1, 47].set(True)
  pattern = Window(3) | Marked('global')
  tokens = Tokens.row(64, marks={'global': marked})
  queries = jax.tree.map(lambda x: x[:, :8], tokens)

  def first(kernel):
    return value_and_gradients(kernel, pattern, q[:, :8], k, v, queries, tokens)

  out, gradients = first(Blockwise(8, 8))
  assert jnp.isfinite(out).all() and all(jnp.isfinite(g).all() for g in gradients)
  assert jnp.isnan(first(Dense())[0]).any()


@pytest.mark.parametrize('seed', range(3))
def test_blockwise_equals_dense_where_few_tiles_are_left_at_run_time(seed):
  """Long rows, small tiles: packed segments, padding and marks at random."""
  rng = np.random.default_rng(seed)
  segments = np.sort(rng.integers(1, 6, (2, 70)))
  segments[1, 50:] = 0
  starts = np.stack([[np.flatnonzero(row == s)[0] for s in row] for row in segments])
  positions = jnp.asarray((np.arange(70) - starts) * (segments > 0))
  marks = {name: jnp.asarray(rng.random((2, 70)) < 0.03) for name in ('prefix', 'global')}
  tokens = Tokens(positions, jnp.asarray(segments), marks=marks, layout=RowLayout.PACKED)
  pattern = [Window(3) | Marked('global'), Causal() | Prefix(), Causal() & ~Marked('global')][seed]
  inputs = arrays(rng, 70)
  for a, b in zip(
    *(
      jax.tree.leaves(value_and_gradients(kernel, pattern, *inputs, tokens, tokens))
      for kernel in (Blockwise(8, 6), Dense())
    ),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=2e-5 * max(1.0, float(jnp.abs(b).max())))
