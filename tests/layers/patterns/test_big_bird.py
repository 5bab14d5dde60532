"""BigBird: the mask of the paper by loops, the tiles that are skipped, packed rows and what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_patterns import true_verdicts

from t2x.base.errors import UserError
from t2x.layers import MLP, BigBird, Call, Causal, Full, MultiHeadAttention, RowLayout, Tokens
from t2x.layers.attention.kernels import AttentionInputs, Blockwise, Dense, DotProduct
from t2x.layers.patterns.tiles import SKIP
from t2x.models import Block, Stack

LENGTH = 30
# The last block of the second has two positions.
PATTERNS = [
  BigBird(LENGTH, 3, 2, seed=5),
  BigBird(LENGTH, 4, 1, window=1),
  BigBird(LENGTH, 2, 0, 5),
]


def mask_by_loops(pattern):
  """The mask of section 2 of the paper: global blocks, sliding window, random blocks."""
  mask = np.zeros((LENGTH, LENGTH), bool)
  last, table = (LENGTH - 1) // pattern.block, pattern.random_blocks()
  for q in range(LENGTH):
    for k in range(LENGTH):
      i, j = q // pattern.block, k // pattern.block
      is_global = i in (0, last) or j in (0, last)
      is_near = j in range(i - (pattern.window - 1) // 2, i + (pattern.window - 1) // 2 + 1)
      mask[q, k] = is_global or is_near or j in table[i].tolist()
  return mask


@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
def test_mask_equals_the_loops_and_its_schedule_is_exact(pattern):
  mask = mask_by_loops(pattern)
  np.testing.assert_array_equal(pattern.mask(LENGTH, LENGTH), mask)
  for blocks in ((3, 3), (4, 5), (7, 2)):
    schedule = pattern.schedule(LENGTH, LENGTH, *blocks)
    np.testing.assert_array_equal(schedule, true_verdicts(mask, *blocks))


def test_random_blocks_are_distinct_and_add_blocks_that_nothing_else_shows():
  pattern = BigBird(640, 8, 4, window=5)
  table = pattern.random_blocks()
  assert table.shape == (80, 4)
  for i, row in enumerate(table):
    assert (
      len({*row.tolist(), 0, 79, *range(i - 2, i + 3)}) == len({0, 79, *range(i - 2, i + 3)}) + 4
    )
    assert row.min() > 0 and row.max() < 79
  assert len(np.unique(table)) > 70


def test_seeds_give_other_blocks_and_equal_seeds_the_same_on_every_machine():
  first, second = BigBird(640, 8), BigBird(640, 8, seed=1)
  assert first == BigBird(640, 8) and hash(first) == hash(BigBird(640, 8)) and first != second
  assert (first.random_blocks() != second.random_blocks()).mean() > 0.8
  # Checkpoints depend on these numbers.
  assert first.random_blocks()[[1, 40]].tolist() == [[12, 33, 70], [53, 74, 77]]


def test_the_number_of_tiles_grows_linearly_with_the_length():
  counts = [
    int((BigBird(length, 64).schedule(length, length, 64, 64) != SKIP).sum())
    for length in (1024, 4096, 16384)
  ]
  # Two rows of n tiles for the global queries; in the others a window of 3, 2 global and 3 random tiles, of which
  # two windows contain a global tile.
  assert counts == [2 * n + 8 * (n - 2) - 2 for n in (16, 64, 256)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(kernel, pattern, q, k, v, tokens):
  def loss(q, k, v):
    out = kernel(AttentionInputs(DotProduct(q, k, 0.3), v, pattern, tokens, tokens))
    return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

  return jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)


def packed(sizes):
  positions = np.concatenate([np.arange(size) for size in sizes])[None]
  segments = np.repeat(range(1, len(sizes) + 1), sizes)[None]
  return Tokens(jnp.asarray(positions), jnp.asarray(segments), layout=RowLayout.PACKED)


@pytest.mark.parametrize('tokens', [Tokens.row(LENGTH), packed([17, 13])], ids=['row', 'packed'])
def test_blockwise_equals_dense(tokens):
  rng = np.random.default_rng(0)
  inputs = [jnp.asarray(rng.normal(size=(2, LENGTH, 2, 4)), jnp.float32) for _ in range(3)]
  results = (
    value_and_gradients(kernel, PATTERNS[0], *inputs, tokens)
    for kernel in (Blockwise(3, 3), Dense())
  )
  for a, b in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_blockwise_never_reads_the_blocks_that_it_skips():
  """Queries of one block; the keys of all blocks that they do not see are NaN."""
  pattern = PATTERNS[0]
  hidden = jnp.asarray(~mask_by_loops(pattern)[12])
  assert hidden.sum() == 9
  k = jnp.where(hidden[None, :, None, None], jnp.nan, jnp.ones((1, LENGTH, 1, 4)))
  tokens = Tokens.row(LENGTH)
  queries = dataclasses.replace(
    tokens, positions=tokens.positions[:, 12:15], layout=RowLayout.ARBITRARY
  )
  scores = DotProduct(k[:, :3] * 0 + 1, k, 0.3)
  inputs = AttentionInputs(scores, k, pattern, queries, tokens)
  assert jnp.isfinite(jax.jit(Blockwise(3, 3))(inputs)).all()


def test_packed_segments_have_the_blocks_of_separate_rows():
  pattern, tokens = PATTERNS[0], packed([17, 13])
  mask = pattern.mask(*2 * [jax.tree.map(np.asarray, tokens)])
  np.testing.assert_array_equal(mask[:17, :17], pattern.mask(17, 17))
  np.testing.assert_array_equal(mask[17:, 17:], pattern.mask(13, 13))


def test_layers_of_a_stack_can_have_other_random_blocks():
  blocks = [
    functools.partial(
      Block,
      mixer=functools.partial(MultiHeadAttention, num_heads=1),
      feed_forward=functools.partial(MLP, hidden_dim=4),
      pattern=dataclasses.replace(PATTERNS[0], seed=seed),
    )
    for seed in (1, 2)
  ]
  stack = Stack(4, num_layers=2, blocks=blocks, rngs=nnx.Rngs(0))
  x = jnp.asarray(np.random.default_rng(1).normal(size=(1, LENGTH, 4)), jnp.float32)
  call = Call(Tokens.row(LENGTH), record=frozenset({'probabilities'}))
  recorded = jax.jit(stack)(x, call).recorded
  for (name, seen), pattern in zip(sorted(recorded.items()), stack.patterns(Full()), strict=True):
    assert name.endswith('probabilities')
    np.testing.assert_array_equal(seen[0, 0, 0] > 0, mask_by_loops(pattern))
  assert (mask_by_loops(stack.blocks[0].pattern) != mask_by_loops(stack.blocks[1].pattern)).any()


def test_settings_without_sense_and_long_rows_are_refused():
  with pytest.raises(UserError, match='must be odd'):
    BigBird(64, 4, window=2)
  with pytest.raises(UserError, match=r'has 7 blocks, which .* use at least 8 blocks or Full\(\)'):
    BigBird(64, 10)
  with pytest.raises(UserError, match=r'BigBird\.block must be at least 1'):
    BigBird(64, 0)
  for kernel in (Dense(), Blockwise(4, 4)):
    x = jnp.zeros((1, LENGTH + 1, 1, 4))
    tokens = Tokens.row(LENGTH + 1)
    with pytest.raises(UserError, match='cannot be applied to a row of 31 tokens'):
      kernel(AttentionInputs(DotProduct(x, x, 1.0), x, PATTERNS[0], tokens, tokens))


def test_it_sees_later_keys():
  assert not PATTERNS[0].is_causal(LENGTH)
  assert (Causal() & PATTERNS[0]).is_causal(LENGTH)
  assert (Full() & PATTERNS[0]) == PATTERNS[0]
