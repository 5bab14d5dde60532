"""What all mixers share: refusals, dropout, states that do not grow, and costs that grow with the length only."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty, gradient_bytes, moved
from contract_parts import PARTS
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  AttentionFree,
  Blockwise,
  Causal,
  ConvBias,
  FavorPlus,
  FlowAttention,
  Full,
  GatedDeltaNet,
  Global,
  GlobalLocalAttention,
  LinearAttention,
  LocalBias,
  Mamba2,
  NoBias,
  Prefix,
  RowLayout,
  SourceSequence,
  Tokens,
  Window,
)

part = functools.partial
WIDTH, LENGTH = 16, 8
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
run = jax.jit(applied, static_argnames='pattern')


def build(name, **settings):
  mixer = PARTS[name]['build'](WIDTH, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


# Mixers that follow only Full() and Causal(), or only one of them, and another pattern.
OTHER_PATTERNS = {
  'Linformer': Causal(),
  'Nystrom attention': Causal(),
  'ProbSparse attention': Causal(),
  'memory-compressed attention': Window(3),
  'linear attention': Causal() | Prefix(),
  'flow attention': Causal() & Window(3),
  'gated DeltaNet': Full(),
  'Mamba-2': Full(),
  'AFT-simple': Causal() | Prefix(),
  'LSH attention': Causal() & Window(3),
  'Sinkhorn attention': Causal() & Window(3),
  'routing attention': Causal() & Window(3),
}
WITHOUT_CACHE = [
  'ProbSparse attention',
  *('Linformer', 'Nystrom attention', 'global and local attention', 'LSH attention'),
  *('Sinkhorn attention', 'routing attention', 'AFT-local', 'AFT-conv', 'AFT-full'),
]
# Mixers whose rows must be one segment.
WHOLE_ROW = [
  'ProbSparse attention',
  *('Linformer', 'Nystrom attention', 'memory-compressed attention', 'AFT-full'),
  *('Sinkhorn attention', 'routing attention'),
]
SELF_MIXERS = sorted({*OTHER_PATTERNS, *WITHOUT_CACHE, 'lightweight convolution'})


@pytest.mark.parametrize('pattern', [None, Window(3)], ids=['own', 'window'])
@pytest.mark.parametrize('name', OTHER_PATTERNS)
def test_unsupported_patterns_are_refused(name, pattern):
  with pytest.raises(UserError, match='does not support the pattern'):
    applied(build(name), X, pattern=pattern or OTHER_PATTERNS[name])


@pytest.mark.parametrize('name', SELF_MIXERS)
def test_a_source_is_refused(name):
  pattern = Causal() if name in ('gated DeltaNet', 'Mamba-2') else Full()
  with pytest.raises(UserError, match='attends to its own tokens and received a source'):
    applied(build(name), X, pattern=pattern, source=SourceSequence(X, Tokens.row(LENGTH)))


@pytest.mark.parametrize('name', WITHOUT_CACHE)
def test_decoding_without_a_cache_is_refused(name):
  with pytest.raises(UserError, match='cannot decode token by token'):
    build(name).init_cache(2, 8, jnp.float32)


@pytest.mark.parametrize('layout', [RowLayout.PACKED, RowLayout.ARBITRARY])
@pytest.mark.parametrize('name', WHOLE_ROW)
def test_rows_that_may_hold_several_segments_are_refused(name, layout):
  tokens = Tokens(jnp.arange(LENGTH)[None], jnp.ones((1, LENGTH), int), layout=layout)
  with pytest.raises(UserError, match='may hold several segments'):
    applied(build(name), X, tokens=tokens)


@pytest.mark.parametrize('name', WHOLE_ROW)
def test_rows_of_several_segments_are_nan(name):
  """Of rows that are packed in spite of their layout."""
  segments = jnp.asarray([[1] * 4 + [2] * 3 + [0], [3] * 5 + [0] * 3])
  y, _ = run(build(name), X, pattern=Full(), tokens=Tokens.row(LENGTH, segments=segments))
  assert jnp.isnan(y[0]).all() and jnp.isfinite(y[1]).all()


@pytest.mark.parametrize(
  'name',
  [
    name
    for name, subject in PARTS.items()
    if 'dropout_rate' in getattr(subject['build'], 'keywords', ())
  ],
)
def test_dropout_needs_a_key(name):
  dropping, sure = build(name, dropout_rate=0.5), build(name, dropout_rate=0.0)
  x, grid = X, PARTS[name].get('grid')
  if grid is not None:
    x = jnp.concatenate([X, -X], axis=1)[:, : math.prod(grid)]
  tokens = Tokens.row(x.shape[1], grid=grid)
  without, expected = run(dropping, x, tokens=tokens)[0], run(sure, x, tokens=tokens)[0]
  np.testing.assert_array_equal(without, expected)
  one, two = (run(dropping, x, tokens=tokens, key=jax.random.key(seed))[0] for seed in (0, 1))
  assert not np.allclose(one, two) and not np.allclose(one, without)


LINEAR = {
  'linear attention': (part(LinearAttention, num_heads=3, chunk=16), Causal(), 1024),
  'flow attention': (part(FlowAttention, num_heads=3, chunk=16), Causal(), 1024),
  'gated DeltaNet': (part(GatedDeltaNet, num_heads=3, chunk=16), Causal(), 1024),
  'Mamba-2': (part(Mamba2, num_heads=3, head_dim=4, state_dim=4, chunk=16), Causal(), 1024),
  'random features': (
    part(LinearAttention, num_heads=3, chunk=16, features=part(FavorPlus, num_features=16)),
    Causal(),
    1024,
  ),
  'AFT-conv': (part(AttentionFree, bias=part(ConvBias, window=3), num_heads=4), Causal(), 256),
  'AFT-simple': (part(AttentionFree, bias=NoBias), Causal(), 256),
  'AFT-local': (
    part(AttentionFree, bias=part(LocalBias, max_length=512, window=3), num_heads=2),
    Causal(),
    256,
  ),
  'global and local attention': (
    part(GlobalLocalAttention, num_heads=3, kernel=Blockwise(64, 64)),
    Window(32) | Global(1),
    2048,
  ),
}
RARELY = ('AFT-simple', 'AFT-local', 'flow attention', 'random features')


@pytest.mark.parametrize(
  'name',
  [pytest.param(n, marks=pytest.mark.nightly if n in RARELY else ()) for n in LINEAR],
)
def test_memory_is_linear_in_the_length(name):
  """Compiled, not run; 2.2 instead of 4 where the length doubles."""
  build, pattern, length = LINEAR[name]
  mixer = build(12, rngs=nnx.Rngs(0))
  assert gradient_bytes(mixer, 12, 2 * length, pattern) < 2.2 * gradient_bytes(
    mixer, 12, length, pattern
  )


RECURRENT = ('linear attention', 'flow attention', 'gated DeltaNet', 'Mamba-2', 'AFT-simple')


@pytest.mark.parametrize('name', RECURRENT)
def test_the_state_does_not_grow_with_the_slots(name):
  few, many = (build(name).init_cache(3, num_slots, jnp.bfloat16) for num_slots in (8, 4096))
  assert jax.tree.map(jnp.shape, few) == jax.tree.map(jnp.shape, many)
  # Sums are in float32 whatever the dtype of the cache.
  assert any(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(few))


@pytest.mark.parametrize('name', RECURRENT)
def test_padding_anywhere_leaves_the_state_unchanged(name):
  """Rows of 3 and 2 tokens, padded on the right and on the left, then a call of padding in one row."""
  mixer = build(name)
  alone, _ = run(mixer, X[:, :6], pattern=Causal())
  state = empty(mixer, 2, 9)
  prompt = X[:, :4].at[1].set(jnp.roll(X[1, :4], 2, axis=0))
  tokens = Tokens(
    jnp.asarray([[0, 1, 2, 0], [0, 0, 0, 1]]), jnp.asarray([[1, 1, 1, 0], [0, 0, 1, 1]])
  )
  first, state = run(mixer, prompt, pattern=Causal(), tokens=tokens, state=state)
  np.testing.assert_allclose(first[0, :3], alone[0, :3], atol=1e-5)
  np.testing.assert_allclose(first[1, 2:], alone[1, :2], atol=1e-5)
  before = state.cache
  tokens = Tokens(jnp.asarray([[0], [2]]), jnp.asarray([[0], [1]]))
  second, state = run(mixer, X[:, 2:3], pattern=Causal(), tokens=tokens, state=state)
  for leaf, old in zip(jax.tree.leaves(state.cache), jax.tree.leaves(before), strict=True):
    np.testing.assert_array_equal(leaf[0], old[0])
  np.testing.assert_allclose(second[1, 0], alone[1, 2], atol=1e-5)
  for step in (3, 4):
    tokens = Tokens(jnp.full((2, 1), step), jnp.ones((2, 1), int))
    y, state = run(mixer, X[:, step : step + 1], pattern=Causal(), tokens=tokens, state=state)
    np.testing.assert_allclose(y[:, 0], alone[:, step], atol=1e-5)
