"""How the keys move in ring attention, and when it is chosen; see tests/multi_device for its results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import Auto, Blocks, Causal, Full, Global, Logits, Marked, Ring, Window
from t2x.layers.attention.kernels import AttentionInputs, Blockwise, Dense, DotProduct
from t2x.layers.attention.kernels.ring import _route
from t2x.layers.attention.kernels.schedule import tiles_of_blocks
from t2x.layers.patterns.tiles import SKIP, Bounds
from t2x.layers.tokens import RowLayout, Tokens
from t2x.parallel import Activations, Mesh

ROW = RowLayout.CONTIGUOUS


def route(pattern, length=512, block=16, layout=ROW, k_len=None):
  return _route(pattern, length, k_len or length, block, block, layout, True, 4)


def test_causal_work_is_equal_on_all_devices():
  """Every device visits 2 of the 4 pairs of halves in each step; in the first, halves of two of them."""
  found = route(Causal())
  assert (found.zigzag, found.first, found.steps) == (True, 0, 4)
  visited = np.sum(Causal().schedule(512, 512, 16, 16) != SKIP)
  diagonal, later = 2 * (4 * 5 // 2) + 4 * 4, 2 * 4 * 4
  assert found.max_tiles == diagonal
  assert diagonal + 3 * later == visited / 4


@pytest.mark.parametrize(
  ('pattern', 'layout', 'first', 'steps'),
  [
    (Causal() & Window(100), ROW, 0, 2),
    (Window(100), ROW, -1, 3),
    (Window(10, dilation=3), RowLayout.PACKED, -1, 3),
    (Blocks(256), ROW, -1, 3),
    (Full(), ROW, 0, 4),
    (Window(10) | Global(3), ROW, 0, 4),
    (Causal() | Marked('global'), ROW, 0, 4),
    (Causal(), RowLayout.ARBITRARY, 0, 4),
  ],
)
def test_keys_are_sent_as_far_as_the_pattern_reaches(pattern, layout, first, steps):
  found = route(pattern, layout=layout)
  assert (found.zigzag, found.first, found.steps) == (False, first, steps)


def test_keys_of_another_length_are_sent_to_all():
  found = route(Causal(), k_len=256)
  assert (found.zigzag, found.first, found.steps) == (False, 0, 4)


@pytest.mark.parametrize(
  'pattern', [Causal(), Window(20), Window(7, dilation=3), Full(), Blocks(24)]
)
def test_blocks_in_any_order_have_the_tiles_of_the_row(pattern):
  block, length = 8, 128
  schedule = pattern.schedule(length, length, block, block)
  order = np.random.default_rng(0).permutation(length // block)
  q_numbers, k_numbers = order[:4], order[4:]

  @jax.jit
  def tiles(q_numbers, k_numbers):
    def bounds(numbers):
      positions = (numbers[:, None] * block + jnp.arange(block)[None]).reshape(1, -1)
      return Bounds.of(Tokens(positions), block, ROW, numbers, length)

    lists = tiles_of_blocks(pattern, bounds(q_numbers), bounds(k_numbers), 48)
    return [(x.table, len(x.table) if x.count is None else x.count) for x in lists]

  found = np.zeros((4, 12), int)
  for table, count in tiles(q_numbers, k_numbers):
    np.add.at(found, tuple(np.asarray(table[:count]).T), 1)
  np.testing.assert_array_equal(found, schedule[q_numbers][:, k_numbers] != SKIP)


def given(length, rate=0.0, scores=None):
  q = jnp.zeros((1, length, 2, 8))
  tokens, key = Tokens.row(length), jax.random.key(0) if rate else None
  scores = scores or DotProduct(q, q, 0.3)
  return AttentionInputs(scores, q, Causal(), tokens, tokens, dropout_rate=rate, key=key)


@pytest.fixture
def split():
  """Rows are split over four devices, which need not exist."""
  mesh = Mesh(data=1, context=4)
  with in_step(layout=Activations(mesh.abstract(4), mesh.activation_rules)):
    yield


def test_unsupported_calls_are_refused(split):
  assert Ring().supports(given(4096)) is None
  assert Ring().supports(given(4096, 0.1)) is None
  assert Ring().supports(given(512)) is None
  assert 'a multiple of 8 queries, not 4100' in Ring().supports(given(4100))
  assert '1032 queries per device are not a multiple of' in Ring().supports(given(4 * 1032))
  assert 'less than two tiles' in Ring().supports(given(512, 0.1))
  logits = Logits(jnp.zeros((1, 2, 512, 512)))
  assert 'array of logits' in Ring().supports(given(512, scores=logits))
  with pytest.raises(UserError, match='block must be at least 1'):
    Ring(0)


def test_it_is_chosen_where_rows_are_split(split):
  assert Auto().choose(given(4096))[0] == Ring()
  # Few scores, and what it does not support.
  assert Auto().choose(given(512))[0] == Dense()
  kernel, reason = Auto().choose(given(4 * 1032))
  assert kernel == Blockwise()
  assert '1032 queries per device' in reason


def test_it_is_not_chosen_for_whole_rows():
  assert Auto().choose(given(4096))[0] == Blockwise()
  assert 'split over devices' in Ring().supports(given(4096))
