"""Sublayers in sequence as one branch. Decoding and packed rows: tests/contracts."""

import dataclasses
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
  GatedConvolution,
  HyperConnections,
  MultiHeadAttention,
  PreNorm,
  Result,
  RoPE,
  ScaledResidual,
  Sequential,
  Tokens,
)
from t2x.layers.keys import row_keys
from t2x.layers.wiring.parallel import PartCaches
from t2x.testing.subject import perturbed

part = functools.partial
WIDTH, LENGTH = 8, 6
PARTS = {
  'mixer': part(MultiHeadAttention, num_heads=2),
  'feed_forward': part(MLP, hidden_dim=12),
}
X = jax.random.normal(jax.random.key(0), (4, LENGTH, WIDTH))
CALL = Call(Tokens.row(LENGTH), Causal())


def build(parts=PARTS, **settings):
  return perturbed(Sequential(WIDTH, parts=parts, **settings, rngs=nnx.Rngs(0)))


def test_parts_are_applied_in_their_order_each_in_its_wiring():
  chain = build()
  y = chain.feed_forward(chain.mixer(X, CALL).x, CALL).x
  np.testing.assert_allclose(chain(X, CALL).x, y, atol=1e-5)
  chain = build(wiring={'mixer': PreNorm, 'feed_forward': ScaledResidual})
  h = X + chain.mixer(chain.mixer_wiring.norm(X), CALL).x
  y = np.sqrt(0.5) * (h + chain.feed_forward(h, CALL).x)
  np.testing.assert_allclose(chain(X, CALL).x, y, atol=1e-5)


def test_positions_and_recorded_names_go_to_the_parts_that_read_them():
  chain = build()
  call = dataclasses.replace(CALL, encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  assert not np.allclose(chain(X, call).x, chain(X, CALL).x, atol=1e-3)
  recorded = chain(X, dataclasses.replace(CALL, record=frozenset({'probabilities'}))).recorded
  assert list(recorded) == ['mixer.probabilities']


def test_the_parts_and_their_wirings_drop_other_elements():
  call = dataclasses.replace(CALL, key=row_keys(jax.random.key(3), len(X)))
  layer = part(MLP, hidden_dim=12, dropout_rate=0.5)
  one, two = (build({name: layer})(X, call).x for name in ('one', 'two'))
  assert not np.allclose(one, two, atol=1e-3)
  dropped = build(wiring=part(PreNorm, dropout_rate=0.5))
  assert not np.allclose(dropped(X, call).x, dropped(X, CALL).x, atol=1e-3)


def test_the_cache_has_those_of_the_parts_that_have_one():
  chain = build({**PARTS, 'convolution': GatedConvolution})
  cache = chain.init_cache(2, LENGTH, jnp.float32)
  assert isinstance(cache, PartCaches) and list(cache.parts) == ['mixer', 'convolution']
  assert build({'one': PARTS['feed_forward']}).init_cache(2, LENGTH, jnp.float32) is None


class Counting(MLP):
  """Adds the number of calls of its kind before it."""

  reads = frozenset({'extras'})

  def __init__(self, d_model, *, rngs):
    super().__init__(d_model, hidden_dim=4, rngs=rngs)

  def init_extras(self, x):
    return {'calls': jnp.zeros(())}

  def __call__(self, x, call, cache=None):
    return Result(x + call.extras['calls'], extras={'calls': call.extras['calls'] + 1.0})


def test_a_part_reads_the_extras_of_the_part_before():
  chain = build({'one': Counting, 'two': Counting, 'three': Counting})
  assert 'extras' in chain.reads and chain.init_extras(X).keys() == {'calls'}
  result = chain(X, dataclasses.replace(CALL, extras={'calls': jnp.ones(()), 'other': X}))
  np.testing.assert_allclose(result.x, X + 6.0, atol=1e-5)
  assert result.extras['calls'] == 4.0


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'parts': {'names': PARTS['mixer']}}, "cannot have the name 'names'"),
    ({'wiring': {'mixer': PreNorm}}, 'Sequential.wiring has the names mixer, but the sublayers'),
    (
      {'wiring': part(HyperConnections, num_streams=2)},
      'HyperConnections has 2 residual streams, but Sequential is one branch',
    ),
  ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    build(**settings)
