"""The command `t2x test-part`, which checks the interface contracts of a part of a block."""

import argparse
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2x.base.errors import UserError, error_line
from t2x.cli.options import count

if TYPE_CHECKING:
  from t2x.config.signature import Part

HELP = 'check that a part of a block meets its interface contracts'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument(
    'part', metavar='PART', help='name of the part, or MODULE.NAME for a module in this folder'
  )
  parser.add_argument(
    '--encoding',
    metavar='NAME',
    help='position encoding to use in the tested layers (default: none)',
  )
  parser.add_argument(
    '--d-model', type=count, default=16, metavar='N', help='width of the input (default: 16)'
  )


def run(args: argparse.Namespace) -> int:
  """Prints the outcome of each contract; returns 1 if one failed."""
  from t2x.layers import PositionEncoding, Sublayer
  from t2x.testing.contracts import check_part
  from t2x.testing.subject import Subject

  # The part does not use the bindings of the encoding.
  names = {str(args.encoding), str(args.encoding).rpartition('.')[2]}
  encoding = [line for line in args.overrides if line.partition('=')[0].rpartition('.')[0] in names]
  own = [binding for binding in args.overrides if binding not in encoding]
  part, encode = _builder(args.part, own, Sublayer), None
  if args.encoding is not None:
    encode = _builder(args.encoding, encoding, PositionEncoding)
  subject, failed = None, False
  try:
    subject = Subject(part, args.d_model, encode)
    for outcome in check_part(subject):
      form = ' ({})' if outcome.status == 'not applicable' else ': {}'
      detail = form.format(outcome.detail) if outcome.detail else ''
      print(f'{outcome.status:14}  {outcome.contract}{detail}', flush=True)
      failed |= outcome.status == 'failed'
  except UserError:
    raise
  except Exception as error:
    if place := _place_of(error):
      raise UserError(f'{place}: {error_line(error)}') from error
    if subject is not None or not isinstance(error, (AttributeError, TypeError)):
      raise
    raise UserError(f'{args.part} cannot be built as PART(d_model, rngs=rngs): {error}') from error
  return 1 if failed else 0


def _place_of(error: Exception) -> str | None:
  """Returns function, file and line of the innermost call in a module of the user's; None if no call is."""
  from t2x.config.sources import is_own

  place = None
  for frame, line in traceback.walk_tb(error.__traceback__):
    # Generated functions, such as those of dataclasses, have no module.
    if (module := frame.f_globals.get('__name__')) and is_own(module):
      place = f'{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{line})'
  return place


def _builder(name: str, overrides: list[str], interface: type) -> Any:
  """Returns the part of an interface with the `--gin.` bindings of the command line."""
  from t2x.config import problem
  from t2x.config.sources import module_defining
  from t2x.config.values import Reference
  from t2x.experiments import read_config, registry

  module, _, part = name.rpartition('.')
  if not all(word.isidentifier() for word in name.split('.')):
    raise UserError(f"'{name}' is not the name of a part: write NAME or MODULE.NAME")
  owner = None if module or registry().find(name) else module_defining(name, [os.getcwd()])
  if owner is not None:
    raise UserError(f'{owner}.py defines {name}: write {owner}.{name}')
  with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / 'part.gin'
    file.write_text(f'import {module}\n' if module else '')
    try:
      config = read_config([file], overrides, root=f'@{part}', folders=[os.getcwd()])
    except UserError as error:
      # The user does not know the temporary file.
      raise UserError(str(error).replace(f'{file}:1', name), error.exit_code) from None
  factory = Callable[..., interface]  # type: ignore[valid-type]
  if reason := problem(Reference('', part, False), factory, lambda _: config.root.part):
    raise UserError(f'{name} {reason}. {_remedy(config.root.part, name)}')
  return config.build()


def _remedy(part: 'Part', name: str) -> str:
  """Returns advice for checking a part that is not a sublayer of a block."""
  from t2x.config.catalogue import Function, interfaces
  from t2x.experiments import registry
  from t2x.layers import Sublayer

  catalogue = interfaces(registry([name.rpartition('.')[0]] if '.' in name else ()))
  sublayers = (interface for interface in catalogue if Sublayer in interface.cls.__mro__)
  layers = {layer.name for interface in sublayers for layer in interface.parts}
  # This registry describes the user's modules anew.
  owners = (interface for interface in catalogue if any(p.obj is part.obj for p in interface.parts))
  own = next(owners, None)
  if own is None:
    return 'This command checks sublayers of a block, such as token mixers and feed-forward layers'
  if own.cls.__name__ == 'PositionEncoding':
    return (
      'An encoding is checked in a layer: t2x test-part MultiHeadAttention --gin.MultiHeadAttention.num_heads=4 '
      f'--encoding {name}'
    )
  if own.cls is Function:
    return (
      'A function is checked in the layer that takes it, as MLP takes --gin.MLP.activation=@gelu'
    )
  # A combination of parts of an interface takes parts of that interface, too.
  members = {member.name for member in own.parts}
  places = [place for place in own.places if place.partition('.')[0] not in members]
  for place in places:
    layer = place.partition('.')[0]
    if layer in layers:
      return f'It is checked in a layer: t2x test-part {layer} --gin.{place}=@{part.name}'
  return (
    f'This command checks sublayers of a block and what they contain; a {own.cls.__name__} is checked in a config that '
    f'sets {places[0]}: t2x check CONFIG'
  )
