"""Attention kernels of NVIDIA GPUs, without a GPU: choice, arguments, lowering, and PallasMHA interpreted on a CPU."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from halved import Halved
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers.attention.kernels import (
  XLA,
  AttentionInputs,
  Auto,
  Blockwise,
  Dense,
  DotProduct,
  PallasMHA,
)
from t2x.layers.patterns.algebra import Causal, Full, Window
from t2x.layers.tokens import RowLayout, Tokens

SCALE = 0.3
LENGTH = 32
INTERPRETED = PallasMHA(16, 16, interpret=True)
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.fixture
def gpu():
  """Makes kernels choose as on an NVIDIA GPU."""
  with in_step(target='gpu'):
    yield


def arrays(seed, length=LENGTH, heads=4, kv_heads=2, dim=16, k_len=None, dtype=jnp.float32):
  rng, k_len = np.random.default_rng(seed), k_len or length
  shapes = (2, length, heads, dim), (2, k_len, kv_heads, dim), (2, k_len, kv_heads, dim)
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def packed(lengths=((9, 12, 7), (20, 3))):
  """Two rows of segments with positions from 0, and padding in the rest of the row."""
  segments, positions = np.zeros((2, len(lengths), LENGTH), np.int32)
  for row, sizes in enumerate(lengths):
    start = 0
    for number, size in enumerate(sizes, 1):
      segments[row, start : start + size] = number
      positions[row, start : start + size] = np.arange(size)
      start += size
  return Tokens(jnp.asarray(positions), jnp.asarray(segments), layout=RowLayout.PACKED)


def padded(counts, length=LENGTH):
  """Rows of one segment with `counts` tokens each, followed by padding."""
  segments = jnp.arange(length)[None] < jnp.asarray(counts)[:, None]
  return Tokens.row(length, segments=segments.astype(jnp.int32), right_padded=True)


def inputs(q, k, v, pattern, q_tokens, k_tokens=None, **settings):
  k_tokens = q_tokens if k_tokens is None else k_tokens
  return AttentionInputs(DotProduct(q, k, SCALE), v, pattern, q_tokens, k_tokens, **settings)


def value_and_gradients(kernel, pattern, arrays, q_tokens, k_tokens=None):
  def loss(q, k, v):
    out = kernel(inputs(q, k, v, pattern, q_tokens, k_tokens))
    weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return (out.astype(jnp.float32) * weights).sum(), out

  gradients, out = jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*arrays)
  return out, *gradients


def assert_equal_dense(kernel, pattern, arrays, q_tokens, k_tokens=None, atol=2e-5):
  actual = value_and_gradients(kernel, pattern, arrays, q_tokens, k_tokens)
  exact = [x.astype(jnp.float32) for x in arrays]
  expected = value_and_gradients(Dense(), pattern, exact, q_tokens, k_tokens)
  for a, b in zip(actual, expected, strict=True):
    spread = max(1.0, float(jnp.abs(b).max()))
    np.testing.assert_allclose(np.asarray(a, np.float32) / spread, b / spread, atol=atol, rtol=0)
  return actual


@pytest.mark.parametrize(('pattern', 'kv_heads'), [(Full(), 4), (Causal(), 1)], ids=str)
def test_pallas_mha_equals_dense_on_packed_rows_with_padding(pattern, kv_heads):
  tokens = packed()
  out, dq, dk, dv = assert_equal_dense(INTERPRETED, pattern, arrays(0, kv_heads=kv_heads), tokens)
  padding = np.asarray(tokens.segments) == 0
  for array in (out, dq, dk, dv):
    assert not np.asarray(array)[padding].any()
    assert np.asarray(array)[~padding].any()


def test_pallas_mha_equals_dense_on_plain_rows():
  assert_equal_dense(INTERPRETED, Full(), arrays(1), Tokens.row(LENGTH))
  assert_equal_dense(PallasMHA(32, 16, interpret=True), Causal(), arrays(1), Tokens.row(LENGTH))


def test_a_row_of_padding_gives_zeros():
  out = value_and_gradients(INTERPRETED, Causal(), arrays(2), packed(((), (20,))))
  assert all(np.isfinite(np.asarray(array)).all() for array in out)
  assert not any(np.asarray(array)[0].any() for array in out)


def test_unsupported_calls_of_pallas_mha_are_refused(gpu):
  q, k, v = arrays(3, dtype=jnp.bfloat16)
  tokens, kernel = packed(), PallasMHA(16, 16)
  assert kernel.supports(inputs(q, k, v, Causal(), tokens)) is None
  assert 'not float32' in kernel.supports(inputs(*arrays(3), Causal(), tokens))
  assert 'Full and Causal' in kernel.supports(inputs(q, k, v, Causal() & Window(4), tokens))
  # Segments of queries and of keys of another sequence differ.
  assert 'packed rows' in kernel.supports(inputs(q, k, v, Full(), tokens, tokens.as_source()))
  row = padded([20, 5])
  assert 'packed rows' in kernel.supports(inputs(q, k, v, Full(), row, padded([7, 30])))
  assert '128 divides' in PallasMHA().supports(inputs(q, k, v, Full(), tokens))
  q, k, v = arrays(3, dim=24, dtype=jnp.bfloat16)
  assert 'head_dim' in kernel.supports(inputs(q, k, v, Full(), tokens))
  q, k, v = arrays(3, k_len=16, dtype=jnp.bfloat16)
  row = Tokens.row(16)
  assert 'equal numbers' in kernel.supports(inputs(q, k, v, Full(), Tokens.row(LENGTH), row))
  with pytest.raises(UserError, match='power of two'):
    PallasMHA(48)


@pytest.mark.parametrize('axis', ['batch', 'length', 'heads'])
def test_pallas_mha_refuses_arrays_that_are_split_over_devices(gpu, axis):
  call = inputs(*arrays(3, dtype=jnp.bfloat16), Causal(), packed())
  with in_step(layout=Halved(axis)):
    assert 'split over devices' in PallasMHA(16, 16).supports(call)


def test_auto_chooses_by_rows_on_a_gpu(gpu):
  q, k, v = arrays(4, length=1024, dim=64, dtype=jnp.bfloat16)
  segments = jnp.ones((2, 1024), jnp.int32)
  several = Tokens(segments, segments, layout=RowLayout.PACKED)

  def choice(pattern, tokens, **settings):
    return Auto().choose(inputs(q, k, v, pattern, tokens, **settings))

  assert choice(Causal(), Tokens.row(1024))[0] == XLA('cudnn')
  assert choice(Full(), padded([3, 1024], 1024))[0] == XLA('cudnn')
  kernel, reason = choice(Causal(), several)
  assert kernel == PallasMHA()
  assert '1024 x 1024' in reason and 'packed rows' in reason
  kernel, reason = choice(Causal() & Window(64), several)
  assert kernel == Blockwise()
  assert 'cuDNN is not used with packed rows' in reason and 'PallasMHA supports Full' in reason
  dropout = {'dropout_rate': 0.1, 'key': jax.random.key(0)}
  assert choice(Causal(), several, **dropout)[0] == Blockwise()
  # A row whose padding is not stated is not assumed to have it at the end.
  assert choice(Full(), Tokens.row(1024, segments=segments))[0] == Blockwise()


@pytest.mark.parametrize(
  ('length', 'settings', 'kernel'),
  [
    (128, {}, Dense()),
    (256, {}, PallasMHA()),
    (256, {'dropout_rate': 0.1, 'key': jax.random.key(0)}, Dense()),
    (1024, {}, PallasMHA()),
  ],
)
def test_short_packed_rows_on_a_gpu_are_dense_where_that_is_faster(gpu, length, settings, kernel):
  q, k, v = arrays(4, length=length, dim=64, dtype=jnp.bfloat16)
  segments = jnp.ones((2, length), jnp.int32)
  tokens = Tokens(segments, segments, layout=RowLayout.PACKED)
  assert Auto().choose(inputs(q, k, v, Causal(), tokens, **settings))[0] == kernel


def nan_at_padding(x, count):
  if count is None:
    return x
  valid = jnp.arange(x.shape[1])[None] < count[:, None]
  return jnp.where(valid[:, :, None, None], x, jnp.nan)


@jax.custom_vjp
def nan_gradients_at_padding(x, count):
  return x


nan_gradients_at_padding.defvjp(
  lambda x, count: (x, count), lambda count, gradient: (nan_at_padding(gradient, count), None)
)


@pytest.fixture
def fake_cudnn(gpu, monkeypatch):
  """Replaces cuDNN by XLA's implementation with the same arguments; what it leaves at padding is NaN."""
  attend, calls = jax.nn.dot_product_attention, []

  def replaced(q, k, v, *, implementation, **settings):
    calls.append(settings)
    q_count = settings.get('query_seq_lengths')
    k_count = settings.get('key_value_seq_lengths')
    for count in (q_count, k_count):
      if count is not None and not isinstance(count, jax.core.Tracer):
        assert (count >= 1).all()
    q = nan_gradients_at_padding(q, q_count)
    k, v = (nan_gradients_at_padding(x, k_count) for x in (k, v))
    return nan_at_padding(attend(q, k, v, implementation='xla', **settings), q_count)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', replaced)
  return calls


@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=str)
def test_cudnn_gets_the_number_of_tokens_of_padded_rows(fake_cudnn, pattern):
  numbers, tokens = arrays(5, dtype=jnp.bfloat16), padded([20, 0])
  actual = assert_equal_dense(XLA('cudnn'), pattern, numbers, tokens, atol=2e-2)
  assert not np.asarray(actual[0], np.float32)[1].any()
  assert {*fake_cudnn[0]} >= {'query_seq_lengths', 'key_value_seq_lengths'}


def test_cudnn_masks_the_padding_of_a_source(fake_cudnn):
  numbers = arrays(6, k_len=24, dtype=jnp.bfloat16)
  for q_tokens, k_tokens in (
    (padded([20, 32]), padded([24, 5], 24)),
    (Tokens.row(LENGTH), padded([24, 0], 24)),
    (padded([20, 32]), Tokens.row(24)),
  ):
    assert_equal_dense(XLA('cudnn'), Full(), numbers, q_tokens, k_tokens, atol=2e-2)


def test_cudnn_refuses_a_window_over_padding(gpu):
  call = inputs(*arrays(7, dtype=jnp.bfloat16), Causal() & Window(4), padded([20, 5]))
  assert 'window and padding' in XLA('cudnn').supports(call)


def lowered(kernel, pattern, tokens, length=1024):
  """The StableHLO of values and gradients for CUDA, with the tokens as arguments of the program."""
  arrays = [jax.ShapeDtypeStruct((2, length, heads, 64), jnp.bfloat16) for heads in (4, 2, 2)]

  def loss(q, k, v, tokens):
    return kernel(inputs(q, k, v, pattern, tokens)).astype(jnp.float32).sum()

  # Since jax 0.12 Pallas asks for the kind of the GPU.
  device = AbstractDevice('NVIDIA H100 80GB HBM3', 132, 'gpu')
  with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays, tokens)
    return traced.lower(lowering_platforms=('cuda',)).as_text()


@pytest.mark.parametrize(
  ('pattern', 'tokens', 'mask'),
  [
    (Full(), Tokens.row(1024), 'NO_MASK'),
    (Causal(), Tokens.row(1024), 'CAUSAL'),
    (Full(), padded([3, 1000], 1024), 'PADDING'),
    (Causal(), padded([3, 1000], 1024), 'PADDING_CAUSAL'),
  ],
)
def test_cudnn_lowers_for_cuda_with_the_mask_of_the_rows(gpu, monkeypatch, pattern, tokens, mask):
  monkeypatch.setattr(cudnn, 'check_cudnn_version', lambda: 91000)
  monkeypatch.setattr(cudnn, 'check_compute_capability', lambda _: True)
  text = lowered(Auto(), pattern, tokens)
  calls = re.findall(r'@(__cudnn\$\w+)\(([^)]*)\).*?backend_config = "(.*?)"[,}]', text)
  assert [name for name, *_ in calls] == ['__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward']
  for (_, operands, config), plain in zip(calls, (3, 6), strict=True):
    config = json.loads(config.replace('\\22', '"'))['cudnn_fmha_backend_config']
    assert config['mask_type'] == mask
    assert config['fmha_scale'] == pytest.approx(SCALE)
    assert len(operands.split(',')) == plain + 2 * mask.startswith('PADDING')


@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=str)
def test_pallas_mha_lowers_for_cuda(gpu, pattern):
  segments = jnp.ones((2, 1024), jnp.int32)
  text = lowered(Auto(), pattern, Tokens(segments, segments, layout=RowLayout.PACKED))
  assert {*re.findall(r'mha_\w+', text)} >= {'mha_forward', 'mha_backward'}
  assert '__gpu$xla.gpu.triton' in text
