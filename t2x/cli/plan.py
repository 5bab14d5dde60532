"""The command `t2x plan`, which prints the memory, time and cost of a run before it starts."""

import argparse
import json
import os
import sys
from typing import Annotated

from t2x.base.arguments import in_range
from t2x.base.errors import UserError
from t2x.base.ranges import Range
from t2x.cli.options import add_devices, add_files, add_json, positive

HELP = 'print the memory, collectives, time and cost of a run on any devices, without running it'
TAKES_BINDINGS = True


_tokens = in_range(Annotated[float, Range('1 <= x <= 1e18')])


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_files(parser)
  add_devices(parser)
  parser.add_argument(
    '--kind', metavar='KIND', help='accelerator: v5e, v5p, v6e, a100, h100, h200, b200, ...'
  )
  parser.add_argument(
    '--tokens',
    type=_tokens,
    metavar='N',
    help='number of tokens to train on (default: the tokens of all steps)',
  )
  parser.add_argument('--price', type=positive, metavar='PRICE', help='price per device-hour')
  parser.add_argument(
    '--search',
    action='store_true',
    help='try sharding strategies, micro-batches and rematerialisation policies, and print the '
    'fastest combinations that fit in memory',
  )
  parser.add_argument(
    '--dry',
    action='store_true',
    help='only trace the train step, which takes seconds instead of minutes',
  )
  add_json(parser)


def run(args: argparse.Namespace) -> int:
  """Traces and compiles the train step for fake devices, and prints the plan."""
  if args.kind is None:
    for name in ('tokens', 'price', 'search'):
      if getattr(args, name):
        raise UserError(f'--{name} needs the rates of a device: add --kind')
  # No device is used, whatever this machine has.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  from t2x.plan import Request, device, make_plan, plan_json, report

  request = Request(
    args.files,
    args.overrides,
    args.devices,
    None if args.kind is None else device(args.kind),
    args.tokens,
    args.price,
    args.search,
    args.dry,
  )
  plan = make_plan(request, lambda line: print(f'{line} ...', file=sys.stderr, flush=True))
  print(json.dumps(plan_json(plan)) if args.json else report(plan))
  return 0
