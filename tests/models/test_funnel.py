"""A funnel of stages: padding, numbers of layers, and what it refuses. `tests/parity/test_funnel.py` compares it with
transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Call,
  Causal,
  FromSource,
  Full,
  FunnelPositions,
  MultiHeadAttention,
  SourceSequence,
  Tokens,
)
from t2x.models import Block, Funnel, Stack, SublayerBlock
from t2x.train.params import Blueprint

part = functools.partial
ATTENTION, FEED_FORWARD = part(MultiHeadAttention, num_heads=2), part(MLP, hidden_dim=16)
SUBLAYERS = {'mixer': part(FromSource, sublayer=ATTENTION), 'feed_forward': FEED_FORWARD}
STACK = part(Stack, num_layers=1, blocks=[part(Block, mixer=ATTENTION, feed_forward=FEED_FORWARD)])
POOLING = part(Stack, num_layers=1, blocks=[part(SublayerBlock, sublayers=SUBLAYERS)])
POSITIONS = part(FunnelPositions, num_heads=2)


def funnel(make, **settings):
  settings = {'stages': [STACK, STACK], 'pooling': POOLING, 'decoder': STACK} | settings
  return make.built(part(Funnel, 16, **settings))


def rows(length=8):
  return jax.random.normal(jax.random.key(0), (2, length, 16))


def test_padding_changes_nothing(make):
  """Also in a pair of a token and padding: rows of 6 tokens and of 9 with 3 of padding."""
  model, x = funnel(make, truncate=False, pair_encoding=POSITIONS), rows(9)
  segments = jnp.asarray(np.arange(9) < 6, jnp.int32)[None]
  y = model(x, Call(Tokens.row(9, segments=segments))).x
  np.testing.assert_allclose(y[:, :6], model(x[:, :6], Call(Tokens.row(6))).x, atol=1e-5)


def test_a_pooling_layer_that_reads_no_source_attends_to_pooled_tokens(make):
  model, x = funnel(make, pooling=STACK, decoder=None, truncate=False), rows(5)
  result = model(x, Call(Tokens.row(5)))
  first = model.stages[0](x, Call(Tokens.row(5))).x
  pooled = jnp.stack([first[:, 0], first[:, 1:3].mean(1), first[:, 3:].mean(1)], axis=1)
  tokens = Tokens(jnp.asarray([[0, 1, 3]]))
  expected = model.stages[1](model.poolings[0](pooled, Call(tokens)).x, Call(tokens)).x
  np.testing.assert_allclose(result.x, expected, atol=1e-5)
  assert result.tokens.positions.tolist() == [[0, 1, 3]]


def test_a_funnel_of_layers_without_effect_pools_and_repeats_tokens():
  """Three stages of nine tokens, written out: the class token is apart, the last token is dropped at each pooling."""
  model = Funnel(16, stages=[STACK] * 3, pooling=POOLING, decoder=STACK, rngs=nnx.Rngs(0))
  model = jax.tree.map(jnp.zeros_like, model)
  x = np.asarray(rows(9), np.float64)
  c, a, b, d, e, f, g, h, _ = x[0]
  # 9 tokens -> c and 3 means of pairs of 7 tokens, the last of which has none -> c and 1 mean of 2.
  first = [c, (a + b) / 2, (d + e) / 2, (f + g) / 2, h]
  second = [c, (first[1] + first[2]) / 2, first[3]]
  expected = [second[0], *[second[1]] * 4, *[second[2]] * 4]
  y = model(rows(9), Call(Tokens.row(9)))
  np.testing.assert_allclose(y.x[0], expected[: len(x[0])] + x[0], atol=1e-5)


def test_pooled_tokens_attend_to_the_tokens_before_pooling():
  """With scores of 0 each pooled token adds the mean of the values of all tokens."""
  model = moved(Funnel(16, stages=[STACK] * 2, pooling=POOLING, decoder=None, rngs=nnx.Rngs(0)))
  [block] = model.poolings[0].blocks
  attention = block.mixer
  for without_effect in (*model.stages, attention.q, block.feed_forward):
    nnx.update(without_effect, jax.tree.map(jnp.zeros_like, nnx.state(without_effect)))
  x = np.asarray(rows(5), np.float64)[0]
  v = np.einsum('ld,dhe->lhe', x, double(attention.v.kernel)[0]) + double(attention.v.bias)[0]
  added = np.einsum('he,hed->d', v.mean(axis=0), double(attention.out.kernel)[0])
  added += double(attention.out.bias)[0]
  pooled = np.stack([x[0], x[1:3].mean(axis=0), x[3]])
  found = model(rows(5), Call(Tokens.row(5))).x[0]
  np.testing.assert_allclose(found, pooled + added, atol=1e-5)


def test_layers_are_numbered_in_the_order_of_application(make):
  infos = Blueprint(funnel(make)).infos
  names = 'stages.0', 'poolings.0', 'stages.1', 'decoder'
  kernels = [infos[f'{name}.blocks.0.feed_forward.up.kernel'] for name in names]
  assert [info.layers for info in kernels] == [((i,),) for i in range(4)]
  assert {info.num_layers for info in kernels} == {4}


@pytest.mark.parametrize(
  ('length', 'fields', 'message'),
  [
    (8, {'pattern': Causal()}, r'does not support the pattern Causal\(\): use Full'),
    (2, {}, r'cannot pool a row of 2 tokens: use longer rows'),
    (8, {'tokens': Tokens(jnp.arange(8)[None])}, r'several packed examples: .*@FullRows'),
    (8, {'tokens': Tokens.row(8, grid=(2, 4))}, r'cannot pool the metadata grid'),
    (8, {'source': SourceSequence(rows(), Tokens.row(8))}, 'does not read the source of a decoder'),
  ],
)
def test_calls_that_cannot_be_pooled_are_refused(make, length, fields, message):
  settings = {'tokens': Tokens.row(length), 'pattern': Full()} | fields
  with pytest.raises(UserError, match=message):
    funnel(make)(rows(length), Call(**settings))


def test_a_cache_and_a_setting_without_effect_are_refused(make):
  with pytest.raises(UserError, match='Funnel has no cache'):
    funnel(make).init_cache(1, 4, jnp.float32)
  with pytest.raises(UserError, match=r'set Funnel.truncate = False'):
    Funnel(16, stages=[STACK], pooling=POOLING, separate_first=False, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match="second = 'second' is not a mark"):
    tokens = Tokens.row(8)
    positions = POSITIONS(16, second='second', rngs=nnx.Rngs(0))
    funnel(make)(rows(), Call(tokens, encoding=positions))
