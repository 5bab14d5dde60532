"""The command `t2x convert`."""

import argparse
from pathlib import Path

from t2x.cli.options import add_checkpoint, refuse_bindings, run_folder

HELP = 'convert models from and to Hugging Face, and convert run folders of older versions'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  commands = parser.add_subparsers(dest='way', required=True, metavar='COMMAND')
  add = commands.add_parser(
    'import', help='convert a Hugging Face model folder (config.json, safetensors) to a run folder'
  )
  model = 'Hugging Face model folder, or a .safetensors file in it'
  add.add_argument('model', metavar='DIR_OR_FILE', help=model)
  add.add_argument('--out', required=True, metavar='RUN', help='new run folder')
  export = commands.add_parser(
    'export',
    help='convert a run folder to a Hugging Face model folder that transformers can load',
  )
  add_checkpoint(export)
  export.add_argument('--to', required=True, metavar='DIR', help='new model folder')
  export.add_argument(
    '--family',
    metavar='NAME',
    help='model_type of the new config.json (default: the first that supports the model)',
  )
  old = commands.add_parser(
    'run', help='convert a run folder of an older t2x version to the current format'
  )
  old.add_argument('run', metavar='RUN', help='old run folder')
  old.add_argument('--to', required=True, metavar='RUN', help='new run folder')


def run(args: argparse.Namespace) -> int:
  """Converts a folder."""
  from t2x.interop import convert

  if args.way == 'import':
    convert.import_folder(args.model, Path(args.out), args.overrides)
    return 0
  refuse_bindings(args)
  if args.way == 'run':
    convert.convert_run(run_folder(args.run), Path(args.to))
  else:
    convert.export_run(run_folder(args.run), Path(args.to), args.checkpoint, args.family)
  return 0
