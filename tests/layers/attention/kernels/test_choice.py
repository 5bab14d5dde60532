"""Which kernel is taken, what it is asked for, and what it refuses."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers.attention.kernels import (
  XLA,
  AttentionInputs,
  Auto,
  Blockwise,
  Dense,
  DotProduct,
  PositionTerms,
)
from t2x.layers.patterns.algebra import Causal, Full, Window
from t2x.layers.positions.common import ALiBi
from t2x.layers.tokens import Tokens

SCALE = 0.3
BIAS = PositionTerms(ALiBi(8, num_heads=4, rngs=nnx.Rngs(0)), SCALE)


def arrays(rng, q_len=21, k_len=21, dtype=jnp.float32):
  shapes = (2, q_len, 4, 8), (2, k_len, 2, 8), (2, k_len, 2, 8)
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def inputs(q, k, v, *, pattern=Causal(), q_tokens=None, k_tokens=None, **settings):
  q_tokens, k_tokens = q_tokens or Tokens.row(q.shape[1]), k_tokens or Tokens.row(k.shape[1])
  return AttentionInputs(DotProduct(q, k, SCALE), v, pattern, q_tokens, k_tokens, **settings)


def test_cudnn_is_called_with_the_mask_of_the_pattern(monkeypatch):
  """The arguments for cuDNN, honoured by XLA's own implementation, equal dense."""
  q, k, v = arrays(np.random.default_rng(12), dtype=jnp.bfloat16)
  attend = jax.nn.dot_product_attention
  asked = []

  def xla(*args, implementation, **kwargs):
    asked.append(implementation)
    return attend(*args, implementation='xla', **kwargs)

  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax.nn, 'dot_product_attention', xla)
  for pattern in (
    Full(),
    Causal(),
    Causal() & Window(3),
    Window(3) & Causal(),
    Causal() & Causal() & Window(3),
    Window(5) & (Window(3) & Causal()),
  ):
    call = inputs(q, k, v, pattern=pattern)
    assert Auto().choose(call)[0] == XLA('cudnn')
    out, expected = (f(call) for f in (XLA('cudnn'), Dense()))
    np.testing.assert_allclose(
      np.asarray(out, np.float32), np.asarray(expected, np.float32), atol=2e-2
    )
  assert asked == ['cudnn'] * 6


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'pattern': Window(3)}, 'not Window'),
    ({'q_tokens': Tokens.row(21, segments=jnp.ones((2, 21), int))}, 'segments'),
    ({'terms': BIAS}, 'bias'),
    ({'dropout_rate': 0.1, 'key': jax.random.key(0)}, 'dropout'),
  ],
  ids=['pattern', 'segments', 'bias', 'dropout'],
)
def test_unsupported_calls_of_cudnn_are_refused(monkeypatch, changes, reason):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  q, k, v = arrays(np.random.default_rng(13), dtype=jnp.bfloat16)
  with pytest.raises(UserError, match=reason):
    XLA('cudnn')(inputs(q, k, v, **changes))


@pytest.mark.parametrize(
  'kernel, changes, reason',
  [
    (XLA(), {'dropout_rate': 0.1, 'key': jax.random.key(0)}, 'dropout'),
    (XLA(), {'v': jnp.zeros((2, 21, 2, 3))}, 'values have 3'),
    (XLA('cudnn'), {}, 'NVIDIA GPU'),
    (Dense(), {'k': jnp.zeros((2, 21, 3, 8)), 'v': jnp.zeros((2, 21, 3, 8))}, 'do not divide'),
    (Blockwise(), {'k': jnp.zeros((2, 21, 3, 8)), 'v': jnp.zeros((2, 21, 3, 8))}, 'do not divide'),
  ],
)
def test_unsupported_calls_of_a_kernel_are_refused(kernel, changes, reason):
  q, k, v = arrays(np.random.default_rng(15))
  with pytest.raises(UserError, match=reason):
    kernel(inputs(**{'q': q, 'k': k, 'v': v, **changes}))


def test_blocks_without_sense_are_refused():
  with pytest.raises(UserError, match='q_block and k_block must be at least 1'):
    Blockwise(0, 8)


def test_auto_takes_dense_for_short_rows_and_blockwise_for_long_ones():
  def choose(q_len, k_len):
    q = jax.ShapeDtypeStruct((1, q_len, 4, 8), jnp.float32)
    k = jax.ShapeDtypeStruct((1, k_len, 4, 8), jnp.float32)
    return Auto().choose(inputs(q, k, k))[0]

  assert choose(256, 256) == Dense()
  assert choose(1, 100_000) == Dense()
  assert choose(8192, 8192) == Blockwise()


def test_auto_equals_its_choice_and_logs_it_once(caplog):
  q, k, v = arrays(np.random.default_rng(16), q_len=23, k_len=19)
  with caplog.at_level(logging.DEBUG, logger='t2x'):
    outs = [Auto()(inputs(q, k, v)) for _ in range(3)]
  np.testing.assert_array_equal(outs[-1], Dense()(inputs(q, k, v)))
  assert [r.getMessage() for r in caplog.records if '23 x 19' in r.getMessage()] == [
    'attention kernel Dense(): 23 x 19 scores are few; cuDNN needs an NVIDIA GPU, but the backend is cpu'
  ]
