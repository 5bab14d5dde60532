"""The structure of tasks: few base classes, functions written once, and errors for tasks of former base classes."""

import ast
import collections
import importlib
from pathlib import Path

import pytest

import t2x.tasks
from t2x.base.errors import UserError
from t2x.base.names import names, packages
from t2x.tasks import Task
from t2x.tasks.former import BASES, HOOKS

T2X = Path(t2x.tasks.__file__).parents[1]
# Functions that equal another one. Lower it when there are fewer.
NUM_EQUAL = 8
# Classes between `Task` and a task, that of the task included.
MAX_DEPTH = 3


def functions():
  """Yields the place and the syntax tree of each function of tasks, without its docstring."""
  for path in sorted(
    path for folder in ('tasks', 'domains') for path in T2X.glob(f'{folder}/**/*.py')
  ):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.FunctionDef):
        # Without its docstring, and the '...' of a protocol.
        body = [
          s
          for s in node.body
          if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        ]
        if body:
          tree = ast.Module([ast.FunctionDef('', node.args, body, [])], [])
          yield f'{path.relative_to(T2X)}:{node.name}', ast.dump(tree)


def test_few_functions_of_tasks_equal_another_one():
  places = collections.defaultdict(list)
  for place, tree in functions():
    places[tree].append(place)
  equal = [own for own in places.values() if len(own) > 1]
  assert sum(len(own) - 1 for own in equal) <= NUM_EQUAL, equal


def tasks():
  """Returns all classes of tasks that are part of t2x."""
  for module in {entry.module for package in packages() for entry in names(package)}:
    importlib.import_module(module)
  classes, found = [Task], []
  while classes:
    new = [c for c in classes.pop().__subclasses__() if c.__module__.startswith('t2x.')]
    found, classes = found + new, classes + new
  return set(found)


def test_no_task_is_more_than_three_classes_deep():
  depths = {cls.__name__: sum(issubclass(c, Task) for c in cls.__mro__) - 1 for cls in tasks()}
  assert len(depths) > 30
  assert not {name for name, depth in depths.items() if depth > MAX_DEPTH}


@pytest.mark.parametrize('name', BASES)
@pytest.mark.parametrize(
  'module', ['t2x.tasks', 't2x.tasks.text', 't2x.tasks.distillation', 't2x.tasks.translation']
)
def test_the_import_of_a_former_base_class_says_the_line_to_write(name, module):
  with pytest.raises(ImportError, match=rf'{module} has no {name} any more: derive from \w+'):
    getattr(importlib.import_module(module), name)


def test_names_that_never_existed_cannot_be_imported():
  with pytest.raises(ImportError, match='NoTask'):
    exec('from t2x.tasks import NoTask')


@pytest.mark.parametrize(
  ('name', 'base'), [(name, base) for name, (bases, _) in HOOKS.items() for base in bases]
)
def test_a_task_that_overrides_a_former_hook_is_refused(name, base):
  [task] = [cls for cls in tasks() if cls.__name__ == base]
  assert not hasattr(task, name)
  with pytest.raises(UserError, match=rf'Mine.{name} would not be called: override'):
    type('Mine', (task,), {name: lambda self: None})
  with pytest.raises(UserError, match=rf'Mine.{name} would not be read: override'):
    type('Mine', (task,), {name: 'length'})


@pytest.mark.parametrize('name', HOOKS)
def test_other_tasks_may_use_the_name_of_a_former_hook(name):
  assert hasattr(type('Mine', (Task,), {name: None}), name)


def test_a_task_that_learns_from_a_teacher_defines_its_predictions():
  mine = type(
    'Mine',
    (Task,),
    {'learns_from_teacher': True, 'spec': None, 'target_weights': None, 'sums': None},
  )
  with pytest.raises(
    TypeError, match='Mine learns from a teacher: define distillation and predictions'
  ):
    mine().check_teacher(None, None)


def test_evaluators_do_not_assert_the_class_of_a_task():
  """`TaskEvaluator.check` refuses tasks of other classes, and `Evaluated` has the class of its task."""
  texts = {
    path.name: path.read_text()
    for folder in ('tasks', 'domains')
    for path in T2X.glob(f'{folder}/**/*.py')
  }
  assert not [name for name, text in texts.items() if 'assert isinstance(task' in text]
