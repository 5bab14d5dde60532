"""Ownership of run folders: one config, and one training process at a time."""

import contextlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.files import check_folder, file_lock

# Files of a run other than its config, its checkpoints and log.txt.
_LEFTOVERS = (
  'examples.npz',
  'fault-*.json',
  'hub',
  'init_from.txt',
  'metrics.jsonl',
  'mlflow.json',
  'modules',
  'norms.jsonl',
  'samples.jsonl',
  'skips.json',
  'status.json',
  'summary.txt',
  'tensorboard',
  'timing.jsonl',
  'tokenizer',
  'wandb.json',
)
# Written besides, and never deleted.
_KEPT = ('profile',)

_ADVICE = 'use --fresh to start over (the old folder is renamed, not deleted) or another --out'


@contextlib.contextmanager
def claim_folder(
  folder: Path, text: str, changed_settings: Callable[[Path], Sequence[str]], fresh: bool
) -> Iterator[None]:
  """Locks a run folder for training; creates the folder if it does not exist.

  A folder belongs to the resolved values of its config.gin, which different texts may share, its code and its
  data. A folder without a checkpoint and without training metrics belongs to no config: the files of its
  failed run are removed.

  Args:
    folder: the run folder.
    text: the rendered config to train.
    changed_settings: returns a line per setting, module or source of data that differs from that of a run.
    fresh: rename the folder of an old run instead of resuming the run.

  Raises:
    UserError: another process trains in the folder, it belongs to another config, its config.gin cannot be
      read, or the folder has files of another origin that training would replace or `fresh` would move.
  """
  check_folder('--out', folder)
  (_check_movable if fresh else _check_origin)(folder, text.encode())
  with contextlib.ExitStack() as stack:
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(_locked(folder))
    if fresh and any(path.name != '.lock' for path in folder.iterdir()):
      _rename_old_run(folder)
      folder.mkdir(exist_ok=True)
      stack.enter_context(_locked(folder))
    elif (folder / 'config.gin').exists():
      _resume(folder, text.encode(), changed_settings)
    yield


def _check_movable(folder: Path, _: bytes) -> None:
  """Raises UserError if a folder is neither empty nor a run, or if moving it would move the working directory."""
  names = {path.name for path in folder.iterdir()} if folder.exists() else set()
  mine = sorted(names - {'.lock', 'log.txt'})
  if mine and not is_run(folder):
    raise UserError(
      f'{folder} is not a run folder, and --fresh would move {folder / mine[0]} away; use another --out'
    )
  here = Path.cwd()
  if mine and folder.resolve() in (here, *here.parents):
    raise UserError(f'--fresh would rename the working directory, {here}: run it elsewhere')


def _check_origin(folder: Path, text: bytes) -> None:
  """Raises UserError if training would replace files in a folder that was never a run."""
  if is_run(folder):
    return
  for pattern in ('config.gin', *_LEFTOVERS, *_KEPT):
    for path in folder.glob(pattern):
      if path.name != 'config.gin' or _bindings(path.read_bytes()) != _bindings(text):
        raise UserError(
          f'{folder} is not a run folder, and training would replace {path}; use another --out'
        )


def is_run(folder: Path) -> bool:
  """Returns whether t2x wrote the status, a checkpoint or the metrics in a folder."""
  with contextlib.suppress(ValueError, AttributeError, OSError):
    status = json.loads((folder / 'status.json').read_bytes())
    if {'state', 'kernel', 'num_steps'} <= status.keys():
      return True
  if not (folder / 'config.gin').is_file():
    return False
  return _has_train_metrics(folder) or any(
    (path / name).exists()
    for path in _checkpoints(folder)
    for name in ('checksums.json', '_CHECKPOINT_METADATA')
  )


def _bindings(text: bytes) -> list[bytes]:
  """Returns the lines without comments, which name folders of modules that depend on the working directory."""
  return [line for line in text.splitlines() if not line.startswith(b'#')]


def _resume(folder: Path, text: bytes, changed_settings: Callable[[Path], Sequence[str]]) -> None:
  """Raises UserError if the folder belongs to another config; removes files of a failed run."""
  started = _has_checkpoint(folder)
  if started or _has_train_metrics(folder):
    # Defaults, code and data may have changed even if the text has not.
    _check_same(folder, changed_settings)
  elif (folder / 'config.gin').read_bytes() != text:
    _remove(folder, _LEFTOVERS)
  if not started:
    # The tokenizer is fitted again, because the data may have changed.
    _remove(folder, ['tokenizer'])


def _check_same(folder: Path, changed_settings: Callable[[Path], Sequence[str]]) -> None:
  try:
    changes = changed_settings(folder / 'config.gin')
  except UserError as error:
    first, *rest = str(error).splitlines()
    more = f' (and {len(rest)} more)' if rest else ''
    raise UserError(
      f'{folder} belongs to a config that can no longer be read: {first}{more}; {_ADVICE}'
    ) from error
  if changes:
    lines = '\n  '.join(changes)
    raise UserError(f'{folder} belongs to another config:\n  {lines}\n{_ADVICE}')


def _remove(folder: Path, patterns: Iterable[str]) -> None:
  for path in itertools.chain.from_iterable(map(folder.glob, patterns)):
    if path.is_dir():
      shutil.rmtree(path)
    else:
      path.unlink()


def _has_checkpoint(folder: Path) -> bool:
  return bool(_checkpoints(folder))


def _checkpoints(folder: Path) -> list[Path]:
  paths = folder.glob('checkpoints/*')
  return [path for path in paths if path.name.isdigit() or path.name.startswith('corrupt-')]


def _has_train_metrics(folder: Path) -> bool:
  path = folder / 'metrics.jsonl'
  return path.exists() and any(map(_is_train_metrics, path.read_bytes().splitlines()))


def _is_train_metrics(line: bytes) -> bool:
  try:
    return json.loads(line)['split'] == 'train'
  except (ValueError, KeyError, TypeError):
    return False


def _locked(folder: Path) -> contextlib.AbstractContextManager[None]:
  def busy():
    raise UserError(
      f'another process is training in {folder}: wait until it ends or use another --out', 1
    )

  return file_lock(folder / '.lock', busy)


def _rename_old_run(folder: Path) -> None:
  place, number = Path(os.path.abspath(folder)), 1
  while os.path.lexists(renamed := place.with_name(f'{place.name}.old-{number}')):
    number += 1
  try:
    # A link is renamed, not its target. No copy to another disk, after which the folder would be deleted.
    os.rename(place, renamed)
  except OSError as error:
    raise UserError(f'{folder} cannot be renamed: {error.strerror}; use another --out') from error
  print(f't2x: renamed the folder of the old run to {renamed}', file=sys.stderr)
