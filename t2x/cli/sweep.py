"""The command `t2x sweep`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2x.cli.options import count
from t2x.errors import UserError

HELP = 'run a sweep, or resume it'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('file', metavar='FILE', help='gin file that binds Sweep')
  parser.add_argument(
    '--out',
    default='sweeps',
    metavar='DIR',
    help='write trials to DIR/trials and the sweep to DIR/<name of FILE> (default: sweeps)',
  )
  parser.add_argument(
    '--dry-run', '--dry_run', action='store_true', help='print the trials without running them'
  )
  parser.add_argument('--retry', action='store_true', help='run failed trials again')
  parser.add_argument(
    '--confirm',
    action='store_true',
    help='run only the variants that help or hurt, with fresh seeds, and write to DIR/<name>-confirm',
  )
  parser.add_argument(
    '--runner',
    choices=('local', 'slurm', 'ray'),
    default='local',
    help='where to run the trials (default: local)',
  )
  parser.add_argument(
    '--processes',
    # `args.processes` are the processes of a distributed run.
    dest='workers',
    type=count,
    metavar='N',
    help='worker processes of the local runner, each with its cores or GPU (default: by the device)',
  )
  parser.add_argument(
    '--together',
    type=count,
    metavar='N',
    help='trials of the same program to train at once with vmap (default: by the device)',
  )
  parser.add_argument(
    '--setting',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='setting of the slurm or ray runner, such as timeout_min=60 or num_gpus=1; repeatable',
  )
  parser.add_argument('--worker', metavar='I/N', help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
  """Plans and runs the sweep, or runs the trials of one worker."""
  from t2x.sweeps.run import Local, run_sweep, run_worker

  local = Local(args.workers, args.together)
  out = Path(args.out)
  if args.worker:
    index, total = map(int, args.worker.split('/'))
    run_worker(Path(args.file), out, (index, total), args.together or 1, confirm=args.confirm)
    return 0
  return run_sweep(
    Path(args.file),
    out,
    args.overrides,
    local if args.runner == 'local' else args.runner,
    _settings(args.setting),
    retry=args.retry,
    dry_run=args.dry_run,
    confirm=args.confirm,
  )


def _settings(assignments: Sequence[str]) -> dict[str, Any]:
  """Parses NAME=VALUE; a value that is not JSON is a string."""
  settings: dict[str, Any] = {}
  for assignment in assignments:
    name, equals, text = assignment.partition('=')
    if not equals:
      raise UserError(f"--setting '{assignment}' has no value: write NAME=VALUE")
    try:
      settings[name] = json.loads(text)
    except ValueError:
      settings[name] = text
  return settings
