"""Soft cap and sinks: `Dense` and `Blockwise` against NumPy, and what other kernels refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  XLA,
  ALiBi,
  AttentionInputs,
  Auto,
  Blockwise,
  Causal,
  Dense,
  DotProduct,
  Full,
  Logits,
  PositionTerms,
  ShawPositions,
  Tokens,
  Window,
)

SCALE, CAP, BATCH, LENGTH, HEADS, KV_HEADS, SIZE = 0.9, 1.5, 2, 11, 4, 2, 6
SEGMENTS = np.asarray([[1] * 6 + [2] * 5, [1] * 8 + [0] * 3])
TOKENS = Tokens.row(LENGTH, segments=jnp.asarray(SEGMENTS))
OPTIONS = {'cap': (CAP, False), 'sink': (None, True), 'cap_and_sink': (CAP, True)}
KERNELS = [Dense(), Blockwise(4, 3), Blockwise(11, 11)]
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


def arrays(dtype=jnp.float32):
  rng = np.random.default_rng(0)
  heads = HEADS, KV_HEADS, KV_HEADS
  q, k, v = (jnp.asarray(rng.normal(size=(BATCH, LENGTH, n, SIZE)), dtype) for n in heads)
  return q, k, v, jnp.asarray(rng.normal(size=HEADS), jnp.float32)


def inputs(q, k, v, sink=None, cap=None, pattern=Causal(), tokens=TOKENS, terms=None):
  return AttentionInputs(DotProduct(q, k, SCALE, cap, sink), v, pattern, tokens, tokens, terms)


def oracle(q, k, v, sink, cap, pattern, bias=0.0):
  """The formula in float64: softmax over the keys and the sink, whose value is zero."""
  q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
  mask = pattern.mask(LENGTH, LENGTH) & (SEGMENTS[:, :, None] == SEGMENTS[:, None, :])
  mask &= (SEGMENTS != 0)[:, None, :]
  bias = np.broadcast_to(bias, (BATCH, HEADS, LENGTH, LENGTH))
  out = np.zeros(q.shape)
  for b, h, i in np.ndindex(BATCH, HEADS, LENGTH):
    keys, group = np.flatnonzero(mask[b, i]), h // (HEADS // KV_HEADS)
    scores = SCALE * k[b, keys, group] @ q[b, i, h]
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    weights = np.exp(scores + bias[b, h, i, keys])
    total = weights.sum() + (0.0 if sink is None else np.exp(float(sink[h])))
    if len(keys):
      out[b, i, h] = weights / total @ v[b, keys, group]
  return out


@pytest.mark.parametrize('option', OPTIONS)
@pytest.mark.parametrize('kernel', KERNELS, ids=str)
@pytest.mark.parametrize('pattern', [Full(), Causal() & Window(4), ~Causal()], ids=str)
def test_soft_cap_and_sinks_are_their_formula(kernel, pattern, option):
  cap, has_sink = OPTIONS[option]
  q, k, v, sink = arrays()
  sink = sink if has_sink else None
  out = jit(kernel)(inputs(q, k, v, sink, cap, pattern))
  np.testing.assert_allclose(out, oracle(q, k, v, sink, cap, pattern), atol=2e-6)


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
def test_position_terms_are_added_after_the_cap(kernel):
  q, k, v, sink = arrays()
  encoding = ALiBi(8, num_heads=HEADS, rngs=nnx.Rngs(0))
  out = jit(kernel)(inputs(q, k, v, sink, CAP, terms=PositionTerms(encoding, SCALE)))
  distance = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
  bias = -encoding.slopes[:, None, None] * distance
  np.testing.assert_allclose(out, oracle(q, k, v, sink, CAP, Causal(), bias), atol=2e-6)


def gradients(kernel, pattern, option, dtype=jnp.float32):
  cap, has_sink = OPTIONS[option]
  q, k, v, sink = arrays(dtype)
  tokens = TOKENS

  def loss(q, k, v, sink):
    out = kernel(inputs(q, k, v, sink if has_sink else None, cap, pattern, tokens))
    return (jnp.sin(out.astype(jnp.float32)) * jnp.arange(out.size).reshape(out.shape)).sum()

  return jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, v, sink)


@pytest.mark.parametrize('option', OPTIONS)
@pytest.mark.parametrize('pattern', [Full(), Causal() & Window(4), ~Causal()], ids=str)
def test_gradients_of_blockwise_match_dense(pattern, option):
  expected = gradients(Dense(), pattern, option)
  actual = gradients(Blockwise(4, 3), pattern, option)
  assert (jnp.abs(expected[3]) > 1e-3).all() == OPTIONS[option][1]
  for a, b in zip(actual, expected, strict=True):
    np.testing.assert_allclose(
      a / jnp.abs(b).max(initial=1.0), b / jnp.abs(b).max(initial=1.0), atol=2e-6
    )


def test_gradients_of_dense_are_finite_differences():
  """The sink's gradient, from the loss of the oracle in float64."""
  q, k, v, sink = arrays()
  weights = np.arange(q.size).reshape(q.shape)

  def loss(sink):
    return (np.sin(oracle(q, k, v, sink, CAP, Causal())) * weights).sum()

  sink = np.asarray(sink, np.float64)
  steps = 1e-5 * np.eye(HEADS)
  expected = [(loss(sink + step) - loss(sink - step)) / 2e-5 for step in steps]
  found = gradients(Dense(), Causal(), 'cap_and_sink')[3]
  np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_bfloat16_is_close():
  q, k, v, sink = arrays(jnp.bfloat16)
  for kernel in KERNELS:
    out = jit(kernel)(inputs(q, k, v, sink, CAP))
    assert out.dtype == jnp.bfloat16
    expected = oracle(q, k, v, sink, CAP, Causal())
    np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=2e-2)


def test_blockwise_dropout_with_a_sink_has_the_gradient_of_its_own_mask():
  """Directional derivative of the sinks, by finite differences of the kernel in float64."""
  with jax.enable_x64(True):
    q, k, v, sink = (jnp.asarray(np.asarray(a), jnp.float64) for a in arrays())

    def loss(sink):
      call = AttentionInputs(
        DotProduct(q, k, SCALE, None, sink),
        v,
        Causal(),
        Tokens.row(LENGTH),
        Tokens.row(LENGTH),
        dropout_rate=0.3,
        key=jax.random.key(0),
      )
      return jnp.sin(Blockwise(4, 3)(call)).sum()

    step = 1e-4 * jnp.arange(1.0, HEADS + 1)
    difference = (loss(sink + step) - loss(sink - step)) / 2
    np.testing.assert_allclose(jax.grad(loss)(sink) @ step, difference, rtol=1e-5)


@pytest.mark.parametrize(
  ('kernel', 'scores', 'reason'),
  [
    (XLA(), {'soft_cap': CAP}, 'soft cap'),
    (XLA(), {'sink': jnp.zeros(HEADS)}, 'sinks'),
    (XLA(), 'logits', 'array of logits'),
    (Blockwise(), 'logits', 'array of logits'),
  ],
)
def test_kernels_refuse_scores_that_they_cannot_compute(kernel, scores, reason):
  q, k, v, _ = arrays()
  logits = Logits(jnp.zeros((1, HEADS, LENGTH, LENGTH)))
  scores = logits if scores == 'logits' else DotProduct(q, k, SCALE, **scores)
  call = AttentionInputs(scores, v, Causal(), TOKENS, TOKENS)
  assert reason in kernel.supports(call)
  with pytest.raises(UserError, match=reason):
    kernel(call)
  assert Auto(dense_scores=1).choose(call)[0] == (Dense() if scores is logits else Blockwise())


def test_supports_reads_shapes_only():
  shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays()]
  for kernel in (Dense(), Blockwise(), Auto()):
    assert kernel.supports(inputs(*shapes, CAP)) is None
  assert XLA().supports(inputs(*shapes, CAP)) is not None


def test_auto_takes_dense_for_long_rows_where_blockwise_cannot():
  q, k, v, _ = arrays()
  terms = PositionTerms(
    ShawPositions(8, head_dim=SIZE, rngs=nnx.Rngs(0)),
    SCALE,
    jnp.zeros((BATCH, HEADS, LENGTH, LENGTH)),
  )
  kernel, reason = Auto(dense_scores=1).choose(inputs(q, k, v, terms=terms))
  assert kernel == Dense() and 'ShawPositions, which reads the queries' in reason


def test_dense_logits_equal_the_dot_products_that_they_are():
  q, k, v, _ = arrays()
  repeated = jnp.repeat(k, HEADS // KV_HEADS, axis=2)
  logits = Logits(SCALE * jnp.einsum('bqhd,bkhd->bhqk', q, repeated))
  out = Dense()(AttentionInputs(logits, v, Causal(), TOKENS, TOKENS))
  np.testing.assert_allclose(out, Dense()(inputs(q, k, v)), atol=1e-6)
