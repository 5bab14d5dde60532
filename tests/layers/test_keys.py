"""Random keys by name: initial values do not depend on what else a model has."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Linear, depth_scaled, dropout, initialized, named_key, normal, param, stacked
from t2x.layers.arrays import named_leaves
from t2x.layers.building import at_position
from t2x.layers.keys import bernoulli, fold_in, row_keys

KEY = jax.random.key(3)


class Leaf(nnx.Module):
  """One parameter by `param`, and on request one that is drawn without it."""

  def __init__(self, *, own=False, rngs):
    self.kernel = param(normal(1.0), (4,), ('embed',), rngs, kind='vector')
    if own:
      self.own = nnx.Param(jax.random.normal(rngs.params(), (2,)))


class Model(nnx.Module):
  """Parts made in the order in which they are given; an integer is a number of stacked layers."""

  def __init__(self, *, rngs, **parts):
    for name, part in parts.items():
      setattr(self, name, part(rngs=rngs))


def layers(num, part=Leaf):
  return lambda rngs: stacked(lambda _, keys: part(rngs=keys), num, rngs)


def own(rngs):
  return Leaf(own=True, rngs=rngs)


def values(key=KEY, **parts):
  """The initial values by name."""
  model = initialized(lambda rngs: Model(rngs=rngs, **parts), key)
  return {name.replace('/', '.'): np.asarray(leaf) for name, leaf in named_leaves(model)}


def assert_all_differ(rows):
  rows = np.asarray(rows).reshape(-1, np.shape(rows)[-1])
  assert len(np.unique(rows[:, 0])) == len(rows)


def test_other_parameters_and_their_order_do_not_change_an_initial_value():
  expected = values(a=Leaf, b=Leaf)
  assert_all_differ([expected['a.kernel'], expected['b.kernel']])
  for parts in ({'b': Leaf, 'a': Leaf}, {'new': Leaf, 'a': Leaf, 'c': layers(3), 'b': Leaf}):
    found = values(**parts)
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value)


def test_the_key_the_name_and_the_initializer_do():
  expected = values(a=Leaf)['a.kernel']
  assert_all_differ(
    [expected, values(b=Leaf)['b.kernel'], values(jax.random.key(4), a=Leaf)['a.kernel']]
  )


def test_a_layer_does_not_depend_on_the_number_of_layers():
  few, many = (values(stack=layers(num))['stack.kernel'] for num in (3, 5))
  assert_all_differ(many)
  np.testing.assert_array_equal(few, many[:3])


@pytest.mark.parametrize('jit', [False, True])
def test_layers_inside_layers_are_numbered_by_both(jit):
  def nested(outer, inner):
    def build(key):
      part = layers(outer, lambda rngs: layers(inner)(rngs))
      return initialized(lambda rngs: Model(rngs=rngs, stack=part), key)

    return np.asarray((jax.jit(build) if jit else build)(KEY).stack.kernel[...])

  large = nested(3, 4)
  assert large.shape == (3, 4, 4)
  assert_all_differ(large)
  np.testing.assert_array_equal(nested(2, 3), large[:2, :3])


def test_values_match_the_initializer_where_it_is_built():
  def build(rngs):
    with at_position(num_layers=8, num_branches=2):
      return Linear((64,), (64, 8), ('a', 'b', 'c'), init=depth_scaled(normal(0.4)), rngs=rngs)

  model = initialized(build, KEY)
  assert float(model.kernel[...].std()) == pytest.approx(0.1, rel=0.02)
  np.testing.assert_array_equal(model.bias[...], 0)


def test_a_shared_parameter_is_drawn_once_by_its_first_name():
  class Tied(nnx.Module):
    def __init__(self, rngs):
      self.second = Leaf(rngs=rngs)
      self.first = self.second

  model = initialized(Tied, KEY)
  assert model.first is model.second
  np.testing.assert_array_equal(model.second.kernel[...], values(first=Leaf)['first.kernel'])


def test_values_drawn_without_param_differ_and_do_not_change_named_values():
  expected, found = values(a=Leaf, stack=layers(3)), values(a=own, stack=layers(3, own))
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value)
  assert_all_differ([found['a.own'], *found['stack.own']])
  # Parameters with names do not change them either.
  more = values(new=Leaf, a=own, c=layers(2), stack=layers(3, own))
  np.testing.assert_array_equal(more['a.own'], found['a.own'])


def test_two_stacks_of_values_drawn_without_param_differ():
  found = values(encoder=layers(2, own), decoder=layers(2, own))
  assert_all_differ([*found['encoder.own'], *found['decoder.own']])


def test_what_a_part_does_to_its_initial_values_stays():
  class Doubled(Leaf):
    def __init__(self, *, rngs):
      super().__init__(rngs=rngs)
      self.kernel[...] = 2 * self.kernel[...]

  doubled, plain = (values(stack=layers(2, part))['stack.kernel'] for part in (Doubled, Leaf))
  np.testing.assert_array_equal(doubled, 2 * plain)


def test_modules_of_flax_and_its_vmap_build_as_before():
  def vmapped(rngs):
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def build(rngs):
      return own(rngs)

    return build(rngs)

  found = values(linear=lambda rngs: nnx.Linear(2, 3, rngs=rngs), layers=vmapped)
  assert_all_differ(found['layers.kernel'])
  assert_all_differ(found['layers.own'])
  assert found['linear.kernel'].std() > 0


def test_the_model_has_the_structure_of_one_built_with_plain_keys():
  parts = {'a': own, 'stack': layers(3)}
  model = jax.jit(lambda key: initialized(lambda rngs: Model(rngs=rngs, **parts), key))(KEY)
  assert jax.tree.structure(model) == jax.tree.structure(Model(rngs=nnx.Rngs(0), **parts))


def test_a_parameter_is_drawn_once():
  """Values that are drawn and thrown away would be compiled all the same."""
  calls = []

  def init(key, shape, dtype):
    calls.append(shape)
    return jax.random.normal(key, shape, dtype)

  def build(rngs):
    return param(init, (4, 2), ('a', 'b'), rngs, kind='table')

  initialized(lambda rngs: Model(rngs=rngs, a=build, stack=layers(3, build)), KEY)
  assert calls == [(4, 2), (4, 2)]


SCRIPT = """
import jax, sys
sys.path.insert(0, sys.argv[1])
import test_keys
print(jax.random.key_data(test_keys.named_key(test_keys.KEY, 'mixer')).tolist())
print(test_keys.values(a=test_keys.Leaf, stack=test_keys.layers(2)))
"""


def test_another_process_draws_the_same():
  environment = os.environ | {'PYTHONHASHSEED': '1234'}
  command = [sys.executable, '-c', SCRIPT, os.path.dirname(__file__)]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  key = jax.random.key_data(named_key(KEY, 'mixer')).tolist()
  assert done.stdout == f'{key}\n{values(a=Leaf, stack=layers(2))}\n'


def test_no_key_stays_none_and_names_give_different_keys():
  assert named_key(None, 'mixer') is None
  names = ('mixer', 'cross', 'feed_forward', '')
  keys = jnp.stack([jax.random.key_data(key) for key in (KEY, *(named_key(KEY, n) for n in names))])
  assert len(np.unique(np.asarray(keys), axis=0)) == 1 + len(names)


def test_the_numbers_of_a_row_match_its_key():
  keys = row_keys(KEY, 5)
  for named, number in ((named_key(keys, 'part'), None), (fold_in(keys, 3), 3)):
    drawn = bernoulli(named, 0.5, (5, 40, 2))
    for row in range(5):
      own = jax.random.fold_in(KEY, row)
      own = named_key(own, 'part') if number is None else jax.random.fold_in(own, number)
      np.testing.assert_array_equal(drawn[row], jax.random.bernoulli(own, 0.5, (40, 2)))
  np.testing.assert_array_equal(*(jax.random.key_data(row_keys(KEY, n)[:5]) for n in (5, 9)))


def test_one_key_draws_the_numbers_of_the_whole_array():
  expected = jax.random.bernoulli(KEY, 0.5, (5, 40))
  np.testing.assert_array_equal(bernoulli(KEY, 0.5, (5, 40)), expected)


def test_what_rows_share_is_dropped_for_each_row():
  shared = dropout(jnp.ones((1, 3, 50)), 0.5, row_keys(KEY, 4))
  np.testing.assert_array_equal(shared, dropout(jnp.ones((4, 3, 50)), 0.5, row_keys(KEY, 4)))
  assert_all_differ(np.cumsum(shared.reshape(4, -1), axis=1)[:, ::-1])


def test_numbers_of_another_first_dimension_than_the_batch_are_refused():
  with pytest.raises(UserError, match='batch of 4 rows, each with a key: put the batch first'):
    dropout(jnp.ones((8, 3)), 0.5, row_keys(KEY, 4))
