"""Names, shapes and axes of the parameters of all configs, which checkpoints depend on.

    python -m tests.golden.parameters            prints the lists
    python -m tests.golden.parameters --write    rewrites the files in tests/golden/parameters, one for each config

A changed name or shape means that older checkpoints do not load.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.train import checks
from t2x.train.params import Blueprint
from t2x.train.program import Program

FOLDER = Path(__file__).with_suffix('')
ROOT = Path(__file__).parents[2]

# Blueprints by config, of the tests of a process.
_BLUEPRINTS: dict[Path, Blueprint] = {}


def configs() -> Iterator[Path]:
  """Yields the config files that may have a model; others are sweeps, or need a further file."""
  for folder in ('configs/models', 'configs/runs', 'experiments'):
    yield from sorted((ROOT / folder).rglob('*.gin'))


def stored(file: Path) -> Path:
  """Returns the file that lists the parameters of a config."""
  return FOLDER / file.relative_to(ROOT).with_suffix('.txt')


@contextlib.contextmanager
def shared(file: Path) -> Iterator[None]:
  """Keeps the blueprint that `check_experiment` makes of a config in the context, for `blueprint_of`."""

  class Recorded(Program):
    def __init__(self, *args, **kwargs):
      super().__init__(*args, **kwargs)
      _BLUEPRINTS[file] = self.blueprint

  checks.Program, program = Recorded, checks.Program
  try:
    yield
  finally:
    checks.Program = program


def blueprint_of(file: Path) -> Blueprint:
  """Returns the shapes and metadata of the parameters of a config, which is traced once in a process.

  Raises:
    UserError: the file is no experiment, or has no model.
  """
  if file not in _BLUEPRINTS:
    _BLUEPRINTS[file] = Blueprint(read_config([file]).build().shapes())
  return _BLUEPRINTS[file]


def listed(file: Path) -> str | None:
  """Returns a line per parameter of a config: name, shape, axes; None without a model."""
  try:
    infos = blueprint_of(file).infos.values()
  except UserError:
    return None
  lines = (
    f'{info.name} {" x ".join(map(str, info.shape))} ({" ".join(map(str, info.all_axes))})\n'
    for info in infos
  )
  return ''.join(lines)


def main() -> None:
  """Prints or writes the lists of all configs."""
  write = '--write' in sys.argv[1:]
  texts = {stored(file): text for file in configs() if (text := listed(file)) is not None}
  for path in FOLDER.rglob('*.txt'):
    if write and path not in texts:
      path.unlink()
  for path, text in texts.items():
    if write:
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
    else:
      print(path.relative_to(FOLDER), text, sep='\n')


if __name__ == '__main__':
  main()
