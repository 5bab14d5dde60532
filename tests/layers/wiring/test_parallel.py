"""Sublayers side by side. PaLM and GPT-NeoX: tests/parity/test_palm.py, tests/models/test_parallel_block.py."""

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
  AttentionFree,
  Call,
  Causal,
  LayerNorm,
  LinearAttention,
  MultiHeadAttention,
  NoBias,
  Parallel,
  RMSNorm,
  RoPE,
  Tokens,
)
from t2x.layers.building import at_position, branch_index, residual_branches
from t2x.layers.caches import RecurrentState
from t2x.layers.composites import recorded_by
from t2x.layers.keys import row_keys
from t2x.layers.wiring.parallel import PartCaches
from t2x.models import SublayerBlock
from t2x.testing.subject import perturbed

part = functools.partial
WIDTH, LENGTH = 8, 6
ATTENTION, FEED_FORWARD = part(MultiHeadAttention, num_heads=2), part(MLP, hidden_dim=12)
PARTS = {'attention': ATTENTION, 'feed_forward': FEED_FORWARD}
X = jax.random.normal(jax.random.key(0), (4, LENGTH, WIDTH))
CALL = Call(Tokens.row(LENGTH), Causal())


def build(parts=PARTS, **settings):
  return perturbed(Parallel(WIDTH, parts=parts, **settings, rngs=nnx.Rngs(0)))


def test_the_output_is_the_sum_of_the_parts_of_the_shared_or_the_own_norm():
  parts = {**PARTS, 'third': FEED_FORWARD}
  both = build(parts, norm=LayerNorm, own_norms={'feed_forward': RMSNorm})
  expected = sum(
    getattr(both, name)(norm(X), CALL).x
    for name, norm in (
      ('attention', both.norm),
      ('feed_forward', both.feed_forward_norm),
      ('third', both.norm),
    )
  )
  np.testing.assert_allclose(both(X, CALL).x, expected, atol=1e-5)
  plain = build()
  expected = plain.attention(X, CALL).x + plain.feed_forward(X, CALL).x
  np.testing.assert_allclose(plain(X, CALL).x, expected, atol=1e-5)


def test_parts_that_read_no_positions_are_beside_parts_that_do():
  both = build({'attention': ATTENTION, 'linear': part(LinearAttention, num_heads=2, chunk=4)})
  call = dataclasses.replace(CALL, encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  assert not np.allclose(both(X, call).x, both(X, CALL).x, atol=1e-3)


def test_the_parts_drop_other_elements():
  layer = part(FEED_FORWARD, dropout_rate=0.5)
  both = build({'one': layer, 'two': layer})
  both.two = both.one
  call = dataclasses.replace(CALL, key=row_keys(jax.random.key(3), len(X)))
  assert not np.allclose(both(X, call).x, 2 * both.one(X, call).x, atol=1e-3)
  assert not np.allclose(both(X, call).x, 2 * (both(X, call).x - both.one(X, call).x), atol=1e-3)


def test_stochastic_depth_drops_all_parts_of_a_row_or_none():
  block = SublayerBlock(WIDTH, sublayers={'both': part(Parallel, parts=PARTS)}, rngs=nnx.Rngs(0))
  block = perturbed(block)
  x = jnp.repeat(X[:1], 64, axis=0)
  call = dataclasses.replace(CALL, key=row_keys(jax.random.key(3), len(x)), drop=jnp.float32(0.5))
  added = block(x, call).x - x
  whole = block(x[:1], CALL).x - x[:1]
  dropped = np.isclose(added, 0.0, atol=1e-5).all(axis=(1, 2))
  doubled = np.isclose(added, 2 * whole, atol=1e-4).all(axis=(1, 2))
  assert (dropped ^ doubled).all() and 16 < dropped.sum() < 48


def test_recorded_names_and_parameters_of_an_unnamed_sublayer_have_no_prefix():
  call = dataclasses.replace(CALL, record=frozenset({'probabilities'}))
  for name, prefix in (('', ''), ('both', 'both.')):
    block = SublayerBlock(WIDTH, sublayers={name: part(Parallel, parts=PARTS)}, rngs=nnx.Rngs(0))
    recorded = recorded_by({'blocks.0': block(X, call)})
    assert list(recorded) == [f'blocks.0.{prefix}attention.probabilities']


def test_decoding_shares_slots_only_if_all_parts_do():
  attention = build().init_cache(2, LENGTH, jnp.float32)
  shared = attention.share(3, LENGTH)
  assert shared is not None and shared.parts.keys() == {'attention'}
  mixed = build({'attention': ATTENTION, 'simple': part(AttentionFree, bias=NoBias, num_heads=2)})
  assert mixed.init_cache(2, LENGTH, jnp.float32).parts.keys() == {'attention', 'simple'}
  assert build({'one': FEED_FORWARD}).init_cache(2, LENGTH, jnp.float32) is None


def test_a_part_that_does_not_share_slots_keeps_all_from_it():
  class Unshared(RecurrentState):
    def share(self, copies, num_slots):
      return None

  attention = build().init_cache(2, LENGTH, jnp.float32).parts
  assert PartCaches({**attention, 'other': Unshared()}).share(3, LENGTH) is None


def test_keys_of_the_parts_of_an_unnamed_sublayer_are_those_of_their_names():
  block = SublayerBlock(WIDTH, sublayers={'': part(Parallel, parts=PARTS)}, rngs=nnx.Rngs(0))
  call = dataclasses.replace(CALL, key=row_keys(jax.random.key(3), len(X)))
  np.testing.assert_array_equal(
    jax.random.key_data(block.calls(call)[''].key), jax.random.key_data(call.key)
  )


def test_a_part_counts_as_a_branch_for_initialisers_that_depend_on_depth():
  seen = []

  class Counting(MLP):
    def __init__(self, d_model, *, rngs):
      super().__init__(d_model, hidden_dim=4, rngs=rngs)
      seen.append((branch_index(), residual_branches('Counting')))

  with at_position(num_layers=3, layer=1):
    both = part(Parallel, parts={'one': Counting, 'two': Counting})
    SublayerBlock(WIDTH, sublayers={'both': both, 'last': Counting}, rngs=nnx.Rngs(0))
  # The sum of two parts with the variance 1 / 12 each has that of a branch, 1 / 6.
  assert seen == [(4, 12), (5, 12), (3, 6)]


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'parts': {'norm': FEED_FORWARD}}, "cannot have the name 'norm'"),
    ({'own_norms': {'mixer': RMSNorm}}, "a norm for 'mixer', but the parts are attention, feed"),
    (
      {'norm': LayerNorm, 'own_norms': dict.fromkeys(PARTS, RMSNorm)},
      'Parallel.norm has no effect',
    ),
  ],
)
def test_settings_without_effect_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    build(**settings)


class Forgetful(LinearAttention):
  """A mixer that keeps nothing of earlier tokens."""

  def init_cache(self, batch, num_slots, dtype, source=None, **held):
    return None


@pytest.mark.parametrize('holder', [part(Parallel, parts={}), part(SublayerBlock, sublayers={})])
def test_a_mixer_without_a_cache_cannot_generate(holder):
  parts = {'mixer': part(Forgetful, num_heads=2), 'feed_forward': FEED_FORWARD}
  (name,) = holder.keywords
  with pytest.raises(
    UserError, match='Forgetful reads other tokens, but its init_cache returns None'
  ):
    holder(WIDTH, **{name: parts}, rngs=nnx.Rngs(0)).init_cache(2, LENGTH, jnp.float32)
