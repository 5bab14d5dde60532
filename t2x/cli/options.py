"""Options of several commands."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from t2x.base.arguments import in_range
from t2x.base.errors import UserError
from t2x.base.ranges import Count, Finite, Fraction, Natural, Positive, ScoreScale, Seed
from t2x.base.suggestions import similar_folders

if TYPE_CHECKING:
  from t2x.parallel import Processes

GIN = """
Any config value can be set on the command line; it overrides the files:
  --gin.Trainer.num_steps=100 --gin.encoder/Stack.num_layers=2 --gin.d_model=64
Exit codes: 0 success, 1 failure, 2 invalid usage or config, 75 interrupted; run the same command to resume.
Compiled programs are cached in ~/.cache/t2x/compiled; T2X_COMPILE_CACHE=off disables the cache.
"""


count, natural, seed = in_range(Count), in_range(Natural), in_range(Seed)
finite, positive, fraction = in_range(Finite), in_range(Positive), in_range(Fraction)
score_scale = in_range(ScoreScale)


def add_files(parser: argparse.ArgumentParser) -> None:
  """Adds the gin files."""
  parser.add_argument(
    'files',
    nargs='+',
    metavar='FILE',
    help='gin files, read in order: a path, t2x:PATH for a file in t2x/configs, or a bare name for '
    'one in t2x/configs/runs',
  )


def add_devices(parser: argparse.ArgumentParser) -> None:
  """Adds --devices."""
  parser.add_argument(
    '--devices',
    type=count,
    metavar='N',
    help='number of devices in the mesh; may be more than this machine has',
  )


def add_json(parser: argparse.ArgumentParser) -> None:
  """Adds --json."""
  parser.add_argument('--json', action='store_true', help='print only JSON on stdout')


def add_quiet(parser: argparse._ActionsContainer, text: str) -> None:
  """Adds --quiet, with its help."""
  parser.add_argument('--quiet', action='store_true', help=text)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
  """Adds the run folder and --checkpoint."""
  parser.add_argument('run', metavar='RUN', help='run folder written by `t2x train`')
  parser.add_argument(
    '--checkpoint',
    type=_checkpoint,
    default='last',
    metavar='STEP',
    help="step of the checkpoint, or 'best' or 'last' (default: last)",
  )


def _checkpoint(text: str) -> str | int:
  if text not in ('best', 'last') and not text.isdigit():
    raise argparse.ArgumentTypeError(f"must be 'best', 'last' or a step, got '{text}'")
  return int(text) if text.isdigit() else text


def run_folder(text: str) -> Path:
  """Returns the folder of a run.

  Raises:
    UserError: the folder has no config.gin.
  """
  folder = Path(text)
  if not (folder / 'config.gin').exists():
    hint = similar_folders(folder, 'config.gin')
    raise UserError(f'{folder} is not a run folder: it has no config.gin{hint}')
  return folder


def refuse_bindings(args: argparse.Namespace) -> None:
  """Raises UserError if there are `--gin.` bindings, for commands on which they have no effect."""
  if args.overrides:
    raise UserError(f'--gin.{args.overrides[0]} has no effect on this command: remove it')


def refuse(args: argparse.Namespace, reason: str, *names: str) -> None:
  """Raises UserError if one of the options was given.

  Args:
    args: the arguments.
    reason: why the options have no effect.
    *names: the options without dashes; None or False if not given.
  """
  for name in names:
    value = getattr(args, name)
    if value is not None and value is not False:
      raise UserError(f'--{name.replace("_", "-")} {reason}: remove it')


def assignments(
  option: str, texts: Iterable[str], advice: str = 'write NAME=VALUE'
) -> dict[str, str]:
  """Returns the values by name of `NAME=VALUE` texts; raises UserError, which ends in `advice`, if one has no value."""
  values = {}
  for text in texts:
    name, equals, value = text.partition('=')
    if not equals:
      raise UserError(f"{option} '{text}' has no value: {advice}")
    values[name] = value
  return values


def add_processes(parser: argparse.ArgumentParser) -> None:
  """Adds the options of distributed runs, which are detected on Slurm, Open MPI, Kubernetes and TPU pods."""
  group = parser.add_argument_group(
    'distributed runs',
    'detected automatically on Slurm, Open MPI, Kubernetes and TPU pods',
  )
  group.add_argument('--coordinator', metavar='HOST:PORT', help='address of process 0')
  group.add_argument(
    '--num-processes', '--num_processes', type=count, metavar='N', help='number of processes'
  )
  group.add_argument(
    '--process-id', '--process_id', type=natural, metavar='N', help='index of this process, from 0'
  )
  group.add_argument(
    '--wait',
    type=positive,
    default=300.0,
    metavar='SECONDS',
    help='seconds to wait for all processes to join (default: 300)',
  )
  group.add_argument(
    '--lost-after',
    '--lost_after',
    type=positive,
    default=60.0,
    metavar='SECONDS',
    help='seconds without a heartbeat after which a process counts as lost and the run ends (default: 60)',
  )


def join(args: argparse.Namespace) -> 'Processes':
  """Joins the processes of a distributed run; waits until all have started."""
  from t2x.parallel import connect, find_cluster

  cluster = find_cluster(args.coordinator, args.num_processes, args.process_id, args.wait)
  args.processes = connect(cluster, args.wait, args.lost_after)
  return args.processes
