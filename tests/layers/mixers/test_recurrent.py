"""Recurrent layers: packed rows, gradients of the loop, norms, dropout, caches. tests/parity compares with torch.nn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding, double, moved
from flax import nnx
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.base.step import plain_operations
from t2x.layers import (
  Causal,
  ElmanCell,
  Full,
  GRUCell,
  LayerNorm,
  LSTMCell,
  Plain,
  Recurrent,
  Tokens,
  Window,
)
from t2x.layers.building import building
from t2x.layers.mixers.cells import run
from t2x.models import SublayerBlock

part = functools.partial
WIDTH, LENGTH = 6, 9
CELLS = {
  'Elman': ElmanCell,
  'GRU': GRUCell,
  'LSTM': LSTMCell,
  'LSTM with norms': part(LSTMCell, norm=LayerNorm),
}
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(2, LENGTH, WIDTH)), jnp.float32)
WEIGHTS = rng.normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
# Padding within the rows, and at their ends.
SEGMENTS = np.asarray([[1, 1, 0, 1, 2, 2, 2, 0, 0], [1, 2, 2, 2, 0, 2, 3, 3, 3]])
# The places of the segments of three tokens, of which the first has padding inside.
PIECES = np.asarray([0, 0, 1])[:, None], np.asarray([[0, 1, 3], [4, 5, 6], [6, 7, 8]])
apply = jax.jit(applied, static_argnames='pattern')


def layer(pattern=Causal(), **settings):
  with building(pattern=pattern):
    return moved(Recurrent(WIDTH, rngs=nnx.Rngs(0), **settings))


def packed_tokens():
  return Tokens(jnp.zeros((2, LENGTH), jnp.int32), jnp.asarray(SEGMENTS))


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
@pytest.mark.parametrize('name', CELLS)
def test_segments_of_packed_rows_equal_separate_rows(name, pattern):
  own = layer(pattern, cell=CELLS[name])
  packed, _ = apply(own, X, tokens=packed_tokens(), pattern=pattern)
  separate, _ = apply(own, X[PIECES], pattern=pattern)
  np.testing.assert_allclose(packed[PIECES], separate, atol=1e-6)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def in_numpy(name, cell, x):
  """The outputs h of a cell for one row, by the equations of its docstring."""
  kernel, bias, state = (
    double(p) for p in (cell.inputs.kernel, cell.inputs.bias, cell.state.kernel)
  )
  h = c = np.zeros(cell.state_dim)
  outputs = []
  for token in x:
    z, r = np.einsum('d,dgs->gs', token, kernel) + bias, np.einsum('d,dgs->gs', h, state)
    if name == 'Elman':
      h = np.tanh(z[0] + r[0])
    elif name == 'GRU':
      reset, update = sigmoid(z[:2] + r[:2])
      n = np.tanh(z[2] + reset * (r[2] + double(cell.reset_bias)))
      h = (1 - update) * n + update * h
    else:
      i, f, o = sigmoid((z + r)[[0, 1, 3]])
      c = f * c + i * np.tanh(z[2] + r[2])
      h = o * np.tanh(c)
    outputs.append(h)
  return np.array(outputs)


@pytest.mark.parametrize('name', ['Elman', 'GRU', 'LSTM'])
def test_a_layer_equals_the_equations_of_its_cell(name):
  for pattern in (Causal(), Full()):
    own = layer(pattern, cell=CELLS[name])
    found, _ = apply(own, X, pattern=pattern)
    for x, row in zip(np.asarray(X, np.float64), found, strict=True):
      expected = in_numpy(name, own.cell, x)
      if pattern == Full():
        backward = in_numpy(name, own.backward, x[::-1])[::-1]
        expected = np.concatenate([expected, backward], axis=1)
      np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('name', CELLS)
def test_the_gradient_of_the_loop_is_that_of_the_plain_loop(name, reverse):
  cell = moved(CELLS[name](WIDTH, rngs=nnx.Rngs(0)))
  state = tuple(
    jnp.asarray(rng.normal(size=(2, WIDTH)), jnp.float32) for _ in range(cell.num_vectors)
  )
  first = tuple(jnp.asarray(WEIGHTS) * 0.3 / (n + 1) for n in range(cell.num_vectors))
  factor = jnp.asarray(rng.integers(0, 3, (2, WIDTH)), jnp.float32)
  is_token = jnp.asarray(SEGMENTS != 0)
  starts = jnp.asarray(rng.integers(0, 2, (2, LENGTH)) > 0) & is_token

  def loss(cell, x, state, first):
    settings = {'starts': starts, 'is_token': is_token, 'first': first, 'factor': factor}
    outputs, end = run(cell, x, state, reverse=reverse, num_outputs=cell.num_vectors, **settings)
    weighted = sum((a * WEIGHTS).sum() * (n + 1) for n, a in enumerate(outputs))
    return weighted + sum(jnp.square(a).sum() for a in end)

  def gradient(is_plain):
    def of(*arrays):
      if not is_plain:
        return jax.value_and_grad(loss, (0, 1, 2, 3))(*arrays)
      with plain_operations():
        return jax.value_and_grad(loss, (0, 1, 2, 3))(*arrays)

    return jax.jit(of)(cell, jnp.asarray(X), state, first)

  for found, expected in zip(*map(jax.tree.leaves, map(gradient, (False, True))), strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def layer_norm(x, norm):
  mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  scale, bias = (np.asarray(p[...], np.float64) for p in (norm.scale, norm.bias))
  return (x - mean) / np.sqrt(variance + norm.epsilon) * scale + bias


def test_norms_of_gates_and_memory_equal_those_of_the_paper(compared):
  own = layer(cell=CELLS['LSTM with norms'])
  y, _ = applied(own, X, pattern=Causal())
  cell, h, c = own.cell, np.zeros((2, WIDTH)), np.zeros((2, WIDTH))
  inputs, state = (
    np.asarray(p.kernel[...], np.float64).reshape(WIDTH, -1) for p in (cell.inputs, cell.state)
  )
  for step in range(LENGTH):
    z = layer_norm(np.float64(X[:, step]) @ inputs, cell.input_norm)
    i, f, g, o = np.split(z + layer_norm(h @ state, cell.state_norm), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(layer_norm(c, cell.output_norm))
    compared(None, 'NumPy, float64', y[:, step], h)
  assert cell.inputs.bias is None


@pytest.mark.parametrize('rate', ['input_dropout', 'state_dropout'])
def test_dropout_has_one_mask_for_all_steps(rate):
  own = layer(cell=ElmanCell, **{rate: 0.5})
  row = jnp.ones((1, LENGTH, WIDTH))
  key = jax.random.split(jax.random.key(3), 1)

  def output(x, key=None):
    return applied(own, x, pattern=Causal(), key=key)[0]

  assert not np.allclose(output(row, key), output(row))
  u, w = own.cell.state.kernel[...][:, 0], own.cell.inputs.kernel[...][:, 0]
  # The mask is a diagonal matrix in h_t = tanh(x_t M W + b + h_{t-1} M U): the same in all steps.
  found = np.arctanh(np.float64(output(row, key)[0]))
  states = np.tanh(found)
  added = found - np.asarray(own.cell.inputs.bias[...][0])
  if rate == 'input_dropout':
    inputs = added[1:] - states[:-1] @ np.asarray(u)
    masked = np.linalg.solve(np.asarray(w, np.float64).T, inputs.T).T
  else:
    inputs = added[1:] - np.ones(WIDTH) @ np.asarray(w)
    masked = np.linalg.solve(np.asarray(u, np.float64).T, inputs.T).T / states[:-1]
  np.testing.assert_allclose(masked, masked[:1].repeat(LENGTH - 1, 0), atol=1e-2)
  assert set(np.round(masked[0])) == {0.0, 2.0}


@pytest.mark.parametrize('name', CELLS)
def test_decoding_token_by_token_equals_the_forward_pass(name):
  block = part(SublayerBlock, sublayers={'': part(Recurrent, cell=CELLS[name])}, wiring=Plain)
  check_decoding(moved(lm(WIDTH, vocab_size=9, blocks=[block])(rngs=nnx.Rngs(0))))


def test_a_block_with_its_own_pattern_in_an_encoder_has_one_direction():
  with building(pattern=Full()):
    block = SublayerBlock(WIDTH, sublayers={'mixer': Recurrent}, pattern=Causal(), rngs=nnx.Rngs(0))
  assert block.mixer.backward is None


def test_unsupported_patterns_are_refused():
  with (
    building(pattern=Window(3)),
    pytest.raises(UserError, match='does not support the pattern Window'),
  ):
    Recurrent(WIDTH, rngs=nnx.Rngs(0))
  with building(pattern=Full()), pytest.raises(UserError, match='d_model = 5 is odd'):
    Recurrent(5, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='was built for the pattern Causal'):
    applied(layer(), X, pattern=Full())
  with pytest.raises(UserError, match='cannot decode token by token'):
    layer(Full()).init_cache(2, 4)
