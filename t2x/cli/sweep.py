"""`t2x sweep`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2x.cli.options import count
from t2x.errors import UserError

HELP = 'run the trials of a sweep file that have not ended'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('file', metavar='FILE', help='a gin file that binds Sweep')
  parser.add_argument(
    '--out',
    default='sweeps',
    metavar='DIR',
    help='trials go to DIR/trials, the plan to DIR/<name of FILE> (default: sweeps)',
  )
  parser.add_argument('--dry-run', '--dry_run', action='store_true', help='print the trials only')
  parser.add_argument('--retry', action='store_true', help='run failed trials again')
  parser.add_argument(
    '--runner',
    choices=('local', 'slurm', 'ray'),
    default='local',
    help='where the trials run (default: local)',
  )
  parser.add_argument(
    '--processes',
    # The name `processes` is that of the processes of one run.
    dest='workers',
    type=count,
    metavar='N',
    help='of the local runner, each with its cores or GPU (default: by the device)',
  )
  parser.add_argument(
    '--together',
    type=count,
    metavar='N',
    help='trials of one program trained at once by vmap (default: by the device)',
  )
  parser.add_argument(
    '--setting',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='of the engine: timeout_min=60, slurm_partition=gpu, num_gpus=1; repeatable',
  )
  parser.add_argument('--worker', metavar='I/N', help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
  """Plans and runs the sweep, or works on the part of it that a worker has."""
  from t2x.sweeps.run import Local, run_sweep, run_worker

  local = Local(args.workers, args.together)
  out = Path(args.out)
  if args.worker:
    index, total = map(int, args.worker.split('/'))
    run_worker(Path(args.file), out, (index, total), args.together or 1)
    return 0
  return run_sweep(
    Path(args.file),
    out,
    args.overrides,
    local if args.runner == 'local' else args.runner,
    _settings(args.setting),
    retry=args.retry,
    dry_run=args.dry_run,
  )


def _settings(given: Sequence[str]) -> dict[str, Any]:
  """Returns the values by name; a value is JSON if it can be read as such, else text."""
  settings: dict[str, Any] = {}
  for one in given:
    name, equals, text = one.partition('=')
    if not equals:
      raise UserError(f"--setting '{one}': write NAME=VALUE")
    try:
      settings[name] = json.loads(text)
    except ValueError:
      settings[name] = text
  return settings
