"""Options that several commands have, and what becomes of them."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2x.errors import UserError
from t2x.ranges import Count, Finite, Fraction, Natural, Positive, Seed

if TYPE_CHECKING:
  from t2x.parallel import Processes

GIN = """
Any value of a config file can be set on the command line, where it wins over files:
  --gin.Trainer.num_steps=100 --gin.encoder/Stack.num_layers=2 --gin.d_model=64
Exit codes: 0 done, 1 failure, 2 bad usage or config, 75 interrupted; run the same command to resume.
"""


def in_range(hint: Any) -> Callable[[str], Any]:
  """Returns the function with which argparse parses a number of a type of `t2x.ranges`."""
  kind, (limits,) = hint.__origin__, hint.__metadata__

  def parse(text: str) -> Any:
    try:
      value = kind(text)
    except ValueError:
      what = 'a number' if kind is float else 'an integer'
      raise argparse.ArgumentTypeError(f'must be {what}, got {text!r}') from None
    if not limits.holds(value):
      raise argparse.ArgumentTypeError(f'{limits}, got {text}')
    return value

  return parse


count, natural, seed = in_range(Count), in_range(Natural), in_range(Seed)
finite, positive, fraction = in_range(Finite), in_range(Positive), in_range(Fraction)


def add_files(parser: argparse.ArgumentParser) -> None:
  """Adds FILE ..., the gin files."""
  parser.add_argument('files', nargs='+', metavar='FILE', help='gin files, read in order')


def add_devices(parser: argparse.ArgumentParser) -> None:
  """Adds --devices."""
  parser.add_argument(
    '--devices',
    type=count,
    metavar='N',
    help='number of devices in the mesh, which may be larger than this machine',
  )


def add_json(parser: argparse.ArgumentParser) -> None:
  """Adds --json."""
  parser.add_argument('--json', action='store_true', help='print JSON on stdout and nothing else')


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
  """Adds RUN and --checkpoint."""
  parser.add_argument('run', metavar='RUN', help='a run folder that `t2x train` wrote')
  parser.add_argument(
    '--checkpoint',
    type=_checkpoint,
    default='last',
    metavar='WHICH',
    help='best, last or a step (default: last)',
  )


def _checkpoint(text: str) -> str | int:
  if text not in ('best', 'last') and not text.isdigit():
    raise argparse.ArgumentTypeError(f"'{text}' is neither best nor last nor a step")
  return int(text) if text.isdigit() else text


def run_folder(text: str) -> Path:
  """Returns the folder of a run.

  Raises:
    UserError: it has no config.gin.
  """
  folder = Path(text)
  if not (folder / 'config.gin').exists():
    raise UserError(f'{folder} is no run folder: it has no config.gin')
  return folder


def refuse_bindings(args: argparse.Namespace) -> None:
  """Raises UserError if there are `--gin.` bindings, which would have no effect."""
  if args.overrides:
    raise UserError(f'--gin.{args.overrides[0]} would have no effect here: leave it out')


def add_processes(parser: argparse.ArgumentParser) -> None:
  """Adds the options that Slurm, Open MPI, Kubernetes and TPU pods make needless."""
  group = parser.add_argument_group(
    'several processes',
    'needed only without a cluster (Slurm, Open MPI, Kubernetes, TPU) that provides them',
  )
  group.add_argument('--coordinator', metavar='HOST:PORT', help='where process 0 listens')
  group.add_argument(
    '--num-processes', '--num_processes', type=count, metavar='N', help='processes of this run'
  )
  group.add_argument(
    '--process-id', '--process_id', type=natural, metavar='I', help='index of this one, from 0'
  )
  group.add_argument(
    '--wait',
    type=positive,
    default=300.0,
    metavar='SECONDS',
    help='until all processes have reported; later is an error (default: 300)',
  )
  group.add_argument(
    '--lost-after',
    '--lost_after',
    type=positive,
    default=60.0,
    metavar='SECONDS',
    help='the run ends when a process gives no sign of life for so long (default: 60)',
  )


def join(args: argparse.Namespace) -> 'Processes':
  """Returns the processes of this run; waits for those that have not started."""
  from t2x.parallel import connect, find_cluster

  cluster = find_cluster(args.coordinator, args.num_processes, args.process_id, args.wait)
  args.processes = connect(cluster, args.wait, args.lost_after)
  return args.processes
