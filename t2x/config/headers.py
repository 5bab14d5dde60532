"""Headers of config files, and the systems that they name."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError

__all__ = ['System', 'header', 'systems']

_SYSTEM = re.compile(r'System: (?P<group>[^:]+): (?P<name>.+) \((?P<paper>https?://\S+|[^()]+)\)$')


@dataclasses.dataclass(frozen=True)
class System:
  """A published system that a config trains.

  Attributes:
    group: what it changes, such as 'positions'.
    name: its name.
    paper: address of the paper, or authors and year.
    config: path of the config, relative to the checkout.
    result: what was measured, from the header of the config or the name of the page of its study.
    references: reference -> the test and its largest differences, relative to the largest element.
  """

  group: str
  name: str
  paper: str
  config: str
  result: str
  references: Mapping[str, Mapping[str, Any]]


def header(path: Path) -> list[list[str]]:
  """Returns the paragraphs of the comment at the head of a gin file, as lines without the comment sign."""
  paragraphs: list[list[str]] = [[]]
  for line in path.read_text().splitlines():
    if not line.startswith('#'):
      break
    if text := line[1:].removeprefix(' '):
      paragraphs[-1].append(text)
    elif paragraphs[-1]:
      paragraphs.append([])
  return paragraphs


def systems(checkout: Path) -> list[System]:
  """Returns the systems by group and name, from lines `# System: GROUP: NAME (PAPER)` in the headers of the
  configs, and from the differences that the tests recorded.

  Args:
    checkout: the folder with `configs/`, `experiments/` and `tests/`.

  Raises:
    UserError: such a line is invalid, or two configs have the same system.
  """
  differences = json.loads((checkout / 'tests' / 'differences.json').read_text())
  found: dict[str, System] = {}
  for folder in ('configs', 'experiments'):
    for config in sorted((checkout / folder).rglob('*.gin')):
      for system in _systems_of(config, checkout, differences):
        if system.name in found:
          first = found[system.name].config
          raise UserError(f"the system '{system.name}' is in {first} and in {system.config}")
        found[system.name] = system
  # Families that are imported have no config of their own.
  for name in differences.keys() - found.keys():
    found[name] = System('imported', name, '', 't2x convert import', '', differences[name])
  return sorted(found.values(), key=lambda system: (system.group, system.name.lower()))


def _systems_of(config: Path, checkout: Path, differences: Mapping[str, Any]) -> Iterator[System]:
  """Yields the systems in the header of a config."""
  paragraphs = header(config)
  name = str(config.relative_to(checkout))
  for line in (
    line for paragraph in paragraphs for line in paragraph if line.startswith('System:')
  ):
    match = _SYSTEM.match(line)
    if match is None:
      raise UserError(f"{name}: expected 'System: GROUP: NAME (PAPER)', got '{line}'")
    measured = [p for p in paragraphs if p and p[0].startswith('Measured')]
    study = config.parent / 'README.md'
    page = str(study.relative_to(checkout)) if study.exists() else ''
    result = ' '.join(measured[0]) if measured else page
    yield System(
      match['group'],
      match['name'],
      match['paper'],
      name,
      result,
      differences.get(match['name'], {}),
    )
