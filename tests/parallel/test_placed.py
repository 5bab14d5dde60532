"""Placed models are traced in their layout."""

import copy
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.hyperparameters import step_context
from t2x.layers import MLP
from t2x.layers.arrays import named_leaves
from t2x.parallel import Activations, Mesh, Placed, module_of, runs_model, whole_rows

LAYOUT = Activations.of(Mesh(data=2, context=2).abstract(4), Mesh(data=2, context=2))


def part():
  return Placed(MLP(4, hidden_dim=8, rngs=nnx.Rngs(0)), LAYOUT)


def test_a_placed_model_is_a_tree_with_the_names_of_its_parameters():
  placed = part()
  assert dict(named_leaves(placed)).keys() == dict(named_leaves(placed.model)).keys()
  doubled = jax.tree.map(lambda a: 2 * a, placed)
  assert doubled.layout == LAYOUT
  np.testing.assert_array_equal(doubled.up.kernel[...], 2 * placed.up.kernel[...])
  assert copy.deepcopy(placed).layout == LAYOUT
  assert module_of(placed) is placed.model and module_of(placed.model) is placed.model


class Seen:
  """A model that returns the layout in which it is called."""

  spec = 'its spec'

  def __call__(self):
    return step_context().layout

  def hidden(self):
    return step_context().layout


def test_calls_and_methods_are_in_the_layout_and_attributes_are_those_of_the_model():
  placed = Placed(Seen(), LAYOUT)
  assert placed() == placed.hidden() == LAYOUT
  assert placed.spec == 'its spec'
  assert runs_model(lambda model: (type(model), model()))(placed) == (Seen, LAYOUT)
  assert runs_model(lambda model: model())(Seen()) is None
  with pytest.raises(AttributeError, match='absent'):
    placed.absent  # noqa: B018


def test_rows_of_any_length_are_not_split():
  placed = whole_rows(part())
  assert [placed.layout.num_parts(axis) for axis in ('batch', 'length')] == [2, 1]
  assert whole_rows(part(), batch=False).layout.num_parts('batch') == 1
  model = part().model
  assert whole_rows(model) is model and whole_rows(Placed(model, None)).layout is None


def test_functions_are_compiled_once_for_each_layout():
  layouts = []

  @jax.jit
  @runs_model
  def run(model, x):
    layouts.append(step_context().layout)
    return x

  models = [part(), Placed(part().model, None), whole_rows(part())]
  for model, _ in itertools.product(models, range(2)):
    run(model, jnp.ones(2))
  assert layouts == [model.layout for model in models]
  assert functools.reduce(lambda a, b: a | {hash(b.layout)}, models, set()) == set(
    map(hash, layouts)
  )
