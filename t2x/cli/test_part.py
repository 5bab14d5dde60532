"""`t2x test-part`: runs a part of a block through the contracts of the interfaces."""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from t2x.errors import UserError

HELP = 'run a part of a block through the contracts of the interfaces'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument(
    'part', metavar='PART', help='its name, or MODULE.NAME of a module in this folder'
  )
  parser.add_argument(
    '--encoding', metavar='NAME', help='a position encoding for the layers (default: none)'
  )
  parser.add_argument(
    '--d-model', type=int, default=16, metavar='D', help='width of the input (default: 16)'
  )


def run(args: argparse.Namespace) -> int:
  """Prints the outcome of each contract; returns 1 if one is broken."""
  from t2x.contracts import Subject, check_part

  # Bindings of the encoding are not used by the part.
  encoding = [one for one in args.overrides if one.startswith(f'{args.encoding}.')]
  own = [one for one in args.overrides if one not in encoding]
  try:
    subject = Subject(
      _builder(args.part, own),
      args.d_model,
      None if args.encoding is None else _builder(args.encoding, encoding),
    )
  except TypeError as error:
    raise UserError(f'{args.part} cannot be built as PART(d_model, rngs=rngs): {error}') from None
  broken = False
  for outcome in check_part(subject):
    detail = f': {outcome.detail}' if outcome.detail else ''
    print(f'{outcome.status:14}  {outcome.contract}{detail}', flush=True)
    broken |= outcome.status == 'broken'
  return 1 if broken else 0


def _builder(name: str, overrides: list[str]) -> Any:
  """The part as a config binds it, with the `--gin.` values of the command line."""
  from t2x.api import read_config

  module, _, part = name.rpartition('.')
  with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / 'part.gin'
    file.write_text(f'import {module}\n' if module else '')
    try:
      found = read_config([file], overrides, root=f'@{part}', folders=[os.getcwd()])
    except UserError as error:
      # The file is no file of the user's.
      raise UserError(str(error).replace(f'{file}:1', name), error.exit_code) from None
  return found.build()
