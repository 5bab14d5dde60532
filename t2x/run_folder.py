"""Whose a run folder is: one config's, and one training's at a time."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from t2x import config as config_lib
from t2x.errors import UserError
from t2x.files import locked

__all__ = ['claimed']


@contextlib.contextmanager
def claimed(
  folder: Path,
  config: config_lib.Config,
  load: Callable[[list[Path]], config_lib.Config],
  fresh: bool,
) -> Iterator[None]:
  """Holds a run folder for a training, and makes it where it is missing.

  Args:
    folder: the run folder.
    config: what is to be trained.
    load: reads the config that is there, to tell the differences.
    fresh: an old run is set aside (renamed, so that nothing saved is lost) instead of continued.

  Raises:
    UserError: another process trains there, or the folder belongs to another config.
  """
  old = folder / 'config.gin'
  with contextlib.ExitStack() as stack:
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(_locked(folder))
    if fresh and any(one.name != '.lock' for one in folder.iterdir()):
      _set_aside(folder)
      folder.mkdir()
      stack.enter_context(_locked(folder))
    elif old.exists() and old.read_text() != config_lib.render(config):
      differences = '\n  '.join(config_lib.diff(load([old]), config))
      raise UserError(
        f'{folder} belongs to another config:\n  {differences}\n'
        'use --fresh to start again (the old folder is kept), or another --out'
      )
    yield


def _locked(folder: Path) -> contextlib.AbstractContextManager[None]:
  def busy():
    raise UserError(
      f'another process is training in {folder}: wait for its end, or use another --out', 1
    )

  return locked(folder / '.lock', busy)


def _set_aside(folder: Path) -> None:
  number = 1
  while (aside := folder.with_name(f'{folder.name}.old-{number}')).exists():
    number += 1
  shutil.move(folder, aside)
  print(f't2x: the old run is kept in {aside}', file=sys.stderr)
