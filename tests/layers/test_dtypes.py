"""Reads of parameters whose gradients are summed in float32, and the scalars that stay float32."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from halved import Halved

from t2x.base.step import in_step
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
  dtypes,
  ones,
)
from t2x.layers.attention.projections import Heads
from t2x.layers.dtypes import gather
from t2x.layers.products import broadcast

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
  scores = RandomScores(Heads(8, 2, 2, 4, 4), max_length=3, rngs=rngs)
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
def test_rows_match_plain_indexing(dtype):
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
def test_float32_gradients_match_plain_indexing(transform):
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


@pytest.fixture
def gpu(monkeypatch):
  """Takes the sums for NVIDIA GPUs on this CPU."""
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')


@pytest.mark.parametrize('path', ['one_hot_sum', 'sorted_sum'])
@pytest.mark.parametrize(('mode', 'dtype'), [(None, jnp.float32), ('fill', jnp.bfloat16)])
def test_the_sums_for_gpus_equal_the_scatter(monkeypatch, request, path, mode, dtype):
  rng = np.random.default_rng(0)
  table = jnp.asarray(rng.normal(size=(11, 3, 2)), dtype)
  # Negative, repeated and absent rows, and rows that are out of range on both sides.
  index = jnp.asarray(rng.integers(-25, 15, (4, 50)))
  weights = jnp.asarray(rng.normal(size=(4, 50, 3, 2)), dtype)

  def backward(table):
    return jax.vjp(lambda t: gather(t, index, mode=mode), table)[1](weights)[0]

  expected, calls, chosen = jax.jit(backward)(table), [], getattr(dtypes, path)
  request.getfixturevalue('gpu')
  monkeypatch.setattr(dtypes, path, lambda *args: calls.append(path) or chosen(*args))
  monkeypatch.setattr(dtypes, 'ONE_HOT_ROWS', 11 if path == 'one_hot_sum' else 10)
  actual = jax.jit(lambda table: backward(table))(table)
  assert calls == [path]
  assert actual.dtype == dtype
  np.testing.assert_allclose(
    np.asarray(actual, np.float32), np.asarray(expected, np.float32), rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize(('rows', 'operation'), [(64, 'dot_general'), (5000, 'sort')])
def test_programs_for_gpus_have_no_unsorted_scatter(gpu, rows, operation):
  table = jax.ShapeDtypeStruct((rows, 8), jnp.bfloat16)
  index = jax.ShapeDtypeStruct((4, 50), jnp.int32)
  step = jax.jit(jax.grad(lambda t, i: gather(t, i).astype(jnp.float32).sum())).trace(table, index)
  text = step.lower(lowering_platforms=('cuda',)).as_text()
  assert re.search(rf'stablehlo\.{operation}', text)
  scatters = re.findall(r'stablehlo.scatter".*?indices_are_sorted = (\w+)', text)
  assert scatters == (['true'] if operation == 'sort' else [])
  # In float32 from the first sum on.
  sums = re.findall(r'stablehlo.dot_general.*-> (tensor.*)', text)
  assert sums == ([] if operation == 'sort' else ['tensor<64x8xf32>'])


def test_a_sum_of_ones_on_a_gpu_does_not_stop_at_256(gpu, monkeypatch):
  table, index = jnp.zeros((3, 2), jnp.bfloat16), jnp.zeros(4800, jnp.int32)
  for rows in (3, 2):
    monkeypatch.setattr(dtypes, 'ONE_HOT_ROWS', rows)
    total = gradient(lambda t: gather(t, index), table)
    np.testing.assert_array_equal(np.asarray(total, np.float32), [[4800] * 2, [0] * 2, [0] * 2])


@pytest.mark.parametrize('axis', ['batch', 'looked_up_batch', 'length'])
def test_rows_that_are_split_over_devices_are_not_sorted(gpu, monkeypatch, axis):
  monkeypatch.setattr(dtypes, 'ONE_HOT_ROWS', 0)
  monkeypatch.setattr(dtypes, 'sorted_sum', None)
  with in_step(layout=Halved(axis)):
    jax.grad(lambda t: gather(t, IDS).sum())(TABLE)
