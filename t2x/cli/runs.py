"""The command `t2x runs`, which lists and compares runs."""

import argparse
import collections
import dataclasses
import json
import sys
import time
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.text_table import text_table
from t2x.cli.options import add_json, refuse

HELP = 'list run folders with their state, or compare runs on one page'
TAKES_BINDINGS = False

# Columns of the list.
_SORT_KEYS = ('path', 'state', 'step', 'best', 'last', 'age', 'host')

_USAGE = """t2x runs [DIR] [--sort KEY] [--reverse] [--json]
       t2x runs compare RUN [RUN ...] [--out FILE] [--metric SPLIT/NAME]"""


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.usage = _USAGE
  parser.add_argument(
    'paths',
    nargs='*',
    metavar='DIR',
    help='folder of the runs to list (default: runs), or `compare` followed by the run folders to compare',
  )
  parser.add_argument('--sort', choices=_SORT_KEYS, help='column to sort by (default: path)')
  parser.add_argument('--reverse', action='store_true', help='sort in descending order')
  parser.add_argument(
    '--out',
    metavar='FILE',
    help='with `compare`: page to write (default: compare.html in the first RUN, or compare-2.html, ...); FILE.svg, '
    'FILE.pdf or FILE.png is a figure of the learning curves instead',
  )
  parser.add_argument(
    '--metric',
    metavar='SPLIT/NAME',
    help='with `compare`: metric of the figure, such as eval/loss (default: the first metric on the page)',
  )
  add_json(parser)


def run(args: argparse.Namespace) -> int:
  """Lists runs, or writes the page that compares runs."""
  if args.paths[:1] == ['compare']:
    return _compare(args)
  refuse(args, 'has no effect without `compare`', 'out', 'metric')
  if len(args.paths) > 1:
    raise UserError('expected one folder; `t2x runs compare RUN RUN ...` compares runs')
  return _list(args)


def _list(args: argparse.Namespace) -> int:
  from t2x.runs.folders import find_runs, sort_runs, table_rows

  folder = Path(*args.paths or ['runs'])
  runs = sort_runs(find_runs(folder), args.sort or 'path', args.reverse)
  if args.json:
    print(json.dumps([dataclasses.asdict(run) for run in runs], ensure_ascii=False))
    return 0
  if runs:
    rows = table_rows(runs, time.time())
    print(text_table(rows, '<<><>>>>>'.ljust(len(rows[0]), '<')))
  states = collections.Counter(run.state for run in runs)
  counts = ', '.join(f'{count} {state}' for state, count in sorted(states.items()))
  print(f'{len(runs)} runs in {folder}' + (f': {counts}' if runs else ''), file=sys.stderr)
  return 0


def _compare(args: argparse.Namespace) -> int:
  refuse(args, 'has no effect on `compare`', 'sort', 'reverse', 'json')
  from t2x.base.files import unused_path
  from t2x.runs.compare import write_comparison

  folders = [Path(path) for path in args.paths[1:]]
  out = Path(args.out) if args.out else unused_path(Path(*folders[:1]) / 'compare.html')
  for problem in write_comparison(folders, out, args.metric):
    print(f't2x: {problem}', file=sys.stderr)
  print(out)
  return 0
