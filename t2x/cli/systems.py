"""The command `t2x systems`, which lists the published systems that configs train."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from t2x.config.headers import System

HELP = 'list the implemented systems from the literature, with their tests and results'
TAKES_BINDINGS = False


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('name', nargs='?', metavar='NAME', help='a system or a group; default: all')
  parser.add_argument(
    '--groups', action='store_true', help='print the number of systems in each group'
  )


def run(args: argparse.Namespace) -> int:
  """Prints the systems by group, or the details of a system or group."""
  from t2x.base.errors import UserError
  from t2x.base.suggestions import did_you_mean
  from t2x.config import shipped_folder
  from t2x.config.headers import systems

  shipped = systems(shipped_folder())
  if args.name is not None:
    name = args.name.lower()
    chosen = [system for system in shipped if name in (system.name.lower(), system.group.lower())]
    if not chosen:
      names = [system.name for system in shipped] + sorted({system.group for system in shipped})
      raise UserError(
        f"no system '{args.name}'{did_you_mean(args.name, names)}; `t2x systems` lists all"
      )
    width = shutil.get_terminal_size((100, 24)).columns
    print('\n\n'.join('\n'.join(_described(system, width)) for system in chosen))
  elif args.groups:
    print('\n'.join(_counts(shipped)))
  else:
    print('\n'.join([*_listed(shipped), '', *_counts(shipped)[-1:]]))
  return 0


def largest(system: 'System') -> str:
  """Returns the reference of a system and the largest difference that its test measured, as text."""
  rows = [
    f'{reference}: '
    + ', '.join(f'{of} {row[of]:.0e}' if row[of] else f'{of} 0' for of in row if of != 'test')
    for reference, row in system.references.items()
  ]
  return '; '.join(rows) or 'no difference recorded'


def _counts(systems: 'Sequence[System]') -> list[str]:
  """Returns the number of systems in each group, and a line with the totals."""
  from t2x.base.text_table import text_table

  groups = sorted({system.group for system in systems})
  rows = [(g, str(sum(system.group == g for system in systems))) for g in groups]
  # Other references are formulas and published code that the test contains.
  own = ('NumPy', 'PyTorch')
  packages = [s for s in systems if any(not r.startswith(own) for r in s.references)]
  return [
    *text_table([('group', 'systems'), *rows], '<>').splitlines(),
    f'{len(systems)} systems; {len(packages)} are compared with an independent package',
  ]


def _listed(systems: 'Sequence[System]') -> Iterator[str]:
  """Yields a line for each system, below the name of its group."""
  from t2x.base.text_table import text_table

  rows = [(f'  {s.name}', largest(s), s.config) for s in systems]
  lines = text_table(rows, '<<<').splitlines()
  group = ''
  for system, line in zip(systems, lines, strict=True):
    if system.group != group:
      group = system.group
      yield group
    yield line


def _described(system: 'System', width: int) -> Iterator[str]:
  """Yields the lines about a system."""
  yield f'{system.name} ({system.group})'
  if system.paper:
    yield f'  paper      {system.paper}'
  yield f'  config     {system.config}'
  for reference, row in system.references.items():
    differences = ', '.join(f'{of} {row[of]:.1e}' for of in ('outputs', 'gradients') if of in row)
    yield f'  reference  {reference}: {differences}'
    yield f'  test       {row["test"]}'
  yield from textwrap.wrap(
    system.result or 'not measured',
    width,
    initial_indent='  result     ',
    subsequent_indent=' ' * 13,
  )
