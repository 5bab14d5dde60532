"""Reads of parameters whose gradients are summed in float32, and the scalars that stay float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  FixupWiring,
  LearnedGrid,
  LearnedPositions,
  Linear,
  PatchEmbedding,
  PlusAlpha,
  RandomScores,
  Result,
  ReZero,
  T5Bias,
  TokenEmbedding,
  Tokens,
  ones,
)
from t2x.layers.dtypes import broadcast, gather

TABLE = jax.random.normal(jax.random.key(0), (7, 3))
IDS = jax.random.randint(jax.random.key(1), (4, 50), 0, 7)
WEIGHTS = jax.random.normal(jax.random.key(2), (4, 50, 3))


def bfloat16(tree):
  return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)


def gradient(read, parameters):
  """The gradient of the sum of what `read` returns: each element counts how often it was read."""
  return jax.jit(jax.grad(lambda p: read(p).astype(jnp.float32).sum()))(parameters)


def layers():
  """Layers in bfloat16, each with a call that reads one parameter at 4,800 places."""
  rows, zeros = (4, 1200), jnp.zeros((4, 1200, 8), jnp.bfloat16)
  places = jnp.zeros(rows, jnp.int32)
  rngs = nnx.Rngs(0)
  tokens = TokenEmbedding(8, vocab_size=5, num_types=2, rngs=rngs)
  positions = LearnedPositions(8, max_length=1200, rngs=rngs)
  linear = Linear((8,), (8,), (None, 'embed'), init=ones(), rngs=rngs)
  scores = RandomScores(2, 4, max_length=3, rngs=rngs)
  patches = PatchEmbedding(8, patch_size=1, channels=1, rngs=rngs)
  grid = LearnedGrid(8, height=1, width=1, rngs=rngs)
  every, images = jnp.zeros((4800, 1, 8), jnp.bfloat16), jnp.zeros((4800, 1, 1, 1), jnp.bfloat16)
  yield 'tokens', tokens, lambda m: m(places)[0], lambda m: m.table[0]
  yield 'types', tokens, lambda m: m(places, types=places + 1)[0], lambda m: m.types[1]
  yield 'type 0', tokens, lambda m: m(places)[0], lambda m: m.types[0]
  yield 'positions', positions, lambda m: m.embed(zeros, Tokens(places)), lambda m: m.table[0]
  yield (
    'shared positions',
    positions,
    lambda m: m.embed(every, Tokens(jnp.zeros((1, 1), jnp.int32))),
    lambda m: m.table[0],
  )
  yield 'bias', linear, lambda m: m(zeros), lambda m: m.bias[...]
  yield (
    'scores',
    scores,
    lambda m: m.pair_scores(None, jnp.zeros((1, 60), jnp.int32), jnp.zeros((1, 80), jnp.int32)),
    lambda m: m.table[:, 0, 0],
  )
  yield 'class token', patches, lambda m: m(images)[0], lambda m: m.class_token[...]
  yield (
    'grid',
    grid,
    lambda m: m.embed(jnp.zeros((4800, 2, 8), jnp.bfloat16), Tokens.row(2, grid=(1, 1))),
    lambda m: m.table[1],
  )


CASES = list(layers())


@pytest.mark.parametrize(
  ('layer', 'call', 'read'), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_bfloat16_parameter_read_4800_times_counts_all_of_them(layer, call, read):
  found = read(gradient(call, bfloat16(layer)))
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found.astype(jnp.float32), 4800.0)


def test_gradients_are_rounded_once():
  ids = jnp.zeros(1024 + 3, jnp.int32)
  for read in (lambda t: gather(t, ids), lambda t: broadcast(t[0], (*ids.shape, 3), t.dtype)):
    found = gradient(read, bfloat16(TABLE))[0]
    np.testing.assert_array_equal(found, jnp.full(3, 1027, jnp.bfloat16))


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_rows_are_those_of_plain_indexing(dtype):
  table = TABLE.astype(dtype)
  np.testing.assert_array_equal(gather(table, IDS), table[IDS])
  columns = gather(table, IDS % 3, axis=1)
  np.testing.assert_array_equal(columns, table[:, IDS % 3])
  np.testing.assert_array_equal(gather(table, IDS, IDS % 3), table[IDS, IDS % 3])
  assert gather(table, IDS).dtype == dtype


def through(transform):
  """The gradient of a weighted sum of rows, with the lookup inside of a JAX transformation."""

  def of(read):
    def total(table):
      return (read(table, IDS) * WEIGHTS).sum()

    def scanned(table):
      def add(total, one):
        ids, weights = one
        return total + (read(table, ids) * weights).sum(), None

      return jax.lax.scan(jax.checkpoint(add), 0.0, (IDS, WEIGHTS))[0]

    if transform == 'vmap':
      return jax.vmap(jax.grad(total))(jnp.stack([TABLE, -TABLE]))
    if transform == 'scan and remat':
      return jax.jit(jax.grad(scanned))(TABLE)
    return (jax.jit if transform == 'jit' else lambda f: f)(jax.grad(total))(TABLE)

  return of


@pytest.mark.parametrize('transform', ['none', 'jit', 'vmap', 'scan and remat'])
def test_float32_gradients_are_those_of_plain_indexing(transform):
  run = through(transform)
  np.testing.assert_array_equal(run(gather), run(lambda table, ids: table[ids]))


def test_an_index_beyond_the_table_is_nan_and_adds_to_no_row():
  ids = jnp.asarray([1, 7])
  rows = gather(TABLE, ids, mode='fill')
  assert jnp.isnan(rows[1]).all()
  np.testing.assert_array_equal(rows[0], TABLE[1])
  found = gradient(lambda table: jnp.nan_to_num(gather(table, ids, mode='fill')), TABLE)
  np.testing.assert_array_equal(found, jnp.zeros_like(TABLE).at[1].set(1.0))


def kept(module):
  flat, _ = jax.tree.flatten(module, is_leaf=lambda x: isinstance(x, nnx.Variable))
  return {variable.get_metadata()['keep_float32'] for variable in flat}


def test_scalars_and_the_table_on_the_scores_stay_float32():
  rngs = nnx.Rngs(0)
  for module in (
    ReZero(8, rngs=rngs),
    FixupWiring(8, rngs=rngs),
    PlusAlpha(rngs=rngs),
    T5Bias(8, num_heads=2, bidirectional=True, rngs=rngs),
  ):
    assert kept(module) == {True}, type(module).__name__
  assert kept(TokenEmbedding(8, vocab_size=5, rngs=rngs)) == {False}


@pytest.mark.parametrize('wiring', [ReZero, FixupWiring])
def test_float32_scalars_act_unrounded_and_keep_the_stream_bfloat16(wiring):
  module = wiring(8, rngs=nnx.Rngs(0))
  name = 'alpha' if wiring is ReZero else 'scale'
  x, y = jnp.zeros((2, 1200, 8), jnp.bfloat16), jnp.full((2, 1200, 8), 3.0, jnp.bfloat16)

  def run(module):
    return module(x, lambda _: Result(y)).x

  # 3 * 1.0035 rounds to 3.015625; with the scalar rounded first to 1.0 it would be 3.
  getattr(module, name)[...] = jnp.asarray(1.0035)
  assert run(module).dtype == jnp.bfloat16
  assert float(run(module)[0, 0, 0]) == 3.015625
  assert float(getattr(gradient(run, module), name)[...]) == y.size * 3.0
