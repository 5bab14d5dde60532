"""The command `t2x report`."""

import argparse
import json
import sys
from pathlib import Path

from t2x.cli.options import add_json, positive

HELP = 'write results.csv, report.md and report.html of a finished or running sweep'
TAKES_BINDINGS = False


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('sweep', metavar='DIR', help='sweep folder, which contains sweep.json')
  parser.add_argument(
    '--watch', action='store_true', help='update the report when trials end, until all have ended'
  )
  every = 'seconds between updates of --watch (default: 30)'
  parser.add_argument('--every', type=positive, default=30.0, metavar='SECONDS', help=every)
  add_json(parser)


def run(args: argparse.Namespace) -> int:
  """Writes a report on the trials that have ended."""
  from t2x.sweeps import report

  folder = Path(args.sweep)
  for results in report.watch(folder, args.every if args.watch else None):
    if args.json:
      print(json.dumps(report.report_data(results), ensure_ascii=False), flush=True)
    else:
      print(f'{results.progress()}; {folder / "report.html"}', flush=True)
    for line in results.damaged:
      print(f't2x: {line}', file=sys.stderr)
  return 0
