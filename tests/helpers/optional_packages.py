"""Tests that `importorskip` may skip: they need a package that the extra `test` does not install."""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def may_skip(path: Path, function: str) -> bool:
  """Returns True if a test depends on a call of `importorskip`.

  Args:
    path: test file.
    function: name of the test function in it.
  """
  files = {path} if path.parent == TESTS else {path, path.with_name('conftest.py')}
  return any({'', function} & skipping(file) for file in files if file.exists())


@functools.cache
def skipping(path: Path) -> frozenset[str]:
  """Returns the names of the functions in a file that call `importorskip` or use one that does; '': the whole file."""
  text = path.read_text()
  helpers = [
    TESTS / 'helpers' / f'{name}.py' for name in re.findall(r'^(?:from|import) (\w+)', text, re.M)
  ]
  if any('' in skipping(helper) for helper in helpers if helper.exists()):
    return frozenset({''})
  if 'importorskip(' not in text:
    return frozenset()
  words = [
    (getattr(node, 'name', ''), set(re.findall(r'\w+', ast.unparse(node))))
    for node in ast.parse(text).body
    if not isinstance(node, ast.ClassDef)
  ]
  names = {'importorskip'}
  while found := {name for name, used in words if used & names} - names:
    names |= found
  return frozenset(names)
