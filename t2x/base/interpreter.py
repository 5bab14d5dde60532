"""Python interpreters that import the same modules as this process, whatever their working directory contains."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def command(*arguments: str) -> list[str]:
  """Returns the command that starts Python without the working directory on its path."""
  return [sys.executable, '-P', *arguments]


def environment(**variables: str) -> Mapping[str, str]:
  """Returns the environment of `command`: variables of this process, other variables, and its path.

  The folder of this t2x is part of the path, also of a checkout that is not installed.
  """
  folder = str(Path(__file__).parents[2])
  path = sys.path if folder in sys.path else [folder, *sys.path]
  return os.environ | variables | {'PYTHONPATH': os.pathsep.join(path)}
