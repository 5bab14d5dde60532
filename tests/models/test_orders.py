"""Which layers of a stack share parameters, and in which order they run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Blocks, Causal
from t2x.models import Decoder, ReversibleStack, Segments, Stages, cycle, cycle_reverse, sequence
from t2x.train.params import Blueprint

UP = 'blocks.0.feed_forward.up.kernel'


@pytest.mark.parametrize('num_repeats', range(1, 9))
def test_orders_are_those_of_the_paper(num_repeats):
  """Algorithm 1, whose layers and parameter sets are counted from 1."""
  n = num_repeats
  for m in range(1, n + 1):
    cycles, reversed_ = [], []
    for i in range(1, n + 1):
      repeated = i if i <= m else (i - 1) % m + 1
      cycles.append(repeated)
      is_last_round = i > m * (-(-n // m) - 1) and i > m
      reversed_.append(m - (i - 1) % m if is_last_round else repeated)
    assert [group + 1 for group in cycle(n, m)] == cycles
    assert [group + 1 for group in cycle_reverse(n, m)] == reversed_
    if n % m == 0:
      own, sets = [], 0
      for i in range(1, n + 1):
        sets += (i - 1) % (n // m) == 0
        own.append(sets)
      assert [group + 1 for group in sequence(n, m)] == own


def build(make, **settings):
  return make.built(functools.partial(make.stack(**settings), make.width))


def test_every_use_of_a_shared_layer_has_a_cache_of_its_own(make):
  """Token by token, layers one by one and scanned, equals the forward pass; beams copy the cache of each use."""
  layers = make.stack(num_layers=4, num_groups=2, order=cycle)
  model = make.built(make.language_model(Decoder, layers))
  check_decoding(model)
  cache = model.body.stack.init_cache(2, 5, jnp.float32)
  assert {leaf.shape[0] for leaf in jax.tree.leaves(cache)} == {4}
  assert {leaf.shape[0] for leaf in jax.tree.leaves(model.body.stack.blocks)} == {2}


@pytest.mark.parametrize('changed', [{'unroll': 3}, {'remat': 'full'}])
def test_unrolling_and_remat_change_nothing(make, changed):
  settings = {'num_layers': 5, 'num_groups': 3, 'order': cycle_reverse}
  x = jax.random.normal(jax.random.key(5), (2, 7, make.width))

  def loss(stack):
    return (applied(stack, x, pattern=Causal(), key=jax.random.key(0))[0] ** 2).mean()

  plain, other = (build(make, **settings, **extra) for extra in ({}, changed))
  one, two = (jax.jit(jax.value_and_grad(loss))(stack) for stack in (plain, other))
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_segments_equal_the_stack_with_their_pattern(make):
  """Each use of a shared layer has a memory of its own."""
  layers = make.stack(num_layers=3, num_groups=2, order=cycle)
  stack = functools.partial(Segments, make.width, stack=layers, length=4, memory=4)
  segments = make.built(stack)
  x = jax.random.normal(jax.random.key(5), (2, 12, make.width))
  y, _ = applied(segments, x, pattern=Causal())
  expected, _ = applied(segments.stack, x, pattern=Causal() & Blocks(4, 4))
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-5)


def test_a_reversible_stack_has_the_gradients_of_its_forward_pass(make):
  settings = {'num_layers': 4, 'blocks': [make.block()], 'num_groups': 2, 'order': cycle_reverse}
  stack = make.built(functools.partial(ReversibleStack, make.width, **settings))
  x = 0.1 * jax.random.normal(jax.random.key(5), (2, 7, make.width))

  def loss(stack, record):
    result, _ = applied(stack, x, pattern=Causal(), record=frozenset(record))
    return (result**2).mean()

  # Calls that record save all activations, and are differentiated by JAX.
  inverted, saved = (
    jax.jit(jax.value_and_grad(functools.partial(loss, record=record)))(stack)
    for record in ((), ('hidden',))
  )
  for a, b in zip(jax.tree.leaves(inverted), jax.tree.leaves(saved), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_parameters_know_all_layers_that_use_them(make):
  """Also in the second stage of a body."""
  blocks = [make.block(), make.block()]
  stages = [make.stack(num_layers=1), make.stack(blocks, num_layers=8, order=(0, 1, 1, 0))]
  body = Stages(make.width, stages=stages, merge=None, rngs=nnx.Rngs(0))
  infos = Blueprint(jax.eval_shape(lambda: body)).infos
  assert infos[f'stages.0.{UP}'].layers == ((0,),)
  assert infos[f'stages.1.{UP}'].layers == ((1, 7), (3, 5))
  assert infos[f'stages.1.{UP.replace(".0.", ".1.")}'].layers == ((2, 8), (4, 6))


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'num_groups': 3}, r'Stack.num_groups = 3: must divide 4, the number of repeats'),
    ({'order': (0, 1, 0)}, r'Stack.order is \[0, 1, 0\]: must name one .* 0 to 1 .* each of 4 rep'),
    ({'order': (0, 2, 2, 0)}, 'sets 0 to 2 .* each set at least once'),
    ({'order': (0, 1, -1, 0)}, 'sets 0 to 1'),
    ({'order': (0, 1, 1, 0), 'num_groups': 3}, 'sets 0 to 2'),
    ({'num_groups': 5, 'order': cycle}, 'sets 0 to 4'),
    ({'order': cycle}, 'Stack.order has no effect, because Stack.num_groups is 4'),
    ({'order': cycle, 'num_groups': 1}, 'no effect, because Stack.num_groups is 1 for 4 repeats'),
  ],
)
def test_orders_that_do_not_fit_are_refused(make, settings, words):
  with pytest.raises(UserError, match=words):
    build(make, num_layers=4, **settings)
