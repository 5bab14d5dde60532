"""The command `t2x check`, which validates configs and sweeps."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.packages import require
from t2x.cli.options import add_devices, add_files, count

HELP = 'check the config and shapes of an experiment or sweep, without data or weights'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_files(parser)
  add_devices(parser)
  parser.add_argument(
    '--coordinates',
    nargs='+',
    metavar='NAME=V,V,...',
    help='train one model per width on one batch and print the size of its activations (to check muP); give the values '
    'of the bindings that set the width, such as d_model=64,128,256 d_ff=256,512,1024',
  )
  parser.add_argument(
    '--steps',
    type=count,
    metavar='N',
    help='with --coordinates: number of training steps (default: 4)',
  )


def run(args: argparse.Namespace) -> int:
  """Resolves a config or the configs of a sweep, and computes the shapes of model, state and step."""
  start = time.monotonic()
  from t2x.experiments import binds_sweep

  sweeps = [file for file in args.files if binds_sweep(file)]
  if sweeps and len(args.files) > 1:
    raise UserError(f'{sweeps[0]} is a sweep file, pass no other files: t2x check {sweeps[0]}')
  if args.steps is not None and args.coordinates is None:
    raise UserError('--steps is the number of steps of --coordinates: pass both')
  if args.coordinates is not None:
    if sweeps:
      raise UserError('--coordinates needs a config, not a sweep')
    return _coordinates(args.files, args.overrides, args.coordinates, args.steps or 4)
  if sweeps:
    from t2x.sweeps.check import check_sweep

    report = check_sweep(Path(sweeps[0]), args.overrides, args.devices)
  else:
    from t2x.experiments import read_config
    from t2x.train import check_experiment

    config = read_config(args.files, args.overrides)
    require(config.packages())
    for note in config.notes():
      print(note)
    report = check_experiment(config.build(), args.devices)
  line, *table = report.split('\n', 1)
  print(f'{" ".join(args.files)}: ok; {line} ({time.monotonic() - start:.1f} s)', *table, sep='\n')
  return 0


def _coordinates(
  files: Sequence[str], overrides: Sequence[str], settings: Sequence[str], num_steps: int
) -> int:
  """Prints the size of activations by width."""
  from t2x.experiments import read_experiment
  from t2x.train.coordinates import coordinates, coordinates_table

  values = {name: row.split(',') for name, _, row in (text.partition('=') for text in settings)}
  lengths = {len(row) for row in values.values()}
  widths = next(iter(values.values()))
  if len(lengths) != 1 or lengths == {1} or not all(width.isdecimal() for width in widths):
    raise UserError(
      f'--coordinates {" ".join(settings)}: write NAME=VALUE,VALUE,... with equally many values, at least two, for '
      'each binding; the first one is the width, such as d_model=64,128,256'
    )
  sizes = []
  for i in range(len(widths)):
    own = [f'{name}={row[i]}' for name, row in values.items()]
    print(f'{", ".join(own)} ({i + 1}/{len(widths)})', file=sys.stderr, flush=True)
    sizes.append(coordinates(read_experiment(files, [*overrides, *own]), num_steps))
  print(coordinates_table([float(width) for width in widths], sizes, num_steps))
  return 0
