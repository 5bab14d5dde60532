"""The stack: scanned, unrolled, shared, rematerialised, dropped."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import Aux, Call, Causal, FeedForward, Result, Slots, SourceSequence, Tokens, Window
from t2x.layers.keys import row_keys
from t2x.models import ParallelBlock
from t2x.models.remat import POLICIES
from t2x.models.stack import by_layer


def call(stack, x, key=None, pattern=Causal()):
  return applied(stack, x, pattern=pattern, key=key)[0]


def x_of(make, length=7):
  return jax.random.normal(jax.random.key(5), (2, length, make.width))


def build(make, **settings):
  return make.built(functools.partial(make.stack(**settings), make.width))


@pytest.mark.parametrize('unroll', [2, 4])
def test_scan_equals_unrolled(make, unroll):
  one, many = (build(make, num_layers=4, unroll=n) for n in (1, unroll))
  key = jax.random.key(0)
  for k in (None, key):
    a, b = (jax.jit(call)(stack, x_of(make), k) for stack in (one, many))
    np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize(
  ('backend', 'num_layers', 'settings', 'unroll'),
  [
    ('cpu', 4, {}, 1),
    ('gpu', 4, {}, 4),
    ('gpu', 33, {}, 1),
    ('gpu', 4, {'unroll': 2}, 2),
    ('gpu', 4, {'num_groups': 2}, 4),
  ],
)
def test_stacks_of_few_layers_are_unrolled_on_gpus(make, backend, num_layers, settings, unroll):
  stack = build(make, num_layers=num_layers, **settings)
  with in_step(target=backend):
    traced = str(jax.make_jaxpr(lambda stack, x: call(stack, x))(stack, x_of(make)))
  assert f'unroll={unroll}\n' in traced


# tests/models/test_remat.py counts what each policy computes again.
OFTEN = ('full', 'dots_no_batch+attention')


@pytest.mark.parametrize(
  'remat',
  [pytest.param(n, marks=() if n in OFTEN else pytest.mark.nightly) for n in POLICIES],
)
def test_remat_changes_nothing(make, remat):
  blocks = [make.block(dropout_rate=0.2)]

  def loss(stack, x):
    return (call(stack, x, jax.random.key(1)) ** 2).sum()

  plain, saved = (build(make, blocks=blocks, remat=name) for name in (None, remat))
  a, b = (jax.jit(jax.value_and_grad(loss))(stack, x_of(make)) for stack in (plain, saved))
  for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-3)


def test_blocks_repeat_in_turn(make):
  blocks = [make.block(), make.block(pattern=Window(2))]
  stack = build(make, blocks=blocks, num_layers=4)
  x = x_of(make)
  expected = x
  for repeat in range(2):
    for block in stack.blocks:
      own = jax.tree.map(lambda leaf, repeat=repeat: leaf[repeat], block)
      expected, _ = applied(own, expected, pattern=Causal())
  np.testing.assert_allclose(jax.jit(call)(stack, x), expected, atol=2e-5)


def test_shared_groups_apply_one_set_of_parameters_again(make):
  shared = build(make, num_layers=4, num_groups=2)
  assert {leaf.shape[0] for leaf in jax.tree.leaves(shared)} == {2}
  x = x_of(make)
  expected = x
  for repeat in range(4):
    own = jax.tree.map(lambda leaf, group=repeat // 2: leaf[group], shared.blocks[0])
    expected, _ = applied(own, expected, pattern=Causal())
  np.testing.assert_allclose(jax.jit(call)(shared, x), expected, atol=2e-5)


class WithLoss(FeedForward):
  """A feed-forward layer with auxiliary losses `loss` and 1, times the number of the row."""

  def __init__(self, d_model, *, name, loss, rngs):
    self.name, self.loss = name, loss

  def __call__(self, x, call, cache=None):
    rows = 1.0 + jnp.arange(len(x))
    metrics = {'mean': (self.loss * rows.sum(), rows.sum())}
    return Result(x, aux=Aux({self.name: self.loss * rows, 'both': rows}, metrics))


@pytest.mark.parametrize('num_groups', [None, 1])
def test_auxiliary_losses_of_all_blocks_are_summed_by_name_and_row(make, num_groups):
  blocks = [
    functools.partial(make.block(), feed_forward=functools.partial(WithLoss, name=name, loss=loss))
    for name, loss in (('a', 0.5), ('b', 3.0), ('a', 0.25))
  ]
  stack = build(make, blocks=blocks, num_layers=6, num_groups=num_groups)
  aux = stack(x_of(make), Call(Tokens.row(7), Causal())).aux
  # Sums and weights are added, so that their quotient is the average over layers.
  assert [float(value) for value in aux.metrics['mean']] == [2 * (0.5 + 3.0 + 0.25) * 3, 6 * 3]
  assert {name: value.tolist() for name, value in aux.losses.items()} == {
    'a': [1.5, 3.0],
    'b': [6.0, 12.0],
    'both': [6.0, 12.0],
  }


def test_a_block_refuses_a_context_that_it_would_not_read(make):
  block = make.built(functools.partial(make.block(), make.width))
  x = x_of(make)
  with pytest.raises(UserError, match='without cross-attention'):
    applied(block, x, source=SourceSequence(x, Tokens.row(7)))
  with pytest.raises(UserError, match='would be ignored'):
    applied(build(make), x, source=SourceSequence(x, Tokens.row(7)))


def dropped_branches(outputs, x, branches):
  """The index of the sum x + m_1 f_1(x) + m_2 f_2(x + m_1 f_1(x)) with m_i 0 or 2 that each row [length, width] of
  `outputs` is."""
  sums = []
  for first in (0, 2):
    middle = x + first * branches[0](x)
    sums += [middle + second * branches[1](middle) for second in (0, 2)]
  errors = np.abs(np.asarray(outputs)[:, None] - np.asarray(jnp.stack(sums, axis=1)))
  errors = errors.max(axis=(2, 3))
  assert (errors.min(axis=1) < 1e-5).all() and (np.sort(errors, axis=1)[:, 1] > 1e-2).all()
  return errors.argmin(axis=1)


def test_each_branch_of_each_row_is_dropped_by_itself(make):
  """A stack of one layer, which is its last. All four cases of two branches are equally frequent at rate 0.5."""
  stack = build(make, num_layers=1, stochastic_depth=0.5)
  (block,) = (jax.tree.map(lambda leaf: leaf[0], block) for block in stack.blocks)
  x = jnp.tile(x_of(make)[:1], (1024, 1, 1))
  tokens = Call(Tokens.row(x.shape[1]), Causal())
  branches = [
    jax.jit(lambda x, name=name: block.branch(name, x, tokens).x)
    for name in ('mixer', 'feed_forward')
  ]
  for key in (jax.random.key(1), row_keys(jax.random.key(1), len(x))):
    outputs = jax.jit(call)(stack, x, key)
    counts = np.bincount(dropped_branches(outputs, x, branches), minlength=4)
    # Five standard deviations of a binomial distribution: 69 of 256.
    assert np.abs(counts - 256).max() < 5 * np.sqrt(1024 * 3 / 16)


def test_a_parallel_block_has_one_draw_for_both_branches(make):
  keywords = make.block().keywords
  parallel = functools.partial(
    ParallelBlock, mixer=keywords['mixer'], feed_forward=keywords['feed_forward']
  )
  stack = build(make, num_layers=1, stochastic_depth=0.5, blocks=[parallel])
  x = jnp.tile(x_of(make)[:1], (64, 1, 1))
  branch = call(stack, x) - x
  factors = (jax.jit(call)(stack, x, jax.random.key(1)) - x)[:, 0, 0] / branch[:, 0, 0]
  assert {0.0, 2.0} == set(np.round(np.asarray(factors), 3).tolist())


def test_stochastic_depth_grows_to_its_rate_and_needs_a_key(make):
  stack = build(make, num_layers=2, stochastic_depth=0.999)
  x = x_of(make)
  np.testing.assert_allclose(call(stack, x), call(build(make, num_layers=2), x), atol=1e-6)
  # The first layer is always kept, the last nearly never.
  first = jax.tree.map(lambda leaf: leaf[0], stack.blocks[0])
  alone, _ = applied(first, x, pattern=Causal())
  np.testing.assert_allclose(jax.jit(call)(stack, x, jax.random.key(0)), alone, atol=2e-5)


def test_parallel_block_is_the_sum_of_its_branches(make):
  keywords = make.block().keywords
  block = make.built(
    functools.partial(
      ParallelBlock, make.width, mixer=keywords['mixer'], feed_forward=keywords['feed_forward']
    )
  )
  x = x_of(make)
  h = block.norm(x)
  mixed, _ = applied(block.mixer, h, pattern=Causal())
  expected = x + mixed + applied(block.feed_forward, h)[0]
  np.testing.assert_allclose(applied(block, x, pattern=Causal())[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'num_layers': 4, 'num_groups': 3}, 'num_groups = 3'),
    ({'remat': 'some'}, "remat = 'some'"),
  ],
)
def test_counts_that_do_not_divide_are_refused(make, settings, words):
  with pytest.raises(UserError, match=words):
    build(make, **settings)


def test_layers_that_do_not_fill_the_pattern_are_refused(make):
  with pytest.raises(UserError, match='num_layers = 3'):
    build(make, blocks=[make.block(), make.block()], num_layers=3)


def test_the_stack_is_a_plain_pytree(make):
  one, two = build(make), build(make)
  assert jax.tree.structure(one) == jax.tree.structure(two)
  both = jax.tree.map(lambda a, b: jnp.stack([a, b]), one, two)
  out = jax.vmap(lambda stack: call(stack, x_of(make)))(both)
  np.testing.assert_allclose(out[0], call(one, x_of(make)), atol=2e-5)


class WithPlace(FeedForward):
  """Adds the place and the repeat of its layer."""

  def __init__(self, d_model, *, rngs):
    pass

  def __call__(self, x, call, cache=None):
    return Result(jnp.zeros_like(x) + 10.0 * call.place + call.repeat)


def test_layers_one_by_one_know_their_place(make):
  blocks = [functools.partial(make.block(), feed_forward=WithPlace)] * 2
  stack = build(make, blocks=blocks, num_layers=6)
  x, cache = x_of(make, 1), stack.init_cache(2, 3, jnp.float32)
  slots = Slots.empty(2, 3).extend(Tokens.row(1))
  own = Call(Tokens.row(1), Causal(), slots=slots)
  scanned = jax.jit(lambda stack, cache: stack(x, own, cache).x)
  np.testing.assert_allclose(
    scanned(stack.unstacked(), stack.unstacked_cache(cache)), scanned(stack, cache), atol=2e-5
  )


def test_recorded_arrays_are_in_the_order_of_the_layers():
  numbers = jnp.arange(5)[:, None] + 10 * jnp.arange(2)[None]
  recorded = {
    'stages.0.blocks.0.mixer.states': numbers[:4:2],
    'stages.0.blocks.0.mixer.other': numbers,
    'stages.0.blocks.1.mixer.states': numbers[1:4:2],
    'stages.1.blocks.0.mixer.states': numbers[4:],
  }
  np.testing.assert_array_equal(by_layer(recorded, 'states'), numbers.T)


@pytest.mark.parametrize('prefix', ['blocks.{}.', 'stages.{}.blocks.0.'])
def test_recorded_arrays_of_more_than_ten_blocks_or_stages_are_in_their_order(prefix):
  """Compiled functions return dicts whose keys are sorted as strings."""
  numbers = jnp.arange(12)
  recorded = {prefix.format(i) + 'hidden': numbers[i, None, None] for i in range(12)}
  np.testing.assert_array_equal(jax.jit(lambda a: by_layer(a, 'hidden'))(recorded), numbers[None])


def test_the_last_recorded_layer_of_twelve_blocks_is_the_output(make):
  stack = build(make, blocks=[make.block()] * 12, num_layers=12)
  own = Call(Tokens.row(7), Causal(), record=frozenset({'hidden'}))
  result = jax.jit(lambda stack, x: stack(x, own))(stack, x_of(make))
  np.testing.assert_array_equal(by_layer(result.recorded, 'hidden')[:, -1], result.x)
