"""The command `t2x check`, which validates configs and sweeps."""

import argparse
import time
from pathlib import Path

from t2x.cli.options import add_devices, add_files
from t2x.errors import UserError

HELP = 'check the config and the shapes of an experiment or sweep, without data and weights'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_files(parser)
  add_devices(parser)


def run(args: argparse.Namespace) -> int:
  """Resolves a config or the configs of a sweep, and computes the shapes of model, state and step."""
  start = time.monotonic()
  from t2x.sweeps.sweep import binds_sweep

  sweeps = [file for file in args.files if binds_sweep(file)]
  if sweeps and len(args.files) > 1:
    raise UserError(f'{sweeps[0]} is a sweep file, pass no other files: t2x check {sweeps[0]}')
  if sweeps:
    from t2x.sweeps.check import check_sweep

    report = check_sweep(Path(sweeps[0]), args.overrides, args.devices)
  else:
    from t2x.api import read_config
    from t2x.train import check_experiment

    config = read_config(args.files, args.overrides)
    for note in config.notes():
      print(note)
    report = check_experiment(config.build(), args.devices)
  line, *table = report.split('\n', 1)
  print(f'{" ".join(args.files)}: ok; {line} ({time.monotonic() - start:.1f} s)', *table, sep='\n')
  return 0
