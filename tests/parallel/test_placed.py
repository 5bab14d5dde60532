"""Placed models: whatever runs a model in t2x/ is traced in its layout, which the syntax trees of t2x/ show."""

import ast
import copy
import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.step import step_context
from t2x.layers import MLP
from t2x.layers.arrays import named_leaves
from t2x.parallel import Activations, Mesh, Placed, module_of, runs_model, whole_rows

ROOT = Path(__file__).parents[2]
LAYOUT = Activations.of(Mesh(data=2, context=2).abstract(4), Mesh(data=2, context=2))
# What computes with a model. `spec`, `max_length` and other settings are read anywhere.
METHODS = {
  'at_patch_size',
  'cross_entropy',
  'decode',
  'detect',
  'embedding',
  'hidden',
  'init_cache',
  'logits',
  'pool',
  'sample',
  'unstacked',
}
# Parts of a model that compute.
PARTS = {'body', 'decoder', 'distribution', 'embedding', 'encoder', 'head'}
# Functions that trace a model themselves, and files of tasks, whose functions a step or `predict` traces.
IN_LAYOUT = {
  't2x/train/evaluation.py': {'Inference._evaluated'},  # Calls `Inference.model`.
  't2x/parallel/placed.py': {'Placed.__call__'},
  't2x/look/loads.py': {'_recording'},  # Traced by `predict`.
  't2x/look/anatomy.py': {'class_logits'},  # Called in the lens, which `runs_model`.
  't2x/look/look.py': {'look_at_image'},  # Embeds one row to read the metadata of its tokens.
  't2x/tasks/base.py': {'Task.check_model'},
  't2x/decode/generation.py': {'_prefill'},  # Called by `_run`.
}
# Compiled functions without a model, or with one in a context of their own.
WITHOUT_A_MODEL = {
  't2x/parallel/placed.py': 1,  # Gathers arrays.
  't2x/prune/heads.py': 1,  # `row_losses` enters the layout.
  't2x/prune/pruning.py': 2,
  't2x/sweeps/plan_table.py': 1,  # A product whose time is measured.
  't2x/sweeps/vmapped_trials.py': 1,  # Steps.
  't2x/testing/contracts.py': 6,  # A part on one device, or in a layout of its own.
  't2x/testing/subject.py': 1,
  't2x/train/init_from.py': 1,  # Resizes parameters.
  't2x/train/logs/flops.py': 1,  # Counts operations.
  't2x/train/program.py': 3,  # Steps, and the initial parameters.
}


def trees():
  for path in sorted((ROOT / 't2x').rglob('*.py')):
    name = path.relative_to(ROOT).as_posix()
    if not name.startswith(('t2x/layers/', 't2x/models/')):
      yield name, ast.parse(path.read_text())


def functions(node, prefix=''):
  """Yields (name, outermost function) of a file, with the names of classes."""
  for child in ast.iter_child_nodes(node):
    if isinstance(child, ast.FunctionDef):
      yield prefix + child.name, child
    elif isinstance(child, ast.ClassDef):
      yield from functions(child, f'{prefix}{child.name}.')


def computes(call):
  """Whether a call computes with a variable or an attribute that is called `model`; with random keys it builds one."""
  if any(keyword.arg == 'rngs' for keyword in call.keywords):
    return False
  names = ast.unparse(call.func).split('.')
  if names[0] == 'self':
    names = [name.lstrip('_') for name in names[1:]]
  if names[:1] != ['model']:
    return False
  return len(names) == 1 or names[1] in METHODS | PARTS


def callers():
  """Yields (file, function, syntax tree) of what computes with a model."""
  for path, tree in trees():
    for name, function in functions(tree):
      calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
      if any(map(computes, calls)):
        yield path, name, function


def decorated(function):
  return any('runs_model' in ast.unparse(decorator) for decorator in function.decorator_list)


def test_every_caller_of_a_model_is_traced_in_its_layout():
  found = list(callers())
  assert len(found) > 40
  for path, name, function in found:
    inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef)]
    in_task = path.startswith(('t2x/tasks/', 't2x/domains/')) and not any(
      'jit' in ast.unparse(decorator) for decorator in function.decorator_list
    )
    allowed = in_task or name in IN_LAYOUT.get(path, ()) or any(map(decorated, inner))
    assert allowed, (
      f'{path}: {name} runs a model outside of its layout: decorate it with runs_model'
    )


def test_every_compiled_function_that_gets_a_model_runs_it_in_its_layout():
  counts = {}
  for path, tree in trees():
    jits = [node for node in ast.walk(tree) if ast.unparse(node) == 'jax.jit']
    # A decorator beside it, or the function that it is given.
    with_layout = 0
    for node in ast.walk(tree):
      if isinstance(node, ast.FunctionDef):
        texts = [ast.unparse(decorator) for decorator in node.decorator_list]
        with_layout += any('jax.jit' in text for text in texts) and 'runs_model' in texts
      if isinstance(node, ast.Call) and ast.unparse(node.func) == 'jax.jit' and node.args:
        argument = ast.unparse(node.args[0])
        local = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == argument]
        with_layout += 'runs_model' in argument or any(map(decorated, local))
    if len(jits) > with_layout:
      counts[path] = len(jits) - with_layout
  assert counts == WITHOUT_A_MODEL


def test_every_model_of_parameters_is_placed_or_in_a_step():
  """`Blueprint.model` is the way from parameters to a model."""
  number = 0
  for path, tree in trees():
    for name, function in functions(tree):
      for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        text = ast.unparse(call.func)
        if not text.endswith(('blueprint.model', 'teacher.model')) or 'rngs' in ast.unparse(call):
          continue
        number += 1
        around = ast.unparse(function)
        assert f'Placed({ast.unparse(call)}' in around or (
          'in_step(' in around and 'layout=' in around
        ), f'{path}: {name} makes a model without its layout'
  assert number >= 6


def part():
  return Placed(MLP(4, hidden_dim=8, rngs=nnx.Rngs(0)), LAYOUT)


def test_a_placed_model_is_a_tree_with_the_names_of_its_parameters():
  placed = part()
  assert dict(named_leaves(placed)).keys() == {
    f'model.{name}' for name, _ in named_leaves(part().model)
  }
  doubled = jax.tree.map(lambda a: 2 * a, placed)
  assert doubled.layout == LAYOUT
  np.testing.assert_array_equal(doubled.model.up.kernel[...], 2 * placed.model.up.kernel[...])
  assert copy.deepcopy(placed).layout == LAYOUT
  assert module_of(placed) is placed.model and module_of(placed.model) is placed.model


class Seen:
  """A model that returns the layout in which it is called."""

  spec = 'its spec'

  def __call__(self):
    return step_context().layout

  def hidden(self):
    return step_context().layout


def test_calls_and_functions_are_in_the_layout_and_attributes_are_read_of_the_module():
  placed = Placed(Seen(), LAYOUT)
  assert placed() == runs_model(lambda model: model.hidden())(placed) == LAYOUT
  assert module_of(placed).spec == 'its spec'
  assert runs_model(lambda model: (type(model), model()))(placed) == (Seen, LAYOUT)
  assert runs_model(lambda model: model())(Seen()) is None
  with pytest.raises(AttributeError, match='spec'):
    placed.spec  # noqa: B018


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
