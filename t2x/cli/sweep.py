"""The command `t2x sweep`."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2x.base.errors import UserError
from t2x.cli.options import add_quiet, assignments, count, natural, refuse, refuse_bindings

if TYPE_CHECKING:
  from t2x.sweeps.stages import StageName

HELP = 'run a sweep, or resume it'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('file', metavar='FILE', help='gin file that sets the values of Sweep')
  parser.add_argument(
    '--out',
    default='sweeps',
    metavar='DIR',
    help='write trials to DIR/trials and the sweep to DIR/<name of FILE> (default: sweeps)',
  )
  modes = parser.add_mutually_exclusive_group()
  modes.add_argument(
    '--dry-run', '--dry_run', action='store_true', help='print the trials without running them'
  )
  modes.add_argument(
    '--groups',
    action='store_true',
    help='write the plan, and print the groups of trials that share a compiled program, without running them',
  )
  modes.add_argument(
    '--group',
    type=natural,
    metavar='I',
    help='run only the trials of group I of a sweep planned with --groups, as one task of a job array',
  )
  parser.add_argument('--retry', action='store_true', help='run failed trials again')
  parser.add_argument(
    '--accept-changed',
    '--accept_changed',
    action='store_true',
    help='keep trials that ended with different code, data or defaults, without running them '
    'again; the report notes it',
  )
  add_quiet(parser, 'print only the outcomes of the trials and the verdicts')
  parser.add_argument(
    '--confirm',
    action='store_true',
    help='run only the variants that help or hurt, with fresh seeds (for the tuning too), and '
    'write to DIR/<name>-confirm',
  )
  parser.add_argument(
    '--seeds',
    type=count,
    metavar='N',
    help='with --confirm: number of fresh seeds (default: as in the sweep)',
  )
  parser.add_argument(
    '--stage',
    choices=('tune', 'untuned'),
    help='with --group, in a sweep with Sweep.tune: the stage of group I, as printed by --groups; '
    'without it, the group is one of the trials with the tuned values',
  )
  _add_runner(parser)


def _add_runner(parser: argparse.ArgumentParser) -> None:
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
    help='number of worker processes of the local runner, each with its own cores or GPUs; 1 runs the trials in this '
    'process (default: depends on the device)',
  )
  parser.add_argument(
    '--together',
    type=count,
    metavar='N',
    help='number of trials with the same compiled program to train at once with vmap (default: depends on the device)',
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
  """Plans and runs the sweep, or runs the trials of one group or of one worker."""
  from t2x.base.files import check_folder
  from t2x.config import gin_path
  from t2x.sweeps.run import Local, run_group, run_sweep, run_worker

  check_folder('--out', Path(args.out))
  file, out, local = Path(gin_path(args.file)), Path(args.out), Local(args.workers, args.together)
  stage = _stage(args)
  if args.group is not None:
    refuse(args, 'has no effect with --group, whose trials are planned', 'accept_changed')
  if args.group is not None or args.dry_run or args.groups:
    refuse(args, 'has no effect on this command', 'quiet')
  if args.worker:
    index, total = map(int, args.worker.split('/'))
    run_worker(file, out, (index, total), args.together or 1, args.group, stage=stage)
    return 0
  if args.runner != 'local':
    options = {'--processes': args.workers, '--together': args.together, '--group': args.group}
    for option, value in options.items():
      if value is not None:
        raise UserError(f'{option} has no effect with --runner {args.runner}: remove it')
  if args.group is not None:
    refuse_bindings(args)
    if args.setting:
      raise UserError('--setting requires --runner slurm or ray')
    return run_group(file, out, args.group, local, retry=args.retry, stage=stage)
  return run_sweep(
    file,
    out,
    args.overrides,
    local if args.runner == 'local' else args.runner,
    {name: _value(text) for name, text in assignments('--setting', args.setting).items()},
    retry=args.retry,
    only='show' if args.dry_run else 'plan' if args.groups else None,
    confirm=args.confirm,
    confirm_seeds=args.seeds,
    accept_changed=args.accept_changed,
    quiet=args.quiet,
  )


def _stage(args: argparse.Namespace) -> 'StageName':
  """Returns the stage of a group or worker; refuses options that have no effect."""
  planned = args.group is not None or args.worker
  if args.stage and not planned:
    raise UserError(f'--stage {args.stage} has no effect without --group: remove it')
  if args.stage == 'untuned' and args.confirm:
    raise UserError('--stage untuned has no effect with --confirm, which runs tuned values only')
  if args.seeds and not args.confirm:
    raise UserError('--seeds has no effect without --confirm: use --gin.Sweep.seeds=N')
  if args.seeds and planned:
    raise UserError('--seeds has no effect with --group: the seeds are those of the plan')
  if args.confirm:
    return 'confirm-tune' if args.stage else 'confirm'
  return args.stage or ''


def _value(text: str) -> Any:
  """Returns the value of JSON, or the text if it is not JSON."""
  try:
    return json.loads(text)
  except ValueError:
    return text
