"""The load of experts: metrics of rows, and recorded per layer and row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  Call,
  Capacity,
  Dropless,
  GatedMLP,
  MixtureOfExperts,
  Parallel,
  Routing,
  Tokens,
)
from t2x.models import Block, Stack

WIDTH, EXPERTS = 4, 5
# Three experts for each of four tokens; the last choice of the second token is no expert.
CHOSEN = np.array(
  [[[0, 1, 2], [0, 1, 5], [0, 3, 1], [0, 1, 2]], [[4, 3, 2], [1, 0, 2], [3, 4, 1], [2, 3, 4]]]
)
SEGMENTS = np.array([[1, 1, 2, 2], [1, 1, 0, 0]])
# By hand, without padding.
LOAD = np.array([[4, 4, 2, 1, 0], [1, 1, 2, 1, 1]])
BUSIEST, UNUSED = 4 / (11 / 5) + 2 / (6 / 5), 1 / 5

expert = functools.partial(GatedMLP, hidden_dim=6)


class Given:
  """A router with the choices above."""

  is_causal = True
  num_choices = None

  def __init__(self, d_model, num_experts, *, rngs):
    pass

  def __call__(self, x, call):
    rows = jnp.asarray(CHOSEN)[: len(x)]
    return Routing(rows, jnp.ones(rows.shape))


def mixture(dispatch=Dropless(), router=Given):
  return MixtureOfExperts(
    WIDTH, num_experts=EXPERTS, expert=expert, router=router, dispatch=dispatch, rngs=nnx.Rngs(0)
  )


def applied(part, segments=SEGMENTS, record=()):
  x = jnp.ones((len(segments), 4, WIDTH))
  tokens = Tokens.row(4, segments=jnp.asarray(segments))
  return part(x, Call(tokens, record=frozenset(record)))


# Capacity drops choices, which are part of the load.
@pytest.mark.parametrize('dispatch', [Dropless(), Capacity(factor=0.5)])
def test_metrics_and_recorded_load_equal_counts_by_hand(dispatch):
  result = applied(mixture(dispatch), record={'load'})
  np.testing.assert_array_equal(result.recorded['load'], LOAD)
  metrics = result.aux.metrics
  np.testing.assert_allclose(metrics['busiest_expert'], (BUSIEST, 2), rtol=1e-6)
  np.testing.assert_allclose(metrics['unused_experts'], (UNUSED, 2), rtol=1e-6)
  assert not applied(mixture(dispatch)).recorded


def test_rows_of_padding_count_in_no_metric():
  result = applied(mixture(), SEGMENTS * [[1], [0]], {'load'})
  np.testing.assert_array_equal(result.recorded['load'], LOAD * [[1], [0]])
  np.testing.assert_allclose(result.aux.metrics['busiest_expert'], (4 / (11 / 5), 1), rtol=1e-6)
  np.testing.assert_allclose(result.aux.metrics['unused_experts'], (UNUSED, 1), rtol=1e-6)


def test_a_capacity_of_the_busiest_expert_drops_nothing():
  largest = 4 / (12 / 5)
  metrics = applied(mixture(Capacity(factor=largest))).aux.metrics
  assert metrics['dropped_tokens'][0] == 0
  assert applied(mixture(Capacity(factor=0.7 * largest))).aux.metrics['dropped_tokens'][0] > 0


def test_a_stack_records_the_load_of_each_layer_and_sums_metrics():
  routed = functools.partial(MixtureOfExperts, num_experts=EXPERTS, expert=expert, router=Given)
  both = functools.partial(Parallel, parts={'shared': expert, 'routed': routed})
  block = functools.partial(Block, mixer=expert, feed_forward=both)
  stack = Stack(WIDTH, num_layers=3, blocks=[block], rngs=nnx.Rngs(0))
  result = jax.jit(functools.partial(applied, record=('load',)))(stack)
  load = result.recorded['blocks.0.feed_forward.routed.load']
  np.testing.assert_array_equal(load, np.broadcast_to(LOAD, (3, *LOAD.shape)))
  np.testing.assert_allclose(result.aux.metrics['busiest_expert'], (3 * BUSIEST, 6), rtol=1e-6)


def test_a_mixture_can_be_an_expert():
  inner = functools.partial(MixtureOfExperts, num_experts=2, expert=expert)
  part = MixtureOfExperts(WIDTH, num_experts=2, expert=inner, rngs=nnx.Rngs(0))
  assert applied(part).x.shape == (2, 4, WIDTH)
