"""Gin files that come with t2x, and the paths by which commands and configs name gin files."""

import os
import re
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.suggestions import did_you_mean

__all__ = ['gin_path', 'shipped_folder', 'unreadable']

PREFIX = 't2x:'


def shipped_folder() -> Path:
  """Returns the folder of `configs/` and `experiments/`: `t2x/shipped` of a wheel, else the checkout."""
  package = Path(__file__).parents[1]
  return package / 'shipped' if (package / 'shipped').is_dir() else package.parent


def gin_path(name: str) -> str:
  """Returns the path of a gin file.

  Args:
    name: a path; 't2x:' and a path in `configs/` or beside it, such as 't2x:runs/quickstart.gin'; or the name of a file
      in `configs/runs/`, such as 'quickstart'. A file of the working directory comes before that.

  Raises:
    UserError: no file of t2x has the path after 't2x:'.
  """
  folder = shipped_folder()
  if name.startswith(PREFIX):
    path = name.removeprefix(PREFIX)
    for candidate in (folder / 'configs' / path, folder / path):
      if candidate.is_file():
        return str(candidate)
    names = [f'{PREFIX}{one}' for one in _configs()]
    raise UserError(f"t2x has no config '{path}'{did_you_mean(name, names)}")
  run = folder / 'configs' / 'runs' / f'{name}.gin'
  is_name = os.path.basename(name) == name and not os.path.isfile(name)
  return str(run) if is_name and run.is_file() else name


def unreadable(path: str, error: OSError) -> str:
  """Returns why a gin file cannot be read, with the most similar file, or the form of a binding."""
  if re.match(r'[\w./]+=', path):
    return f'{error.strerror or error}; did you mean --gin.{path}?'
  folder, shipped = os.path.dirname(path), _configs()
  names = [os.path.join(folder, one.name) for one in Path(folder).glob('*.gin')]
  if not folder:
    names += [Path(one).stem for one in shipped if one.startswith('runs/')]
  if (part := path.rpartition('configs/')[2]) in shipped:
    # Of a page that was written for a checkout.
    return f"{error.strerror}; did you mean '{PREFIX}{part}'?"
  return f'{error.strerror or error}{did_you_mean(path, names)}'


def _configs() -> list[str]:
  folder = shipped_folder() / 'configs'
  return [str(path.relative_to(folder)) for path in sorted(folder.rglob('*.gin'))]
