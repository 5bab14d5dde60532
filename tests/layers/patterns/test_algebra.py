"""Patterns: the predicate, the schedule of tiles that must agree with it, and the dense mask."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_patterns import marked, patterns, small, true_verdicts

from t2x.base.errors import UserError
from t2x.layers.attention.kernels.base import attention_mask, check_reads
from t2x.layers.patterns.algebra import (
  Causal,
  Full,
  Global,
  Marked,
  Pattern,
  Prefix,
  Window,
)
from t2x.layers.patterns.big_bird import BigBird
from t2x.layers.patterns.ordered import Hidden
from t2x.layers.patterns.sparse import Blocks, Fixed, Strided
from t2x.layers.patterns.tiles import FULL, PARTIAL, SKIP, Bounds
from t2x.layers.tokens import RowLayout, Tokens

lengths = st.integers(1, 40)
PATTERNS = (Full, Causal, Prefix, Window, Global, Blocks, Marked, Hidden, Strided, Fixed, BigBird)


def assert_never_wrong(schedule, mask, q_block, k_block):
  truth = true_verdicts(mask, q_block, k_block)
  assert schedule.shape == truth.shape
  assert ((schedule == PARTIAL) | (schedule == truth)).all()


@settings(max_examples=300)
@given(patterns, lengths, lengths, small, small, st.integers(0, 2**32))
def test_schedule_never_skips_an_allowed_pair_nor_calls_a_forbidden_one_full(
  pattern, q_len, k_len, q_block, k_block, seed
):
  rng = np.random.default_rng(seed)
  mask = pattern.mask(marked(rng, q_len), marked(rng, k_len))
  schedule = pattern.schedule(q_len, k_len, q_block, k_block)
  assert_never_wrong(schedule, mask, q_block, k_block)
  schedule = pattern.schedule(q_len, k_len, q_block, k_block, has_marks=False)
  assert_never_wrong(schedule, pattern.mask(q_len, k_len), q_block, k_block)


@settings(max_examples=200)
@given(patterns, st.lists(small, min_size=1, max_size=5), small, small)
def test_schedule_of_a_packed_row_holds_within_segments(pattern, sizes, q_block, k_block):
  positions = np.concatenate([np.arange(n) for n in sizes])
  segments = np.repeat(np.arange(len(sizes)), sizes)
  tokens = Tokens(positions[None])
  allowed = pattern.mask(tokens, tokens)
  same = segments[:, None] == segments[None, :]
  sizes = len(positions), len(positions), q_block, k_block
  schedule = pattern.schedule(*sizes, layout=RowLayout.PACKED, has_marks=False)
  skipped = true_verdicts(allowed & same, q_block, k_block) != SKIP
  assert not (skipped & (schedule == SKIP)).any()
  holes = true_verdicts(allowed | ~same, q_block, k_block) != FULL
  assert not (holes & (schedule == FULL)).any()


@settings(max_examples=200)
@given(
  st.one_of(
    st.builds(Window, small, st.integers(1, 4)),
    st.builds(lambda n: Causal() & Window(n), small),
    st.builds(lambda n: Causal() & ~Window(n, 2), small),
    st.builds(Blocks, small, st.integers(0, 4)),
    st.builds(Global, small),
    st.sampled_from([Full(), Causal(), ~Causal()]),
  ),
  lengths,
  lengths,
  small,
  small,
)
def test_schedule_is_exact_for_relative_patterns_blocks_and_global(
  pattern, q_len, k_len, q_block, k_block
):
  schedule = pattern.schedule(q_len, k_len, q_block, k_block)
  truth = true_verdicts(pattern.mask(q_len, k_len), q_block, k_block)
  np.testing.assert_array_equal(schedule, truth)


def test_schedule_of_a_long_row_is_cheap():
  schedule = (Causal() & Window(4096)).schedule(2**20, 2**20, 4096, 4096)
  assert schedule.shape == (256, 256)
  assert (schedule != SKIP).sum() == 2 * 256 - 1


def test_predicates_by_hand():
  mask = (Causal() & Window(3)).mask(6, 6)
  assert mask.sum(1).tolist() == [1, 2, 3, 3, 3, 3]
  assert np.flatnonzero((Causal() & Window(3, dilation=2)).mask(8, 8)[7]).tolist() == [3, 5, 7]
  assert np.flatnonzero(Window(2).mask(8, 8)[4]).tolist() == [3, 4, 5]
  assert np.flatnonzero(Blocks(3).mask(8, 8)[4]).tolist() == [3, 4, 5]
  assert np.flatnonzero(Blocks(3, 2).mask(8, 8)[4]).tolist() == [1, 2, 3, 4, 5]
  assert (Causal() | Global(2)).mask(5, 5)[0].all()
  assert np.flatnonzero((~Causal()).mask(4, 4)[1]).tolist() == [2, 3]
  assert Full().mask(2, 3).shape == (2, 3)


@pytest.mark.parametrize(('stride', 'last'), [(4, 1), (5, 3)])
def test_patterns_of_sparse_transformer_equal_their_loops(stride, last, compared):
  """arXiv:1904.10509, section 4.3: the two heads of each factorisation, merged."""
  strided = (Causal() & (Window(stride) | Strided(stride))).mask(17, 17)
  fixed = (Causal() & Fixed(stride, last)).mask(17, 17)
  expected = np.zeros((2, 17, 17))
  for i in range(17):
    for j in range(i + 1):
      summary = stride - last <= j % stride
      expected[0, i, j] = i - j < stride or (i - j) % stride == 0
      expected[1, i, j] = j // stride == i // stride or summary
  masks = np.stack([strided, fixed]).astype(float)
  compared('Sparse Transformer', 'NumPy, loops over pairs', masks, expected, atol=0)


def test_a_prefix_is_visible_to_all_tokens():
  prefix = np.array([[True, True, False, False]])
  mask = (Causal() | Prefix()).mask(4, Tokens(np.arange(4)[None], marks={'prefix': prefix}))
  assert mask[0].tolist() == [True, True, False, False]
  np.testing.assert_array_equal((Causal() | Prefix()).mask(4, 4), Causal().mask(4, 4))


@settings(max_examples=50)
@given(patterns)
def test_patterns_are_values_that_print_as_python(pattern):
  names = {c.__name__: c for c in PATTERNS}
  again = eval(repr(pattern), names)
  assert again == pattern and hash(again) == hash(pattern)


@settings(max_examples=50)
@given(patterns, st.sampled_from([5, 40, 600]))
def test_a_pattern_is_causal_where_its_mask_has_nothing_above_the_diagonal(pattern, length):
  assert pattern.is_causal(length) == (not np.triu(pattern.mask(length, length), 1).any())


@pytest.mark.parametrize(
  ('pattern', 'reads'),
  [
    (Full(), []),
    (Causal() & Window(3), ['positions']),
    (Causal() | Prefix(), ['positions', 'marks.prefix']),
    (~(Blocks(4) & ~Prefix()), ['positions', 'marks.prefix']),
    (Marked('cls') & Prefix(), ['marks.cls', 'marks.prefix']),
  ],
  ids=str,
)
def test_a_pattern_declares_the_fields_it_reads(pattern, reads):
  assert pattern.reads == frozenset(reads)


@settings(max_examples=50)
@given(patterns)
def test_relative_patterns_depend_only_on_the_difference(pattern):
  if pattern.relative:
    q, k = np.arange(20)[:, None], np.arange(20)[None, :]
    shifted = pattern.allows(Tokens(q + 7), Tokens(k + 7))
    np.testing.assert_array_equal(shifted, pattern.allows(Tokens(q), Tokens(k)))


@settings(max_examples=200)
@given(patterns)
def test_offsets_are_what_the_pattern_lets_see(pattern):
  interval = pattern.offsets()
  if interval is None:
    return
  lowest, highest = (
    bound if bound is not None else sign * 99 for bound, sign in zip(interval, (-1, 1), strict=True)
  )
  offset = np.arange(20)[:, None] - np.arange(20)
  np.testing.assert_array_equal(pattern.mask(20, 20), (offset >= lowest) & (offset <= highest))


@pytest.mark.parametrize(
  ('pattern', 'interval'),
  [
    (Causal() & Causal() & Window(256), (0, 255)),
    (Window(256) & (Window(300) & Causal()), (0, 255)),
    (~~(Causal() & Window(8)) & Full(), None),
    (Causal() | Window(3), (-2, None)),
    (~Causal() | Causal(), (None, None)),
    (~Causal() & Causal(), (1, 0)),
    (~(Full() | Window(3)), (1, 0)),
    (~Window(3), None),
    (Window(1, dilation=4), (0, 0)),
    (Window(3, dilation=2) & Causal(), None),
    (Causal() | Marked('global'), None),
  ],
  ids=str,
)
def test_equal_intervals_have_one_form(pattern, interval):
  assert pattern.offsets() == interval


@settings(max_examples=150, deadline=None)
@given(patterns, st.sampled_from([1, 2, 13, 40, 255, 256, 257, 530]))
def test_visible_pairs_match_the_dense_mask(pattern, length):
  assert pattern.visible(length) == np.count_nonzero(pattern.mask(length, length))


@pytest.mark.parametrize(
  'pattern',
  [
    Full(),
    Causal(),
    Prefix(),
    Window(3, dilation=2),
    Global(2),
    Blocks(64, 5),
    Marked('global'),
    Strided(7),
    Fixed(16, 3),
    BigBird(640, 16),
  ],
  ids=str,
)
def test_visible_pairs_of_every_pattern_match_the_dense_mask(pattern):
  for p in (pattern, ~pattern, Causal() & pattern, pattern | Window(5)):
    assert p.visible(600) == np.count_nonzero(p.mask(600, 600))


@pytest.mark.parametrize(
  'pattern',
  [
    Causal() & Fixed(128, 8),
    Fixed(100, 8) | Global(7),
    Causal() & Fixed(1000, 8),
    ~(Blocks(60, 7) & Strided(7)) & Causal(),
    Causal() & (Global(7) | Window(64, dilation=4)),
  ],
  ids=str,
)
def test_visible_pairs_of_long_rows_are_counted_without_enumerating_them(pattern, monkeypatch):
  pairs = 0

  def allows(self, q, k, real=type(pattern).allows):
    nonlocal pairs
    shown = real(self, q, k)
    pairs += np.size(shown) if self is pattern else 0
    return shown

  length = 8192
  expected = sum(
    np.count_nonzero(pattern.allows(Tokens(np.full(1, i)), Tokens(np.arange(length))))
    for i in range(length)
  )
  monkeypatch.setattr(type(pattern), 'allows', allows)
  assert pattern.visible(length) == expected
  assert pairs < length**2 / 3


def test_visible_pairs_that_depend_on_the_data_are_all_pairs():
  assert (Permuted() & Causal()).visible(5) == 25


def test_marked_tokens_see_and_are_visible_to_all_tokens():
  marks = {'global': np.array([[False, True, False, False]])}
  tokens = Tokens(np.arange(4)[None], marks=marks)
  mask = Marked('global').mask(tokens, tokens)
  assert mask[1].all() and mask[:, 1].all()
  assert mask.sum() == 7


class Permuted(Pattern):
  """Sees what comes before in the order of prediction; a pattern of a user."""

  reads = frozenset({'order'})

  def allows(self, q, k):
    return k.order < q.order


def test_absent_fields_and_marks_are_refused_by_name():
  row = Tokens.row(4)
  with pytest.raises(UserError, match=r"reads Tokens\.marks\['global'\], which this batch"):
    check_reads(Window(2) | Marked('global'), row, row)
  with pytest.raises(UserError, match=r'reads Tokens\.order, which this batch'):
    check_reads(Permuted(), row, row)
  ordered = Tokens.row(4, order=jnp.array([[2, 0, 3, 1]]))
  mask = attention_mask(Permuted(), ordered, ordered)
  np.testing.assert_array_equal(mask[0, 0].sum(-1), [2, 0, 3, 1])
  assert not Permuted().is_causal(4)


@settings(max_examples=200)
@given(patterns, lengths, lengths, small, small, st.integers(0, 2**32))
def test_tiles_from_bounds_are_never_wrong_in_any_layout(
  pattern, q_len, k_len, q_block, k_block, seed
):
  rng = np.random.default_rng(seed)
  q, k = marked(rng, q_len), marked(rng, k_len)
  for layout in (RowLayout.CONTIGUOUS, RowLayout.ARBITRARY):
    if layout is RowLayout.ARBITRARY:
      q, k = (
        dataclasses.replace(x, positions=rng.permutation(n)[None])
        for x, n in ((q, q_len), (k, k_len))
      )
    bounds = Bounds.of(q, q_block, layout).as_queries(), Bounds.of(k, k_block, layout).as_keys()
    shape = -(-q_len // q_block), -(-k_len // k_block)
    codes = pattern.tiles(*bounds).codes(1, *shape)[0]
    assert_never_wrong(codes, pattern.mask(q, k), q_block, k_block)


def test_mask_honours_segments_and_padding():
  segments = jnp.array([[1, 1, 2, 2, 0]])
  tokens = Tokens.row(5, segments=segments)
  mask = attention_mask(Causal(), tokens, tokens)
  expected = np.zeros((5, 5), bool)
  for q, k in [(0, 0), (1, 0), (1, 1), (2, 2), (3, 2), (3, 3)]:
    expected[q, k] = True
  np.testing.assert_array_equal(mask[0, 0], expected)


def test_a_mask_with_one_given_side_hides_only_its_padding():
  mask = attention_mask(Full(), Tokens.row(2), Tokens.row(3, segments=jnp.array([[1, 2, 0]])))
  np.testing.assert_array_equal(mask[0, 0], [[True, True, False]] * 2)
  mask = attention_mask(Full(), Tokens.row(2, segments=jnp.array([[1, 0]])), Tokens.row(3))
  np.testing.assert_array_equal(mask[0, 0], [[True] * 3, [False] * 3])


def test_no_mask_where_all_see_all():
  assert attention_mask(Full(), Tokens.row(4), Tokens.row(4)) is None


@pytest.mark.parametrize(
  'build',
  [
    lambda: Window(0),
    lambda: Window(4, 0),
    lambda: Global(0),
    lambda: Blocks(-1),
    lambda: Strided(0),
    lambda: Fixed(4, 0),
  ],
)
def test_sizes_without_sense_are_refused(build):
  with pytest.raises(UserError, match='at least 1'):
    build()


def test_a_pattern_combines_only_with_patterns():
  with pytest.raises(TypeError):
    Causal() & 3
