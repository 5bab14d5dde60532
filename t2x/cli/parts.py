"""The command `t2x parts`, which lists what gin files can name."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HELP = 'list the parts that gin files can name, or describe one'
TAKES_BINDINGS = False


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument(
    'name',
    nargs='?',
    metavar='NAME',
    help='a part such as MultiHeadAttention, or an interface such as Task',
  )
  parser.add_argument(
    '--import',
    dest='modules',
    action='append',
    default=[],
    metavar='MODULE',
    help='also list the parts of a module of yours, in this folder or installed',
  )
  parser.add_argument(
    '--markdown', metavar='FOLDER', help='write a page for each interface to this folder'
  )


def run(args: argparse.Namespace) -> int:
  """Prints the parts by interface, or one part with its parameters."""
  from t2x.api import registry
  from t2x.cli.options import refuse
  from t2x.config import catalogue, did_you_mean
  from t2x.errors import UserError

  known = registry(args.modules)
  interfaces = catalogue.interfaces(known)
  width = shutil.get_terminal_size((100, 24)).columns
  if args.name is not None:
    refuse(args, 'has no effect with a NAME', 'markdown')
    chosen = [one for one in interfaces if one.cls.__name__ == args.name.lstrip('@')]
    found = known.find(args.name.lstrip('@'))
    if not found and not chosen:
      names = [*known.names(), *(one.cls.__name__ for one in interfaces)]
      raise UserError(
        f"no part named '{args.name}'{did_you_mean(args.name, names)}; `t2x parts` lists all"
      )
    for one in chosen:
      print('\n'.join(_listed(one, width)))
    for part in found if not chosen else ():
      print('\n'.join(_described(part, interfaces, width)))
  elif args.markdown is not None:
    folder = Path(args.markdown)
    folder.mkdir(parents=True, exist_ok=True)
    for one in interfaces:
      (folder / f'{one.cls.__name__}.md').write_text(_page(one))
    print(f'wrote {len(interfaces)} pages to {folder}')
  else:
    for one in interfaces:
      print('\n'.join([*_listed(one, width), '']))
    print('t2x parts NAME describes a part and its parameters')
  return 0


def _places(one: Any, most: int = 4) -> str:
  shown = ', '.join(one.places[:most])
  return shown + (f' and {len(one.places) - most} more' if len(one.places) > most else '')


def _listed(one: Any, width: int) -> Iterator[str]:
  """Yields the lines of an interface and its parts."""
  from t2x.config import catalogue

  head = f'{one.cls.__name__}: {catalogue.summary(one.cls)}'
  yield from textwrap.wrap(f'{head} Taken by {_places(one)}.', width, subsequent_indent='  ')
  longest = max(len(part.name) for part in one.parts)
  for part in one.parts:
    start = f'  {part.name:{longest}}  '
    yield _cut(start + catalogue.summary(part.obj), width)


def _cut(line: str, width: int) -> str:
  return line if len(line) <= width else f'{line[: width - 3].rstrip()}...'


def _described(part: Any, interfaces: Any, width: int) -> Iterator[str]:
  """Yields the lines about a part."""
  from t2x.config import catalogue

  yield f'@{part.name}: {part.obj.__module__}.{part.name}'
  for one in interfaces:
    if part in one.parts:
      yield f'a {one.cls.__name__}, taken by {_places(one)}'
  yield ''
  yield from textwrap.wrap(catalogue.summary(part.obj), width)
  yield from catalogue.papers(part.obj)
  for name, kind, default, text in catalogue.parameters(part):
    yield ''
    yield from textwrap.wrap(f'{part.name}.{name} = {default}', width, subsequent_indent='    ')
    yield from textwrap.wrap(
      f'{kind}. {text}', width, initial_indent='    ', subsequent_indent='    '
    )


def _page(one: Any) -> str:
  """Returns the Markdown page of an interface."""
  from t2x.config import catalogue

  lines = [
    f'# {one.cls.__name__}',
    '',
    catalogue.summary(one.cls),
    '',
    f'Taken by {_places(one, 12)}.',
    '',
  ]
  for part in one.parts:
    lines += [f'## {part.name}', '', catalogue.summary(part.obj), '']
    lines += [f'Paper: <{paper}>' for paper in catalogue.papers(part.obj)]
    rows = catalogue.parameters(part)
    if rows:
      lines += ['', '| parameter | type | default | |', '|---|---|---|---|']
      for name, kind, default, text in rows:
        cells = [f'`{name}`', kind, f'`{default}`', text]
        escaped = [cell.replace('|', '\\|') for cell in cells]
        lines.append(f'| {" | ".join(escaped)} |')
    lines.append('')
  return '\n'.join(lines)
