"""The command `t2x show`."""

import argparse
import sys
from pathlib import Path

from t2x.base.errors import UserError
from t2x.cli.options import add_devices, add_files, count

HELP = 'print the resolved config with the origin of each value'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_files(parser)
  parser.add_argument(
    '--sharding',
    action='store_true',
    help='print the shards of the train state and the batch on each device',
  )
  add_devices(parser)
  parser.add_argument(
    '--pattern',
    metavar='FILE',
    help="write a picture of the model's attention patterns to this PNG file",
  )
  parser.add_argument(
    '--length',
    type=count,
    default=64,
    metavar='N',
    help='with --pattern: number of tokens to draw (default: 64)',
  )


def run(args: argparse.Namespace) -> int:
  """Prints the resolved config or the sharding, or draws the attention patterns."""
  from t2x.config import show
  from t2x.experiments import read_config

  if args.sharding and args.pattern:
    raise UserError('--pattern has no effect with --sharding: run the command once with each')
  config = read_config(args.files, args.overrides)
  for note in config.notes():
    print(f't2x: {note}', file=sys.stderr)
  if args.sharding:
    from t2x.train import layout_report

    print(layout_report(config.build(), args.devices))
  elif args.pattern:
    from t2x.look.pattern_images import draw_patterns

    for path, pattern in draw_patterns(config.build(), Path(args.pattern), args.length):
      print(f'{path}: {pattern}')
  else:
    print(show(config))
  return 0
