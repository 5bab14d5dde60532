"""`t2x convert`."""

import argparse
from pathlib import Path

from t2x.cli.options import add_checkpoint, refuse_bindings, run_folder

HELP = 'convert models from and to Hugging Face folders, and run folders of older versions'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  ways = parser.add_subparsers(dest='way', required=True, metavar='WAY')
  add = ways.add_parser('import', help='a model folder (config.json, safetensors) -> a run folder')
  model = 'the folder, or a .safetensors file in it'
  add.add_argument('model', metavar='FOLDER_OR_FILE', help=model)
  add.add_argument('--out', required=True, metavar='RUN', help='the run folder to be written')
  export = ways.add_parser('export', help='a run folder -> a folder that transformers loads')
  add_checkpoint(export)
  export.add_argument('--to', required=True, metavar='FOLDER', help='the folder to be written')
  export.add_argument('--family', help='as config.json names it (default: the one that fits)')
  old = ways.add_parser('run', help='a run folder of an older t2x -> one that this version reads')
  old.add_argument('run', metavar='RUN', help='the old run folder')
  old.add_argument('--to', required=True, metavar='NEW_RUN', help='the run folder to be written')


def run(args: argparse.Namespace) -> int:
  """Converts a folder."""
  from t2x import convert

  if args.way == 'import':
    convert.import_folder(args.model, Path(args.out), args.overrides)
    return 0
  refuse_bindings(args)
  if args.way == 'run':
    convert.convert_run(run_folder(args.run), Path(args.to))
  else:
    convert.export_run(run_folder(args.run), Path(args.to), args.checkpoint, args.family)
  return 0
