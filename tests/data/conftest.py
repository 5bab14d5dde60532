"""Shared by the tests of the data room."""

import sys
from pathlib import Path

import pytest

# Spawned workers find the helpers as well: they are given this process's sys.path.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope='session')
def library():
  """A little real code with lines, indents and tabs."""
  import textwrap
  import this  # noqa: F401

  folder = Path(textwrap.__file__).parent
  names = ('textwrap.py', 'bisect.py', 'heapq.py', 'string.py', 'copy.py', 'queue.py')
  return [(folder / name).read_text(encoding='utf-8') for name in names]
