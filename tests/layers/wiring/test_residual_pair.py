"""ResiDual in a stack; against its equations: tests/parity/test_wirings.py. Wirings by sublayer."""

import functools

import jax
import numpy as np
import pytest
from applying import check_decoding, moved
from flax import nnx
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Call,
  Causal,
  HyperConnections,
  MultiHeadAttention,
  PostNorm,
  PreNorm,
  ResiDual,
  Sinusoidal,
  Tokens,
)
from t2x.models import Block, Encoder, Stack

part = functools.partial
WIDTH, LENGTH = 8, 6
MIXER, FEED_FORWARD = part(MultiHeadAttention, num_heads=2), part(MLP, hidden_dim=12)
X = jax.random.normal(jax.random.key(0), (2, LENGTH, WIDTH))


def block(wiring, **settings):
  return part(Block, mixer=MIXER, feed_forward=FEED_FORWARD, wiring=wiring, **settings)


def stack(*blocks, num_layers=2):
  return moved(Stack(WIDTH, num_layers=num_layers, blocks=blocks, rngs=nnx.Rngs(0)), scale=0.3)


def test_two_streams_decode_as_they_read_the_row():
  blocks = [block(ResiDual, encoding=Sinusoidal)]
  check_decoding(moved(lm(WIDTH, vocab_size=9, num_layers=3, blocks=blocks)(rngs=nnx.Rngs(0))))


def test_the_last_hidden_vectors_are_the_output():
  call = Call(Tokens.row(LENGTH), Causal(), record=frozenset({'hidden'}))
  result = stack(block(ResiDual), num_layers=3)(X, call)
  np.testing.assert_allclose(result.recorded['blocks.0.hidden'][-1], result.x, atol=1e-6)


def test_a_body_adds_no_norm_after_the_last():
  layers = part(Stack, num_layers=2, blocks=[block(ResiDual)])
  assert Encoder(WIDTH, stack=layers, rngs=nnx.Rngs(0)).final_norm is None


def test_each_sublayer_has_the_wiring_of_its_name():
  mixed = stack(block({'mixer': PostNorm, 'feed_forward': PreNorm}))
  kinds = {name: type(wiring) for name, wiring in mixed.blocks[0].wirings.items()}
  assert kinds == {'mixer': PostNorm, 'feed_forward': PreNorm}


@pytest.mark.parametrize(
  ('blocks', 'message'),
  [
    ([block({'mixer': PreNorm})], 'wiring has the names mixer, but the sublayers are mixer, feed'),
    (
      [block({'mixer': PreNorm, 'feed_forward': ResiDual})],
      r'different numbers of residual streams \(1 for mixer, 2 for feed_forward\)',
    ),
    (
      [block(ResiDual), block(part(HyperConnections, num_streams=2))],
      'HyperConnections and ResiDual begin or end the residual streams of a stack differently',
    ),
  ],
)
def test_wirings_that_do_not_fit_together_are_refused(blocks, message):
  with pytest.raises(UserError, match=message):
    stack(*blocks)
