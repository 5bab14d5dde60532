"""The command `t2x diff`, which compares configs."""

import argparse
from pathlib import Path

HELP = 'print the differences between two configs'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('a', metavar='FILE_OR_RUN', help='gin file or run folder')
  parser.add_argument('b', metavar='FILE_OR_RUN', help='gin file or run folder')


def run(args: argparse.Namespace) -> int:
  """Prints the differences between two configs, in code and data too; returns 1 if there are any."""
  from t2x.config import change_lines, differences
  from t2x.experiments import resolve

  sides = [resolve(Path(side), args.overrides) for side in (args.a, args.b)]
  lines = change_lines(differences(*sides))
  print('\n'.join(lines) if lines else 'no difference')
  return 1 if lines else 0
