"""Scripts of studies and pages import names of t2x that exist, also inside functions."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / 'experiments').rglob('*.py'), *(ROOT / 'docs').rglob('*.py')])


def imported(path):
  """Yields the module and the name of each import of t2x."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split('.')[0] == 't2x':
      yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize('path', SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_names_that_a_script_imports_exist(path):
  for module, name in imported(path):
    # An attribute or a module of the package; else the ImportError has the line to write.
    if not hasattr(importlib.import_module(module), name):
      importlib.import_module(f'{module}.{name}')
