"""The house plan: imports run one way, files and functions stay short."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FILE, MAX_FUNCTION = 404, 60

# What each room of t2x/ may import from the others. The command line may import all.
MAY_IMPORT = {
  'config': set(),
  'launch': set(),
  'layers': set(),
  'data': set(),
  'models': {'layers'},
  'parallel': {'layers'},
  'decode': {'models', 'layers'},
  'tasks': {'data', 'models', 'layers', 'decode'},
  'look': {'tasks', 'data', 'models', 'layers'},
  'train': {'tasks', 'data', 'models', 'layers', 'decode', 'parallel'},
  'runs': {'config', 'sweeps', 'train'},
  'interop': {'config', 'train', 'tasks', 'data', 'decode', 'models', 'layers'},
  'plan': {'train', 'models', 'parallel'},
  'testing': {'train', 'models', 'layers', 'parallel'},
  'sweeps': {'config', 'train', 'tasks', 'data', 'models', 'layers', 'parallel', 'decode'},
}

FILES = sorted([*ROOT.glob('t2x/**/*.py'), *ROOT.glob('tests/**/*.py')])


def imports(tree):
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, 'imports are absolute'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('room', MAY_IMPORT)
def test_imports_follow_the_arrows(room):
  for path in (ROOT / 't2x' / room).rglob('*.py'):
    for name in imports(ast.parse(path.read_text())):
      parts = name.split('.')
      if parts[0] == 't2x' and len(parts) > 1 and parts[1] in MAY_IMPORT:
        assert parts[1] in MAY_IMPORT[room] | {room}, f'{path}: {name}'


@pytest.mark.parametrize('module', ['jax', 'flax', 'tensorflow'])
def test_data_is_numpy_only(module):
  for path in (ROOT / 't2x' / 'data').rglob('*.py'):
    for name in imports(ast.parse(path.read_text())):
      assert name.split('.')[0] != module, f'{path}: {name}'


def test_files_and_functions_are_short():
  for path in FILES:
    text = path.read_text()
    assert text.count('\n') <= MAX_FILE, path
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.FunctionDef):
        assert node.end_lineno - node.lineno < MAX_FUNCTION, f'{path}: {node.name}'
