"""Names, shapes and axes of the parameters of all configs, which checkpoints depend on.

    python -m tests.golden.parameters            prints the list
    python -m tests.golden.parameters --write    rewrites tests/golden/parameters.txt

A changed name or shape means that older checkpoints do not load.
"""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.train.params import Blueprint

FILE = Path(__file__).with_suffix('.txt')
ROOT = Path(__file__).parents[2]


def configs() -> Iterator[Path]:
  """Yields the config files that may have a model; others are sweeps, or need a further file."""
  for folder in ('configs/models', 'configs/runs', 'experiments'):
    yield from sorted((ROOT / folder).rglob('*.gin'))


@functools.cache
def shapes_of(file: Path) -> Any:
  """Returns the model of a config with shapes as leaves."""
  return read_config([file]).build().shapes()


def listed() -> str:
  """Returns a line per parameter: name, shape, axes."""
  lines = []
  for file in configs():
    try:
      infos = Blueprint(shapes_of(file)).infos.values()
    except UserError:
      continue
    lines.append(str(file.relative_to(ROOT)))
    lines += [
      f'  {info.name} {" x ".join(map(str, info.shape))} ({" ".join(map(str, info.all_axes))})'
      for info in infos
    ]
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  if '--write' in sys.argv[1:]:
    FILE.write_text(listed())
  else:
    print(listed(), end='')
