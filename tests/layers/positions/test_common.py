"""Position encodings against their formulas and their promises."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.layers import (
  ALiBi,
  GridRoPE,
  LearnedGrid,
  LearnedPositions,
  NoPositions,
  RoPE,
  Sinusoidal,
  SinusoidalGrid,
  T5Bias,
  Tokens,
  zeros,
)
from t2x.layers.tokens import rows_at

POSITIONS = jnp.asarray([[0, 1, 2, 3, 9], [5, 0, 1, 100, 3]])


def at(positions):
  return Tokens(jnp.asarray(positions))


def patches(rows, columns):
  return Tokens.row(1 + rows * columns, grid=(rows, columns), num_extra=1)


def scores(encoding, q_positions, k_positions):
  return encoding.scores(None, None, at(q_positions), at(k_positions), scale=1.0)


def test_no_positions_change_nothing():
  encoding = NoPositions(8, rngs=nnx.Rngs(0))
  x = jnp.ones((2, 5, 8))
  heads = jnp.ones((2, 5, 2, 4))
  assert encoding.embed(x, at(POSITIONS)) is x
  assert encoding.rotate(heads, heads, at(POSITIONS), at(POSITIONS)) == (heads, heads)
  assert not encoding.hooks and encoding.max_length is None


@pytest.mark.parametrize('interleaved', [True, False])
@pytest.mark.parametrize('shift', [0, 1])
def test_sinusoids_are_their_formula(interleaved, shift, compared):
  encoding = Sinusoidal(8, interleaved=interleaved, exponent_shift=shift, rngs=nnx.Rngs(0))
  expected = np.zeros((2, 5, 8))
  for row in range(2):
    for i, position in enumerate(np.asarray(POSITIONS[row])):
      for j in range(4):
        angle = position / 10000.0 ** (j / (4 - shift))
        sin, cos = (2 * j, 2 * j + 1) if interleaved else (j, 4 + j)
        expected[row, i, [sin, cos]] = math.sin(angle), math.cos(angle)
  table = encoding.embed(jnp.zeros((2, 5, 8)), at(POSITIONS))
  compared('sinusoidal positions', 'NumPy, float64', table, expected)


def test_sinusoids_with_an_offset_match_later_positions():
  later = Sinusoidal(8, offset=2, rngs=nnx.Rngs(0)).embed(
    jnp.zeros((1, 3, 8)), at(jnp.arange(3)[None])
  )
  table = Sinusoidal(8, rngs=nnx.Rngs(0)).embed(jnp.zeros((1, 5, 8)), at(jnp.arange(5)[None]))
  np.testing.assert_array_equal(later, table[:, 2:])


def test_sinusoids_of_an_odd_width_are_an_error():
  with pytest.raises(UserError, match='even'):
    Sinusoidal(7, rngs=nnx.Rngs(0))


def test_learned_positions_are_rows_after_the_offset(compared):
  encoding = LearnedPositions(8, max_length=101, offset=2, rngs=nnx.Rngs(0))
  table = np.asarray(encoding.table[...])
  assert table.shape == (103, 8)
  x = jnp.ones((2, 5, 8))
  y, expected = encoding.embed(x, at(POSITIONS)), 1.0 + table[POSITIONS + 2]
  compared('learned positions', 'NumPy, rows of the table', y, expected, rtol=1e-6, atol=0)


def test_sequence_longer_than_learned_positions_is_an_error():
  encoding = LearnedPositions(8, max_length=4, rngs=nnx.Rngs(0))
  encoding.embed(jnp.ones((1, 4, 8)), at(jnp.arange(4)[None]))
  with pytest.raises(UserError, match=r'5 tokens is longer than LearnedPositions.max_length = 4'):
    jax.jit(lambda x: encoding.embed(x, at(jnp.arange(5)[None])))(jnp.ones((1, 5, 8)))


def test_a_position_beyond_the_learned_table_is_never_its_last_row():
  encoding = LearnedPositions(8, max_length=4, offset=2, rngs=nnx.Rngs(0))
  x, tokens = jnp.zeros((1, 2, 8)), at([[3, 4]])
  with pytest.raises(UserError, match=r'index 6 is beyond the 6 rows set by LearnedPositions'):
    encoding.embed(x, tokens)
  out = jax.jit(encoding.embed)(x, tokens)
  assert jnp.isfinite(out[0, 0]).all() and jnp.isnan(out[0, 1]).all()


def test_a_constant_index_inside_a_traced_function_is_checked():
  table, fits, beyond = jnp.eye(4), jnp.asarray([2, 3]), jnp.asarray([3, 4])
  rows = jax.jit(lambda table: rows_at(table, fits, 'Part.size'))(table)
  np.testing.assert_array_equal(rows, table[2:])
  with pytest.raises(UserError, match=r'index 4 is beyond the 4 rows set by Part\.size'):
    jax.jit(lambda table: rows_at(table, beyond, 'Part.size'))(table)


def rotate(encoding, x, positions):
  """One vector [head_dim] at each of `positions`: [positions, head_dim]."""
  positions = jnp.asarray(positions)[None]
  many = jnp.broadcast_to(x, (1, positions.shape[1], 1, x.shape[0]))
  return jax.jit(encoding.rotate)(many, many, at(positions), at(positions))[0][0, :, 0]


@pytest.mark.parametrize('interleaved', [True, False])
@pytest.mark.parametrize('fraction', [1.0, 0.5])
def test_rope_depends_on_distance_only(interleaved, fraction):
  encoding = RoPE(16, interleaved=interleaved, fraction=fraction, rngs=nnx.Rngs(0))
  q, k = jax.random.normal(jax.random.key(0), (2, 16))
  at = np.asarray([0, 1, 5, 40, 200])
  for distance in (0, 7):
    scores = (rotate(encoding, q, at + distance) * rotate(encoding, k, at)).sum(-1)
    np.testing.assert_allclose(scores, scores[0], atol=2e-4)
  assert not np.allclose(rotate(encoding, q, [0])[0] @ k, rotate(encoding, q, [3])[0] @ k)


def test_rope_turns_pairs_by_its_angles(compared):
  encoding = RoPE(8, base=100.0, rngs=nnx.Rngs(0))
  x = np.asarray([1.0, 2.0, 3.0, 4.0])
  turned = rotate(encoding, jnp.asarray(x, jnp.float32), [3])[0]
  expected = np.zeros(4)
  for pair, angle in ((0, 3.0), (1, 3.0 / 10.0)):
    z = complex(x[pair], x[pair + 2]) * complex(math.cos(angle), math.sin(angle))
    expected[[pair, pair + 2]] = z.real, z.imag
  compared('RoPE', 'NumPy, complex numbers', turned, expected, atol=1e-6)


@pytest.mark.parametrize('fraction', [1.0, 0.5])
def test_interleaved_rope_is_half_split_rope_of_permuted_features(fraction):
  size = int(16 * fraction)
  order = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2), np.arange(size, 16)])
  x = jax.random.normal(jax.random.key(0), (16,))
  at = [0, 1, 17]
  interleaved = RoPE(16, interleaved=True, fraction=fraction, rngs=nnx.Rngs(0))
  half_split = RoPE(16, interleaved=False, fraction=fraction, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(
    rotate(interleaved, x, at)[:, order], rotate(half_split, x[order], at), atol=1e-6
  )


def test_partial_rope_leaves_the_other_features():
  encoding = RoPE(16, fraction=0.25, rngs=nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(0), (16,))
  turned = rotate(encoding, x, [7])[0]
  np.testing.assert_array_equal(turned[4:], x[4:])
  assert (jnp.abs(turned[:4] - x[:4]) > 1e-6).all()
  with pytest.raises(UserError, match=r'RoPE.fraction = 0.2 rotates 3 of 16'):
    rotate(RoPE(16, fraction=0.2, rngs=nnx.Rngs(0)), x, [7])


def test_rope_keeps_the_type_and_is_precise_far_out():
  encoding = RoPE(16, rngs=nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(0), (16,))
  far = rotate(encoding, x.astype(jnp.bfloat16), [100_000])
  assert far.dtype == jnp.bfloat16
  exact = rotate(encoding, x.astype(jnp.bfloat16).astype(jnp.float32), [100_000])
  np.testing.assert_array_equal(far, exact.astype(jnp.bfloat16))


def t5_bucket(distance, bidirectional, num_buckets, max_distance):
  """The bucket of one distance, by T5's rule (Mesh TensorFlow's code, one number at a time)."""
  bucket, n = 0, -distance
  if bidirectional:
    num_buckets //= 2
    bucket = num_buckets if n < 0 else 0
    n = abs(n)
  else:
    n = max(n, 0)
  exact = num_buckets // 2
  if n < exact:
    return bucket + n
  steps = np.log(np.float32(n) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
  return bucket + min(exact + int(steps * np.float32(num_buckets - exact)), num_buckets - 1)


@pytest.mark.parametrize('bidirectional', [True, False])
@pytest.mark.parametrize(('num_buckets', 'max_distance'), [(32, 128), (64, 256), (8, 20)])
def test_t5_buckets_match_t5(bidirectional, num_buckets, max_distance):
  encoding = T5Bias(
    8,
    num_heads=2,
    num_buckets=num_buckets,
    max_distance=max_distance,
    bidirectional=bidirectional,
    init=zeros(),
    rngs=nnx.Rngs(0),
  )
  distances = np.arange(-700, 701)
  expected = [t5_bucket(d, bidirectional, num_buckets, max_distance) for d in distances]
  np.testing.assert_array_equal(encoding.bucket(jnp.asarray(distances)), expected)


def test_t5_buckets_at_tabulated_distances():
  encoding = T5Bias(8, num_heads=2, bidirectional=True, rngs=nnx.Rngs(0))
  known = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -127: 15, -5000: 15, 1: 17, 8: 24, 128: 31}
  assert encoding.bucket(jnp.asarray(list(known))).tolist() == list(known.values())


def test_t5_bias_reads_the_table_by_head_and_bucket(compared):
  encoding = T5Bias(8, num_heads=3, bidirectional=False, rngs=nnx.Rngs(0))
  table = np.asarray(encoding.table[...])
  bias = np.asarray(scores(encoding, POSITIONS, POSITIONS[:1, :3]))
  assert bias.shape == (2, 3, 5, 3) and encoding.hooks == {'scores'}
  expected = np.zeros_like(bias)
  for row, i, j in np.ndindex(2, 5, 3):
    bucket = t5_bucket(int(POSITIONS[0, j] - POSITIONS[row, i]), False, 32, 128)
    expected[row, :, i, j] = table[bucket]
  compared('T5 bias', 'NumPy, one bucket at a time', bias, expected, atol=0)


@given(
  num_buckets=st.integers(2, 16).map(lambda n: 2 * n),
  extra=st.integers(1, 200),
  bidirectional=st.booleans(),
)
@settings(max_examples=12)
def test_t5_buckets_grow_with_distance_and_stay_in_the_table(num_buckets, extra, bidirectional):
  encoding = T5Bias(
    8,
    num_heads=1,
    num_buckets=num_buckets,
    max_distance=num_buckets + extra,
    bidirectional=bidirectional,
    init=zeros(),
    rngs=nnx.Rngs(0),
  )
  buckets = np.asarray(encoding.bucket(-jnp.arange(400)))
  assert (np.diff(buckets) >= 0).all() and buckets[0] == 0
  assert buckets[-1] == (num_buckets // 2 if bidirectional else num_buckets) - 1


@pytest.mark.parametrize(
  ('num_heads', 'slopes'),
  [
    (1, [2**-8]),
    (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
    (8, [2.0**-i for i in range(1, 9)]),
    # Of 8 heads, then every other one of 16.
    (12, [2.0**-i for i in range(1, 9)] + [2.0**-i for i in (0.5, 1.5, 2.5, 3.5)]),
  ],
)
def test_alibi_has_the_published_slopes(num_heads, slopes):
  encoding = ALiBi(8, num_heads=num_heads, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(encoding.slopes, slopes, rtol=1e-6)


def test_alibi_falls_with_distance_on_both_sides(compared):
  encoding = ALiBi(8, num_heads=4, rngs=nnx.Rngs(0))
  bias = scores(encoding, POSITIONS, POSITIONS[:1])
  distance = np.abs(np.asarray(POSITIONS)[:, :, None] - np.asarray(POSITIONS)[:1, None, :])
  slopes = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])
  expected = -slopes[:, None, None] * distance[:, None]
  compared('ALiBi', 'NumPy, float64', bias, expected, rtol=1e-6, atol=0)


def test_learned_grid_adds_its_rows_on_the_trained_grid():
  grid = LearnedGrid(8, height=2, width=3, rngs=nnx.Rngs(0))
  x = jnp.ones((2, 7, 8))
  np.testing.assert_allclose(
    grid.embed(x, patches(2, 3)), 1.0 + jnp.stack([grid.table[...]] * 2), rtol=1e-6
  )


def test_learned_grid_interpolates_a_slope_to_a_slope():
  grid = LearnedGrid(2, height=8, width=8, rngs=nnx.Rngs(0))
  rows, columns = np.indices((8, 8)).reshape(2, -1)
  grid.table[...] = jnp.asarray([[7.0, 7.0], *np.stack([rows, columns], -1)], jnp.float32)
  table = grid.embed(jnp.zeros((1, 1 + 16 * 8, 2)), patches(16, 8))[0]
  np.testing.assert_array_equal(table[0], 7.0)
  # Away from the borders, pixel centres of the finer grid lie at (i + 1/2) / 2 - 1/2.
  finer = table[1:].reshape(16, 8, 2)[4:12]
  np.testing.assert_allclose(
    finer[..., 0], np.tile(np.arange(4, 12)[:, None] / 2 - 0.25, 8), atol=1e-4
  )
  np.testing.assert_allclose(finer[..., 1], np.tile(np.arange(8.0), (8, 1)), atol=1e-4)


@pytest.mark.parametrize('shift', [0, 1])
def test_sinusoidal_grid_is_its_formula(shift):
  grid = SinusoidalGrid(12, exponent_shift=shift, rngs=nnx.Rngs(0))
  table = grid.embed(jnp.zeros((1, 7, 12)), patches(2, 3))[0]
  table = np.asarray(table)
  np.testing.assert_array_equal(table[0], 0.0)
  for row, column, j in np.ndindex(2, 3, 3):
    omega = 10000.0 ** (-j / (3 - shift))
    expected = [f(at * omega) for at in (column, row) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(table[1 + 3 * row + column, j::3], expected, atol=1e-6)


def test_tokens_that_do_not_fill_the_grid_are_an_error():
  for grid in (
    LearnedGrid(8, height=2, width=2, rngs=nnx.Rngs(0)),
    SinusoidalGrid(8, rngs=nnx.Rngs(0)),
  ):
    with pytest.raises(UserError, match='num_extra'):
      grid.embed(jnp.ones((1, 4, 8)), patches(2, 2))
    with pytest.raises(UserError, match='needs a grid of rows and columns'):
      grid.embed(jnp.ones((1, 4, 8)), Tokens.row(4))


def test_rotations_of_a_grid_need_quarters_of_a_head_and_a_grid():
  encoding = GridRoPE(8, rngs=nnx.Rngs(0))
  q = jnp.ones((1, 5, 2, 4))
  with pytest.raises(UserError, match='make head_dim a multiple of 4'):
    encoding.rotate(q[..., :2], q[..., :2], patches(2, 2), patches(2, 2))
  with pytest.raises(UserError, match='needs a grid of rows and columns'):
    encoding.rotate(q, q, Tokens.row(5), Tokens.row(5))


def test_the_centres_of_patches_of_a_finer_grid_have_the_angles_of_those_of_a_coarse_one():
  """The centre of each of 2 x 2 patches is that of the middle one of 3 x 3 finer patches; the class token stays."""
  encoding = GridRoPE(8, rngs=nnx.Rngs(0))
  ones = jnp.ones((1, 37, 1, 8))
  coarse, fine = (
    np.asarray(encoding.rotate(ones[:, : 1 + n * n], ones[:, : 1 + n * n], t, t)[0])[0, :, 0]
    for n, t in ((2, patches(2, 2)), (6, patches(6, 6)))
  )
  np.testing.assert_array_equal(fine[0], 1.0)
  middle = fine[1:].reshape(6, 6, 8)[1::3, 1::3].reshape(4, 8)
  np.testing.assert_allclose(coarse[1:], middle, atol=1e-6)
