"""Hyper-connections against their formula in NumPy, and the streams of a stack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import check_decoding
from flax import nnx
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Call,
  Causal,
  DynamicHyperConnections,
  HyperConnections,
  LayerNorm,
  MultiHeadAttention,
  PreNorm,
  Result,
  Sinusoidal,
  Tokens,
  initialized,
)
from t2x.models import Block, Stack

WIDTH, LENGTH, STREAMS = 8, 5, 3
KINDS = [HyperConnections, DynamicHyperConnections]
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, LENGTH, STREAMS, WIDTH)), jnp.float32)
WEIGHT = RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32)


def moved(module, scale=0.3):
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: leaf + jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), module
  )


def double(variable):
  return np.asarray(variable[...], np.float64)


def normed(norm, x):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * double(norm.scale) + double(norm.bias)


def by_hand(part, x):
  """Algorithm 2 of the paper, token by token, in float64."""
  result = np.zeros_like(x)
  for index in np.ndindex(*x.shape[:2]):
    h = x[index]
    read, mix, write = double(part.read), np.eye(STREAMS) + double(part.mix), double(part.write)
    if isinstance(part, DynamicHyperConnections):
      g = normed(part.stream_norm, h)
      width, depth = double(part.width_scale), double(part.depth_scale)
      read = read + width * np.tanh(g @ double(part.read_projection))
      mix = mix + width * np.tanh(g @ double(part.mix_projection))
      write = write + depth * np.tanh(g @ double(part.write_projection))
    y = normed(part.norm, read @ h) @ WEIGHT
    result[index] = mix.T @ h + np.outer(write, y)
  return result


@pytest.mark.parametrize('kind', KINDS)
def test_equals_the_algorithm_of_the_paper(kind, compared):
  part = moved(kind(WIDTH, num_streams=STREAMS, rngs=nnx.Rngs(0)))
  y = part(X, lambda h: Result(h @ WEIGHT)).x
  expected = by_hand(part, np.asarray(X, np.float64))
  compared('hyper-connections', 'NumPy, float64', y, expected, rtol=1e-5, atol=1e-5)


def test_positions_of_a_block_are_added_to_each_stream():
  layer = block(functools.partial(HyperConnections, num_streams=STREAMS))
  layer = layer(WIDTH, rngs=nnx.Rngs(0), encoding=functools.partial(Sinusoidal))
  tokens = Tokens.row(LENGTH)
  plain = layer.embed(jnp.zeros((2, LENGTH, WIDTH)), tokens)
  assert np.abs(plain).max() > 0.5
  np.testing.assert_array_equal(layer.embed(X, tokens) - X, (X + plain[:, :, None]) - X)


def block(wiring):
  return functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=16),
    wiring=wiring,
  )


def stack(wiring, **settings):
  settings = {'num_layers': 3, 'rngs': nnx.Rngs(0)} | settings
  return Stack(WIDTH, blocks=[block(wiring)], **settings)


def run(stack, x=X[:, :, 0], **fields):
  return stack(x, Call(Tokens.row(x.shape[1]), Causal(), **fields))


@pytest.mark.parametrize('kind', KINDS)
def test_a_stack_starts_as_pre_norm(kind):
  """The sum of equal streams is a multiple of the stream, and the norm after the stack removes the factor."""
  norm = LayerNorm(WIDTH, epsilon=1e-12, rngs=nnx.Rngs(0))
  ours, plain = (
    run(initialized(lambda rngs, w=wiring: stack(w, rngs=rngs), jax.random.key(0))).x
    for wiring in (kind, PreNorm)
  )
  np.testing.assert_allclose(norm(ours), norm(plain), atol=1e-5)


def test_each_branch_reads_the_next_stream():
  wirings = stack(functools.partial(HyperConnections, num_streams=STREAMS)).blocks[0]
  read = np.stack([wirings.mixer_wiring.read[...], wirings.feed_forward_wiring.read[...]], 1)
  np.testing.assert_array_equal(read.reshape(6, STREAMS), np.eye(STREAMS)[[0, 1, 2, 0, 1, 2]])


@pytest.mark.parametrize('kind', KINDS)
def test_rematerialised_and_unrolled_stacks_are_equal(kind):
  expected = run(moved(stack(kind)))
  for settings in ({'remat': 'full'}, {'unroll': 3}):
    np.testing.assert_allclose(
      run(moved(stack(kind, **settings))).x, expected.x, rtol=1e-5, atol=1e-4
    )


def test_recorded_hidden_vectors_are_the_sum_of_the_streams():
  result = run(moved(stack(HyperConnections)), record=frozenset({'hidden'}))
  np.testing.assert_array_equal(result.recorded['blocks.0.hidden'][-1], result.x)


def test_layers_with_other_numbers_of_streams_are_refused():
  blocks = [block(PreNorm), block(HyperConnections)]
  with pytest.raises(UserError, match='layers of one stack have 1 and 4 residual streams'):
    Stack(WIDTH, num_layers=2, blocks=blocks, rngs=nnx.Rngs(0))


@pytest.mark.parametrize('kind', KINDS)
def test_dtype_of_the_streams_is_kept_and_dropout_needs_a_key(kind):
  part = kind(WIDTH, num_streams=STREAMS, dropout_rate=0.5, rngs=nnx.Rngs(0))
  branch = functools.partial(part, sublayer=lambda h: Result(2 * h))
  assert branch(X.astype(jnp.bfloat16)).x.dtype == jnp.bfloat16
  dropped = branch(X, key=jax.random.key(0), keep=jnp.ones((2, 1, 1))).x
  assert not np.allclose(dropped, branch(X).x)
  np.testing.assert_allclose(branch(X, keep=jnp.zeros((2, 1, 1))).x, X, atol=1e-6)


@pytest.mark.parametrize('kind', KINDS)
def test_decoding_equals_the_forward_pass(kind):
  check_decoding(
    moved(lm(WIDTH, vocab_size=9, num_layers=3, blocks=[block(kind)])(rngs=nnx.Rngs(0)))
  )
