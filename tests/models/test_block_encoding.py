"""Position encodings of a block's own: T5's bias and added vectors in every layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Call,
  Causal,
  LearnedPositions,
  LightweightConvolution,
  MultiHeadAttention,
  T5Bias,
  Tokens,
  normal,
)
from t2x.models import Block, ParallelBlock, Stack

WIDTH, HEADS, LAYERS, LENGTH = 8, 2, 3, 6
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
BIAS = functools.partial(T5Bias, num_heads=HEADS, bidirectional=False, init=normal(1.0))
BLOCK = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
  feed_forward=functools.partial(MLP, hidden_dim=16),
)


def test_every_layer_of_a_stack_has_a_bias_of_its_own():
  stack = Stack(
    WIDTH,
    num_layers=LAYERS,
    blocks=[functools.partial(BLOCK, encoding=BIAS)],
    rngs=nnx.Rngs(0),
  )
  tables = stack.blocks[0].encoding.table[...]
  assert tables.shape == (LAYERS, 32, HEADS)
  assert jnp.abs(tables[0] - tables[1]).min() > 0

  call = Call(Tokens.row(LENGTH), Causal())
  y = jax.jit(lambda stack: stack(X, call).x)(stack)
  expected = X
  for layer in range(LAYERS):
    block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], stack.blocks[0])
    own, block.encoding = block.encoding, None
    expected = block(expected, Call(Tokens.row(LENGTH), Causal(), encoding=own)).x
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_every_table_of_a_stack_learns():
  stack = Stack(
    WIDTH,
    num_layers=LAYERS,
    blocks=[functools.partial(BLOCK, encoding=BIAS)],
    rngs=nnx.Rngs(0),
  )
  call = Call(Tokens.row(LENGTH), Causal())
  gradient = jax.jit(jax.grad(lambda stack: jnp.square(stack(X, call).x).sum()))(stack)
  used = gradient.blocks[0].encoding.table[...][:, :LENGTH]
  assert (jnp.abs(used).max((1, 2)) > 1e-3).all()


@pytest.mark.parametrize('kind', [Block, ParallelBlock])
def test_added_positions_of_a_block_are_added_to_the_input_of_every_layer(kind):
  added = functools.partial(LearnedPositions, max_length=9, init=normal(1.0))
  block = functools.partial(kind, **BLOCK.keywords, encoding=added)
  stack = Stack(WIDTH, num_layers=LAYERS, blocks=[block], rngs=nnx.Rngs(0))
  call = Call(Tokens(jnp.arange(2, 2 + LENGTH)[None]), Causal())
  y = jax.jit(lambda stack: stack(X, call).x)(stack)
  tables = stack.blocks[0].encoding.table[...]
  stack.blocks[0].encoding = None
  expected = X
  for layer in range(LAYERS):
    part = jax.tree.map(lambda leaf, layer=layer: leaf[layer], stack.blocks[0])
    expected = part(expected + tables[layer, None, 2 : 2 + LENGTH], call).x
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_added_positions_need_no_sublayer_that_reads_positions():
  mixer = functools.partial(LightweightConvolution, num_heads=HEADS, kernel_size=3)
  settings = {'mixer': mixer, 'feed_forward': BLOCK.keywords['feed_forward'], 'rngs': nnx.Rngs(0)}
  Block(WIDTH, encoding=functools.partial(LearnedPositions, max_length=9), **settings)
  with pytest.raises(UserError, match='no sublayer reads positions'):
    Block(WIDTH, encoding=BIAS, **settings)
