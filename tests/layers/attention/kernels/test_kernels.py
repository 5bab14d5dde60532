"""Every kernel against `Dense`, and `Dense` against loops over NumPy numbers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers.attention.kernels import (
  XLA,
  AttentionInputs,
  Blockwise,
  Dense,
  DotProduct,
  PositionTerms,
)
from t2x.layers.attention.kernels.tile_loops import tile_dropout
from t2x.layers.patterns.algebra import Causal, Full, Global, Marked, Prefix, Window, mark_names
from t2x.layers.patterns.sparse import Blocks
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.tokens import RowLayout, Tokens

SCALE = 0.3
LEAVES = [
  Full(),
  Causal(),
  Prefix(),
  Marked('global'),
  Window(5),
  Window(3, dilation=2),
  Global(3),
  Blocks(7),
]
KERNELS = [XLA(), Blockwise(16, 5)]
# Compiling is what takes time here.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


class TableBias(PositionEncoding):
  """A bias with trained numbers, an integer array and a static number, by clipped distance."""

  def __init__(self, heads: int, rngs: nnx.Rngs):
    self.reach = 6
    self.order = nnx.Variable(jnp.arange(2 * self.reach + 1)[::-1])
    self.table = nnx.Param(jax.random.normal(rngs.params(), (heads, 2 * self.reach + 1)))

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    q_pos, k_pos = q_tokens.positions, k_tokens.positions
    distance = jnp.clip(q_pos[:, :, None] - k_pos[:, None, :], -self.reach, self.reach)
    return jnp.moveaxis(self.table[...][:, self.order[...][distance + self.reach]], 0, 1)


class SlopeBias(PositionEncoding):
  """A bias without parameters."""

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    q_pos, k_pos = q_tokens.positions, k_tokens.positions
    near = -jnp.abs(q_pos[:, :, None] - k_pos[:, None, :])[:, None]
    return near * jnp.array([0.5, 0.25, 0.1, 0.05])[None, :, None, None]


def random_pattern(rng, depth=2):
  if depth == 0 or rng.random() < 0.3:
    return LEAVES[rng.integers(len(LEAVES))]
  left, right = random_pattern(rng, depth - 1), random_pattern(rng, depth - 1)
  return (left & right, left | right, ~left)[rng.integers(3)]


def arrays(
  rng, q_len=21, k_len=21, heads=4, kv_heads=2, dim=8, v_dim=8, dtype=jnp.float32, batch=2
):
  shapes = (
    (batch, q_len, heads, dim),
    (batch, k_len, kv_heads, dim),
    (batch, k_len, kv_heads, v_dim),
  )
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def packed(rng, length=21, batch=2):
  """Rows of segments that restart their positions, with padding at the end."""
  segments, positions = np.zeros((2, batch, length), int)
  for row in range(batch):
    start, segment = 0, 1
    while start < length - 3:
      size = min(int(rng.integers(2, 10)), length - 2 - start)
      segments[row, start : start + size] = segment
      positions[row, start : start + size] = np.arange(size)
      start, segment = start + size, segment + 1
  return Tokens(jnp.asarray(positions), jnp.asarray(segments), layout=RowLayout.PACKED)


def marks(rng, share=0.3, length=21):
  """Random marks of two rows."""
  return {name: jnp.asarray(rng.random((2, length)) < share) for name in ('prefix', 'global')}


def inputs(q, k, v, *, pattern=Causal(), q_tokens=None, k_tokens=None, bias=None, **settings):
  """Tokens None: contiguous rows; k_tokens None with q_tokens: the same for both sides."""
  scores = settings.pop('scores', None) or DotProduct(q, k, SCALE)
  terms = None if bias is None else PositionTerms(bias, SCALE)
  k_tokens = (q_tokens or Tokens.row(k.shape[1])) if k_tokens is None else k_tokens
  q_tokens = q_tokens or Tokens.row(q.shape[1])
  return AttentionInputs(scores, v, pattern, q_tokens, k_tokens, terms, **settings)


@functools.partial(jit, static_argnums=(0, 1))
def value_and_gradients(kernel, pattern, q, k, v, bias, q_tokens, k_tokens):
  def loss(q, k, v, bias):
    out = kernel(inputs(q, k, v, pattern=pattern, q_tokens=q_tokens, k_tokens=k_tokens, bias=bias))
    weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return (out.astype(jnp.float32) * weights).sum(), out

  gradients, out = jax.grad(loss, (0, 1, 2, 3), has_aux=True, allow_int=True)(q, k, v, bias)
  floats = [g for g in jax.tree.leaves(gradients) if g.dtype != jax.dtypes.float0]
  return out, floats


@functools.partial(jit, static_argnums=(0, 1))
def attend(kernel, pattern, q, k, v, q_tokens, k_tokens=None, bias=None):
  return kernel(inputs(q, k, v, pattern=pattern, q_tokens=q_tokens, k_tokens=k_tokens, bias=bias))


def assert_agree(kernel, pattern, q, k, v, bias, q_tokens, k_tokens=None, tolerance=2e-5):
  """The kernel and `Dense` in float32, on the same numbers."""
  exact = [x.astype(jnp.float32) for x in (q, k, v)]
  actual = value_and_gradients(kernel, pattern, q, k, v, bias, q_tokens, k_tokens)
  expected = value_and_gradients(Dense(), pattern, *exact, bias, q_tokens, k_tokens)
  assert actual[0].dtype == q.dtype
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    spread = max(1.0, float(jnp.abs(b).max()))
    np.testing.assert_allclose(
      np.asarray(a, np.float32) / spread, np.asarray(b) / spread, atol=tolerance, rtol=0
    )


def oracle(q, k, v, mask, bias=0.0):
  """Loops in float64; mask and bias broadcast to [batch, heads, q_len, k_len]."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  batch, q_len, heads, _ = q.shape
  k_len, groups = k.shape[1], heads // k.shape[2]
  mask = np.broadcast_to(mask, (batch, heads, q_len, k_len))
  bias = np.broadcast_to(np.asarray(bias, np.float64), mask.shape)
  out = np.zeros((batch, q_len, heads, v.shape[-1]))
  for b, h, i in np.ndindex(batch, heads, q_len):
    seen = np.flatnonzero(mask[b, h, i])
    if len(seen):
      scores = [SCALE * q[b, i, h] @ k[b, j, h // groups] + bias[b, h, i, j] for j in seen]
      weights = np.exp(scores - np.max(scores))
      out[b, i, h] = (weights / weights.sum()) @ v[b, seen, h // groups]
  return out


@pytest.mark.parametrize('kernel', [Dense(), XLA(), Blockwise(8, 4)], ids=str)
@pytest.mark.parametrize('pattern', [Full(), Causal() & Window(4), ~Blocks(7)], ids=str)
def test_kernels_equal_the_loops(kernel, pattern):
  rng = np.random.default_rng(0)
  q, k, v = arrays(rng)
  bias, tokens = TableBias(4, nnx.Rngs(0)), packed(rng)
  positions, segments = np.asarray(tokens.positions), np.asarray(tokens.segments)
  mask = pattern.allows(Tokens(positions[:, :, None]), Tokens(positions[:, None, :]))
  mask &= (segments[:, :, None] == segments[:, None, :]) & (segments != 0)[:, None, :]
  expected = oracle(q, k, v, mask[:, None], bias.scores(None, None, tokens, tokens, scale=SCALE))
  out = attend(kernel, pattern, q, k, v, tokens, bias=bias)
  np.testing.assert_allclose(out, expected, atol=2e-6)


@pytest.mark.parametrize('kernel', [*KERNELS, Blockwise(8, 8)], ids=str)
@pytest.mark.parametrize('seed', range(5))
def test_kernels_equal_dense_over_random_patterns(kernel, seed):
  rng = np.random.default_rng(seed)
  pattern = random_pattern(rng)
  tokens = Tokens.row(21, marks=marks(rng) if seed % 2 or mark_names(pattern) else {})
  assert_agree(kernel, pattern, *arrays(rng), None, tokens)


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
@pytest.mark.parametrize(
  'pattern',
  [
    Causal(),
    Causal() & Blocks(3),
    Global(2) | Window(2),
    Causal() | Prefix(),
    Window(2) | Marked('global'),
  ],
  ids=str,
)
def test_kernels_equal_dense_on_packed_rows_with_a_bias(kernel, pattern):
  rng = np.random.default_rng(1)
  tokens = packed(rng)
  tokens = dataclasses.replace(tokens, marks=marks(rng))
  assert_agree(kernel, pattern, *arrays(rng), TableBias(4, nnx.Rngs(1)), tokens)


@pytest.mark.parametrize('pattern', [Causal(), Window(3), Causal() & Window(4)], ids=str)
@pytest.mark.parametrize('order', ['reversed', 'random'])
def test_blockwise_skips_no_tile_where_positions_are_in_another_order(pattern, order):
  """Queries and keys with the same arrays of positions and segments, which are not packed rows."""
  rng = np.random.default_rng(11)
  positions = np.stack([np.arange(21)[::-1]] * 2)
  if order == 'random':
    positions = np.stack([rng.permutation(21) for _ in range(2)])
  tokens = Tokens(jnp.asarray(positions), jnp.ones((2, 21), int))
  assert_agree(Blockwise(8, 4), pattern, *arrays(rng), None, tokens)


@pytest.mark.parametrize('kernel', [Dense(), *KERNELS], ids=str)
@pytest.mark.parametrize('heads', [1, 2, 8])
def test_a_bias_with_another_number_of_heads_is_refused(kernel, heads):
  bias = TableBias(heads, nnx.Rngs(0))
  with pytest.raises(UserError, match=f'scores for {heads} heads, but the attention has 4'):
    attend(kernel, Causal(), *arrays(np.random.default_rng(12)), Tokens.row(21), bias=bias)


@pytest.mark.parametrize('kernel', [Dense(), *KERNELS], ids=str)
def test_a_pattern_that_reads_a_prefix_needs_one(kernel):
  with pytest.raises(UserError, match=r'\(Causal\(\) \| Prefix\(\)\) reads Tokens\.marks'):
    attend(kernel, Causal() | Prefix(), *arrays(np.random.default_rng(13)), Tokens.row(21))


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_kernels_equal_dense_for_cross_attention(kernel):
  rng = np.random.default_rng(2)
  q_tokens = Tokens.row(13, segments=jnp.asarray([[1] * 13, [1] * 9 + [0] * 4]))
  k_tokens = Tokens.row(31, segments=jnp.asarray([[1] * 30 + [0], [1] * 4 + [0] * 27]))
  numbers = arrays(rng, q_len=13, k_len=31, kv_heads=1)
  assert_agree(kernel, Full(), *numbers, SlopeBias(), q_tokens, k_tokens)
  numbers = arrays(rng, q_len=13, k_len=31, kv_heads=4)
  assert_agree(kernel, Causal() | Global(20), *numbers, None, Tokens.row(13), Tokens.row(31))


@pytest.mark.parametrize('kernel', [Dense(), *KERNELS], ids=str)
def test_bfloat16_is_as_near_as_bfloat16_can_be(kernel):
  rng = np.random.default_rng(3)
  numbers, bias = arrays(rng, dtype=jnp.bfloat16), TableBias(4, nnx.Rngs(3))
  assert_agree(kernel, Causal(), *numbers, bias, packed(rng), tolerance=2e-2)


def test_parameters_of_a_bfloat16_bias_get_bfloat16_gradients():
  rng = np.random.default_rng(4)
  bias = jax.tree.map(
    lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, TableBias(4, nnx.Rngs(3))
  )
  numbers = arrays(rng, dtype=jnp.bfloat16)
  _, gradients = value_and_gradients(
    Blockwise(8, 8), Causal(), *numbers, bias, Tokens.row(21), None
  )
  assert all(g.dtype == jnp.bfloat16 and jnp.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize('kernel', [Dense(), *KERNELS], ids=str)
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(kernel):
  numbers = arrays(np.random.default_rng(5))
  pattern = ~Causal() & Window(4)
  out, gradients = value_and_gradients(
    kernel, pattern, *numbers, TableBias(4, nnx.Rngs(0)), Tokens.row(21), None
  )
  assert (out[:, -1] == 0).all() and (out[:, 0] != 0).all()
  assert (gradients[0][:, -1] == 0).all()
  assert all(jnp.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize('kernel', [Dense(), Blockwise(8, 8)], ids=str)
def test_values_may_have_another_size_than_keys(kernel):
  assert_agree(kernel, Causal(), *arrays(np.random.default_rng(6), v_dim=3), None, Tokens.row(21))


@pytest.mark.parametrize('kernel', [Dense(), *KERNELS], ids=str)
@pytest.mark.parametrize(
  'pattern', [Causal(), Global(3) | Window(2), Causal() & Blocks(4)], ids=str
)
def test_packed_equals_unpacked(kernel, pattern):
  """Three examples of seven tokens, in one row and in three."""
  rows = [x.reshape(3, 7, *x.shape[2:]) for x in arrays(np.random.default_rng(7), batch=1)]
  positions, segments = jnp.tile(jnp.arange(7), 3)[None], jnp.arange(3).repeat(7)[None] + 1
  tokens = Tokens(positions, segments, layout=RowLayout.PACKED)
  together = attend(kernel, pattern, *(x.reshape(1, 21, *x.shape[2:]) for x in rows), tokens)
  alone = attend(kernel, pattern, *rows, Tokens.row(7))
  np.testing.assert_allclose(together.reshape(alone.shape), alone, atol=2e-6)


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_decoding_from_a_cache_sees_the_written_keys(kernel):
  """One query at position 11 over 16 slots, of which 12 are written."""
  rng = np.random.default_rng(8)
  q, k, v = arrays(rng, q_len=1, k_len=16)
  q_tokens = Tokens(positions=jnp.full((2, 1), 11), segments=jnp.ones((2, 1), int))
  k_tokens = Tokens.row(16, segments=jnp.asarray([[1] * 12 + [0] * 4] * 2))
  out = attend(kernel, Causal() & Window(9), q, k, v, q_tokens, k_tokens)
  mask = (np.arange(16) <= 11) & (np.arange(16) > 2)
  np.testing.assert_allclose(out, oracle(q, k, v, mask), atol=2e-6)


def test_dropout_of_dense_is_unbiased_and_needs_a_key():
  numbers = arrays(np.random.default_rng(9))

  def dense(**settings):
    return Dense()(inputs(*numbers, **settings))

  keys = jax.random.split(jax.random.key(0), 2000)
  outs = jit(jax.vmap(lambda key: dense(dropout_rate=0.5, key=key)))(keys)
  np.testing.assert_allclose(outs.mean(0), dense(), atol=0.15)
  np.testing.assert_array_equal(dense(dropout_rate=0.5), dense())


def test_blockwise_dropout_is_the_same_in_both_passes():
  q, k, v = arrays(np.random.default_rng(10), q_len=20, k_len=15, kv_heads=4)
  key, rate = jax.random.key(3), 0.4
  tiles = jit(jax.vmap(lambda n: tile_dropout(key, n // 3, n % 3, 1 - rate, (2, 4, 1, 8, 5))))
  kept = tiles(jnp.arange(9)).reshape(3, 3, 2, 4, 8, 5).transpose(2, 3, 0, 4, 1, 5)
  kept = kept.reshape(2, 4, 24, 15)[:, :, :20]

  def reference(q, k, v):
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) * SCALE
    scores = jnp.where(Causal().mask(20, 15), scores, -jnp.inf)
    return jnp.einsum('bhqk,bkhd->bqhd', jax.nn.softmax(scores) * kept, v)

  def blockwise(q, k, v):
    return Blockwise(8, 5)(inputs(q, k, v, dropout_rate=rate, key=key))

  def gradients(attend):
    return jit(jax.grad(lambda *x: (jnp.sin(attend(*x))).sum(), (0, 1, 2)))(q, k, v)

  np.testing.assert_allclose(jit(blockwise)(q, k, v), reference(q, k, v), atol=5e-6)
  for a, b in zip(gradients(blockwise), gradients(reference), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize(
  'pattern, poisoned',
  [
    (Causal(), slice(24, 32)),
    (Window(4), slice(16, 32)),
    (Blocks(8), slice(8, 32)),
    (Causal() & Blocks(16), slice(8, 32)),
  ],
  ids=str,
)
def test_skipped_tiles_are_never_read(pattern, poisoned):
  """NaN keys and values that the first tile of queries does not see leave it finite."""
  q, k, v = arrays(np.random.default_rng(11), q_len=32, k_len=32)
  k, v = k.at[:, poisoned].set(jnp.nan), v.at[:, poisoned].set(jnp.nan)

  assert jnp.isfinite(attend(Blockwise(8, 8), pattern, q, k, v, Tokens.row(32))[:, :8]).all()
  assert jnp.isnan(attend(Dense(), pattern, q, k, v, Tokens.row(32))[:, :8]).any()


def temporary_bytes(kernel, length):
  def loss(q, k, v):
    return kernel(inputs(q, k, v)).sum()

  x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
  compiled = jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def test_memory_of_blockwise_is_linear_in_length():
  short, long = (temporary_bytes(Blockwise(128, 128), length) for length in (2048, 8192))
  dense_short, dense_long = (temporary_bytes(Dense(), length) for length in (2048, 8192))
  assert long < 5 * short
  assert dense_long > 8 * dense_short
  assert long < dense_long / 10


@pytest.mark.parametrize('pattern', [Causal(), Window(3) | Marked('global')], ids=str)
def test_blockwise_under_vmap_scan_and_remat_equals_dense(pattern):
  rng = np.random.default_rng(17)
  (q, k, v), tokens = arrays(rng), Tokens.row(21, marks=marks(rng, 0.1))
  biases = jax.vmap(lambda key: TableBias(4, nnx.Rngs(key)))(jax.random.split(jax.random.key(0), 2))

  def loss(biases, kernel):
    def layer(x, bias):
      return x + kernel(inputs(x, k, v, pattern=pattern, q_tokens=tokens, bias=bias)), None

    def model(x):
      return jax.lax.scan(jax.checkpoint(layer), x, biases)[0]

    return (jax.vmap(model)(jnp.stack([q, 2 * q])) ** 2).sum()

  gradient = jit(jax.value_and_grad(loss, allow_int=True), static_argnums=1)
  for a, b in zip(
    *(jax.tree.leaves(gradient(biases, x)) for x in (Blockwise(8, 8), Dense())), strict=True
  ):
    if a.dtype != jax.dtypes.float0:
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(jax.default_backend() != 'gpu', reason='cuDNN needs an NVIDIA GPU')
@pytest.mark.parametrize('pattern', [Full(), Causal(), Causal() & Window(5)], ids=str)
def test_cudnn_equals_dense(pattern):
  numbers = arrays(np.random.default_rng(14), q_len=64, k_len=64, dim=64, v_dim=64)
  numbers = tuple(x.astype(jnp.bfloat16) for x in numbers)
  assert_agree(XLA('cudnn'), pattern, *numbers, None, Tokens.row(64), tolerance=2e-2)
