"""Splash attention in Pallas's interpreter against `Dense`, its lowering for TPUs, and what it refuses."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from halved import Halved

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import (
  ALiBi,
  AttentionInputs,
  Auto,
  Blocks,
  Blockwise,
  Causal,
  Dense,
  DotProduct,
  Full,
  Global,
  Logits,
  PositionTerms,
  Prefix,
  Splash,
  Tokens,
  Window,
)
from t2x.layers.tokens import RowLayout

BATCH, LENGTH, HEADS, KV_HEADS, DIM, V_DIM = 2, 256, 4, 2, 8, 16
SCALE, CAP = 0.9, 1.5
# Two by two tiles.
KERNEL = Splash(128, interpret=True)
# Compiling is what takes time here.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


def arrays(rng, q_len=LENGTH, k_len=LENGTH, dtype=jnp.float32):
  shapes = (q_len, HEADS, DIM), (k_len, KV_HEADS, DIM), (k_len, KV_HEADS, V_DIM)
  q, k, v = (jnp.asarray(rng.normal(size=(BATCH, *shape)), dtype) for shape in shapes)
  return q, k, v, jnp.asarray(rng.normal(size=HEADS), jnp.float32)


def packed():
  """Rows of segments that restart their positions and cross tiles, with padding at the end."""
  segments, positions = np.zeros((2, BATCH, LENGTH), int)
  for row, lengths in enumerate([(50, 130, 20, 26), (200, 20, 6)]):
    filled = sum(lengths)
    segments[row, :filled] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    positions[row, :filled] = np.concatenate([np.arange(n) for n in lengths])
  return Tokens(jnp.asarray(positions), jnp.asarray(segments), layout=RowLayout.PACKED)


@functools.partial(jit, static_argnums=(0, 1, 2))
def value_and_gradients(kernel, pattern, cap, q, k, v, sink, q_tokens, k_tokens):
  def loss(q, k, v, sink):
    scores = DotProduct(q, k, SCALE, cap, sink)
    out = kernel(AttentionInputs(scores, v, pattern, q_tokens, k_tokens))
    weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return (out.astype(jnp.float32) * weights).sum(), out

  gradients, out = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(q, k, v, sink)
  return out, gradients


def assert_equals_dense(pattern, numbers, q_tokens, k_tokens, cap=None, tolerance=2e-6):
  """Splash attention and `Dense` in float32, on the same numbers."""
  exact = jax.tree.map(lambda x: x.astype(jnp.float32), numbers)
  actual = value_and_gradients(KERNEL, pattern, cap, *numbers, q_tokens, k_tokens)
  expected = value_and_gradients(Dense(), pattern, cap, *exact, q_tokens, k_tokens)
  assert actual[0].dtype == numbers[0].dtype
  dtypes = [x.dtype for x in jax.tree.leaves(numbers)]
  assert [x.dtype for x in jax.tree.leaves(actual[1])] == dtypes
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    spread = max(1.0, float(jnp.abs(b).max()))
    np.testing.assert_allclose(
      np.asarray(a, np.float32) / spread, np.asarray(b) / spread, atol=tolerance, rtol=0
    )
  return actual


nightly = functools.partial(pytest.param, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
  'pattern',
  [
    Causal() & Window(100),
    ~Causal(),
    nightly(Full()),
    nightly(Causal()),
    nightly(Window(70, dilation=2)),
    nightly(Window(20) & ~Causal()),
  ],
  ids=str,
)
def test_packed_rows_equal_dense(pattern):
  """Also where queries see no key: all of padding, and the last token of each segment with ~Causal()."""
  tokens = packed()
  *numbers, _ = arrays(np.random.default_rng(0))
  out, gradients = assert_equals_dense(pattern, (*numbers, None), tokens, tokens)
  padding = tokens.segments == 0
  assert (out[padding] == 0).all() and (gradients[0][padding] == 0).all()


@pytest.mark.parametrize(
  'pattern',
  [
    Global(3) | (Causal() & Window(9)),
    nightly(Causal() & Blocks(90)),
    nightly(~Window(200)),
    nightly(Causal() | Global(140)),
    # The first tile of queries sees no key.
    nightly(~Global(128) & Causal()),
  ],
  ids=str,
)
def test_contiguous_rows_equal_dense(pattern):
  *numbers, _ = arrays(np.random.default_rng(1))
  tokens = Tokens.row(LENGTH)
  assert_equals_dense(pattern, (*numbers, None), tokens, tokens)


@pytest.mark.parametrize(
  'cap, pattern', [(CAP, Causal()), nightly(None, Full()), nightly(None, ~Causal())], ids=str
)
def test_soft_cap_and_sinks_equal_dense(cap, pattern):
  tokens, numbers = packed(), arrays(np.random.default_rng(2))
  _, gradients = assert_equals_dense(pattern, numbers, tokens, tokens, cap)
  assert (jnp.abs(gradients[3]) > 1e-3).all()


@pytest.mark.parametrize(
  'has_segments', [(True, True), nightly((True, False)), nightly((False, True))], ids=str
)
def test_cross_attention_equals_dense(has_segments):
  """A row of keys is padding only, and queries of one row have a segment that no key has."""
  q_segments = jnp.asarray([[1] * 100 + [0] * 28, [1] * 60 + [2] * 68])
  k_segments = jnp.asarray([[0] * 256, [1] * 200 + [3] * 20 + [0] * 36])
  q_tokens = Tokens.row(128, segments=q_segments if has_segments[0] else None)
  k_tokens = Tokens.row(256, segments=k_segments if has_segments[1] else None)
  *numbers, _ = arrays(np.random.default_rng(3), q_len=128, k_len=256)
  assert_equals_dense(Full(), (*numbers, None), q_tokens, k_tokens)


@pytest.mark.nightly
def test_bfloat16_is_as_near_as_bfloat16_can_be():
  """Gradients of float32 sinks are float32."""
  tokens = packed()
  numbers = arrays(np.random.default_rng(4), dtype=jnp.bfloat16)
  assert_equals_dense(Causal(), numbers, tokens, tokens, CAP, tolerance=2e-2)


def inputs(
  length=1024, heads=12, kv_heads=12, dim=64, pattern=Causal(), dtype=jnp.bfloat16, **settings
):
  """Shapes of a layer of GPT-2."""
  q, k = (jax.ShapeDtypeStruct((4, length, n, dim), dtype) for n in (heads, kv_heads))
  tokens = settings.pop('tokens', Tokens.row(length))
  scores = settings.pop('scores', DotProduct(q, k, dim**-0.5))
  settings = {'q_tokens': tokens, 'k_tokens': tokens, **settings}
  return AttentionInputs(scores, settings.pop('v', k), pattern, **settings)


@pytest.fixture
def on_tpu():
  with in_step(target='tpu'):
    yield


@pytest.mark.parametrize(
  'settings',
  [
    {'dim': 64},
    {'dim': 128, 'kv_heads': 4, 'pattern': Causal() & Window(256)},
    nightly({'dim': 80, 'pattern': Global(16) | Window(64, dilation=2)}),
    nightly({'dim': 192, 'pattern': Full(), 'dtype': jnp.float32}),
  ],
  ids=str,
)
def test_both_passes_are_lowered_for_tpus(on_tpu, settings):
  segments = jax.ShapeDtypeStruct((4, 1024), jnp.int32)
  layer = inputs(**settings)

  def loss(arrays, segments):
    tokens = Tokens.row(1024, segments=segments)
    scores, v = arrays
    call = dataclasses.replace(layer, scores=scores, v=v, q_tokens=tokens, k_tokens=tokens)
    return Auto()(call).astype(jnp.float32).sum()

  def calls(function):
    exported = jax.export.export(jax.jit(function), platforms=['tpu'])
    module = exported((layer.scores, layer.v), segments).mlir_module()
    return re.findall('@tpu_custom_call.*?kernel_name = "splash_mha_([a-z]+)', module)

  assert calls(loss) == ['fwd']
  assert sorted(calls(jax.grad(loss))) == ['dkv', 'dq', 'fwd']


def test_auto_takes_splash_on_tpus_for_long_rows(on_tpu):
  kernel, reason = Auto().choose(inputs())
  assert kernel == Splash()
  assert reason.startswith('1024 x 1024 scores are many; ')
  assert Auto().choose(inputs(length=256))[0] == Dense()
  prefix = Tokens.row(1024, marks={'prefix': jnp.zeros((1, 1024), bool)})
  kernel, reason = Auto().choose(inputs(pattern=Causal() | Prefix(), tokens=prefix))
  assert kernel == Blockwise()
  assert reason.endswith(
    'splash attention does not support (Causal() | Prefix()), which reads Tokens.marks.prefix'
  )


def test_auto_takes_no_splash_elsewhere():
  kernel, reason = Auto().choose(inputs())
  assert kernel == Blockwise() and 'splash' not in reason


POSITIONS = jnp.arange(1024)[None]
BIAS = PositionTerms(ALiBi(1024, num_heads=12, rngs=nnx.Rngs(0)), 0.1)


@pytest.mark.parametrize(
  'settings, reason',
  [
    ({'scores': Logits(jax.ShapeDtypeStruct((4, 12, 1024, 1024), jnp.float32))}, 'dot products'),
    ({'terms': BIAS}, 'does not support position terms, but ALiBi'),
    ({'dropout_rate': 0.1, 'key': jax.random.key(0)}, 'dropout'),
    ({'dtype': jnp.float16}, 'in bfloat16 or in float32, not float16, float16, float16'),
    ({'v': jax.ShapeDtypeStruct((4, 1024, 12, 64), jnp.float32)}, 'bfloat16, bfloat16, float32'),
    ({'length': 1000}, 'a multiple of 128 queries, not 1000'),
    ({'v': jax.ShapeDtypeStruct((4, 200, 12, 64), jnp.bfloat16)}, 'of 128 keys, not 200'),
    ({'pattern': Prefix()}, r'Prefix\(\), which reads Tokens.marks.prefix'),
    ({'tokens': Tokens(POSITIONS)}, r'positions that are known at run time only \(ARBITRARY'),
    (
      {'tokens': Tokens(POSITIONS, layout=RowLayout.PACKED), 'pattern': Global(3)},
      r'Global\(n=3\), because it reads positions .* \(PACKED rows\)',
    ),
    ({'pattern': ~Full()}, r'no query sees a key with ~Full\(\)'),
    ({'pattern': Global(4) & ~Global(5)}, 'no query sees a key'),
    ({'pattern': ~Window(2000)}, 'no query sees a key'),
  ],
  ids=lambda x: x if isinstance(x, str) else '',
)
def test_unsupported_calls_of_splash_are_refused(on_tpu, settings, reason):
  call = inputs(**settings)
  with pytest.raises(UserError, match=reason):
    Splash()(call)
  assert 'Splash' not in str(Auto().choose(call)[0])


def test_positions_do_not_matter_to_a_pattern_that_reads_none(on_tpu):
  assert Splash().supports(inputs(tokens=Tokens(POSITIONS), pattern=Full())) is None


def test_other_platforms_need_the_interpreter():
  assert 'needs a TPU, but the backend is cpu' in Splash().supports(inputs())
  assert KERNEL.supports(inputs()) is None


def test_rows_that_are_split_over_devices_are_refused():
  with in_step(layout=Halved('length')):
    assert 'split over devices' in KERNEL.supports(inputs())


@pytest.mark.parametrize('block', [0, 64, 200])
def test_blocks_that_are_no_multiple_of_the_lanes_are_refused(block):
  with pytest.raises(
    UserError, match=f'Splash.block = {block}: must be a positive multiple of 128'
  ):
    Splash(block)
