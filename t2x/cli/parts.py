"""The command `t2x parts`, which lists what gin files can name."""

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t2x.config.catalogue import Interface
  from t2x.config.signature import Part

HELP = 'list the parts that gin files can name, or describe one'
TAKES_BINDINGS = False

# Classes that sweep files bind, and the parameters that their reader sets; no parts of an experiment.
_SWEEPS = ('Sweep', 'Tune')
_SET_BY_READER = ('Sweep.file', 'Sweep.shared')


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument(
    'name',
    nargs='?',
    metavar='NAME',
    help='a part such as MultiHeadAttention, an interface such as Task, or, for sweep files, Sweep or Tune',
  )
  parser.add_argument(
    '--import',
    dest='modules',
    action='append',
    default=[],
    metavar='MODULE',
    help='also list the parts in your own module, which is in this folder or installed',
  )
  parser.add_argument(
    '--markdown', metavar='FOLDER', help='write a page for each interface to this folder'
  )


def run(args: argparse.Namespace) -> int:
  """Prints the parts by interface, or one part with its parameters."""
  from t2x.base.errors import UserError
  from t2x.base.suggestions import did_you_mean
  from t2x.cli.options import refuse
  from t2x.config import catalogue
  from t2x.experiments import registry

  parts = registry(args.modules)
  interfaces = catalogue.interfaces(parts)
  width = shutil.get_terminal_size((100, 24)).columns
  if args.name is not None:
    refuse(args, 'has no effect with a NAME', 'markdown')
    chosen = [
      interface for interface in interfaces if interface.cls.__name__ == args.name.lstrip('@')
    ]
    name = args.name.lstrip('@')
    matches = (_sweep_parts() if name in _SWEEPS else parts).find(name)
    if not matches and not chosen:
      names = [*parts.names(), *(interface.cls.__name__ for interface in interfaces), *_SWEEPS]
      raise UserError(
        f"no part named '{args.name}'{did_you_mean(args.name, names)}; `t2x parts` lists all"
      )
    # An interface without subclasses, such as Trainer, is itself the part.
    listed = [interface for interface in chosen if [*interface.parts] != matches]
    for interface in listed:
      print('\n'.join(_listed(interface, width)))
    for part in matches if not listed else ():
      print('\n'.join(_described(part, interfaces, width)))
  elif args.markdown is not None:
    from t2x.base.files import check_folder, output_file

    folder = Path(args.markdown)
    check_folder('--markdown', folder)
    folder.mkdir(parents=True, exist_ok=True)
    for interface in interfaces:
      with output_file('--markdown', folder / f'{interface.cls.__name__}.md') as file:
        file.write(_page(interface))
    print(f'wrote {len(interfaces)} pages to {folder}')
  else:
    for interface in interfaces:
      print('\n'.join([*_listed(interface, width), '']))
    print('t2x parts NAME describes a part and its parameters')
  return 0


def _sweep_parts() -> Any:
  """Returns a registry of the classes that sweep files bind."""
  from t2x.config import Registry
  from t2x.sweeps import sweep, tune

  registry = Registry()
  registry.add_object('t2x.sweeps', 'Sweep', sweep.Sweep)
  registry.add_object('t2x.sweeps', 'Tune', tune.Tune)
  return registry


def _places(interface: 'Interface', most: int = 4) -> str:
  shown = ', '.join(interface.places[:most])
  return shown + (
    f' and {len(interface.places) - most} more' if len(interface.places) > most else ''
  )


def _listed(interface: 'Interface', width: int) -> Iterator[str]:
  """Yields the lines of an interface and its parts."""
  from t2x.config import catalogue

  head = f'{interface.cls.__name__}: {catalogue.summary(interface.cls)}'
  yield from textwrap.wrap(f'{head} Taken by {_places(interface)}.', width, subsequent_indent='  ')
  longest = max(len(part.name) for part in interface.parts)
  for part in interface.parts:
    start = f'  {part.name:{longest}}  '
    yield _cut(start + catalogue.summary(part.obj), width)


def _cut(line: str, width: int) -> str:
  return line if len(line) <= width else f'{line[: width - 3].rstrip()}...'


def _described(part: 'Part', interfaces: Iterable['Interface'], width: int) -> Iterator[str]:
  """Yields the lines about a part."""
  from t2x.config import catalogue

  yield f'@{part.name}: {part.obj.__module__}.{part.name}'
  for interface in interfaces:
    if part in interface.parts:
      yield f'a {interface.cls.__name__}, taken by {_places(interface)}'
  yield ''
  yield from textwrap.wrap(catalogue.summary(part.obj), width)
  yield from catalogue.papers(part.obj)
  for name, kind, default, text in catalogue.parameters(part):
    if f'{part.name}.{name}' in _SET_BY_READER:
      continue
    yield ''
    yield from textwrap.wrap(f'{part.name}.{name} = {default}', width, subsequent_indent='    ')
    yield from textwrap.wrap(
      f'{kind}. {text}', width, initial_indent='    ', subsequent_indent='    '
    )


def _page(interface: 'Interface') -> str:
  """Returns the Markdown page of an interface."""
  from t2x.base.files import MARK
  from t2x.config import catalogue

  lines = [
    f'# {interface.cls.__name__}',
    '',
    catalogue.summary(interface.cls),
    '',
    f'Taken by {_places(interface, 12)}.',
    '',
  ]
  for part in interface.parts:
    lines += [f'## {part.name}', '', catalogue.summary(part.obj), '']
    if addresses := catalogue.papers(part.obj):
      links = ', '.join(f'<{address}>' for address in addresses)
      lines.append(f'Paper{"s" * (len(addresses) > 1)}: {links}')
    rows = catalogue.parameters(part)
    if rows:
      lines += ['', '| parameter | type | default | |', '|---|---|---|---|']
      for name, kind, default, text in rows:
        cells = [f'`{name}`', kind, f'`{default}`', text]
        escaped = [cell.replace('|', '\\|') for cell in cells]
        lines.append(f'| {" | ".join(escaped)} |')
    lines.append('')
  return '\n'.join([*lines, f'<!-- {MARK} -->', ''])
