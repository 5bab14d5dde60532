"""Options of the targets of `t2x launch`, and the targets that they describe."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from t2x.base.errors import UserError
from t2x.cli.options import count, natural, refuse

if TYPE_CHECKING:
  from t2x.launch import Target

_Container = argparse._ActionsContainer


def _add_devices(parser: _Container, name: str, per: str) -> None:
  group = parser.add_mutually_exclusive_group(required=True)
  group.add_argument(name, dest='gpus', type=count, metavar='N', help=f'GPUs of each {per}')
  group.add_argument(
    '--cpu-devices', type=count, metavar='N', help='CPU devices of each process, which uses no GPU'
  )


def _add_nodes(parser: _Container, default: int | None = 1) -> None:
  parser.add_argument(
    '--nodes', type=count, default=default, metavar='N', help='number of nodes (default: 1)'
  )


def _add_restarts(parser: _Container, default: int) -> None:
  text = f'maximum number of restarts after failures (default: {default})'
  parser.add_argument('--max-restarts', type=natural, default=default, metavar='N', help=text)


def add_repeatable(parser: _Container, option: str, metavar: str, text: str) -> None:
  """Adds an option whose values become a list."""
  parser.add_argument(
    option, action='append', default=[], metavar=metavar, help=f'{text}; repeatable'
  )


def _built(kind: type, args: argparse.Namespace, **values: object) -> Any:
  """Builds a dataclass from `values`; its other fields are the options of the same names."""
  names = [field.name for field in dataclasses.fields(kind) if field.name not in values]
  return kind(**values, **{name: getattr(args, name) for name in names})


def _add_slurm(parser: argparse.ArgumentParser) -> None:
  _add_nodes(parser, None)
  _add_devices(parser, '--gpus-per-node', 'node')
  parser.add_argument(
    '--task-per', choices=('node', 'gpu'), help='processes: one per node (default), or one per GPU'
  )
  parser.add_argument('--cpus-per-task', type=count, metavar='N', help='CPU cores of each task')
  parser.add_argument(
    '--time', default='12:00:00', metavar='TIME', help='time limit (default: 12:00:00)'
  )
  parser.add_argument(
    '--warn',
    type=count,
    default=120,
    metavar='SECONDS',
    help='seconds before the time limit at which the run saves and is requeued (default: 120)',
  )
  text = 'maximum number of requeues after interruptions (default: 100)'
  parser.add_argument('--max-requeues', type=natural, default=100, metavar='N', help=text)
  parser.add_argument('--partition', metavar='NAME', help='partition of the cluster')
  parser.add_argument('--account', metavar='NAME', help='account to charge')
  add_repeatable(
    parser, '--sbatch', 'OPTION', 'additional option of sbatch, such as --sbatch=--constraint=h100'
  )
  parser.add_argument(
    '--log',
    # `args.log` is the log file of a run.
    dest='log_pattern',
    default='slurm-%x-%j.log',
    metavar='PATTERN',
    help='log file; %%x is the name and %%j the number of the job (default: slurm-%%x-%%j.log)',
  )
  sweep = parser.add_argument_group('sweeps', 'if FILE is a sweep file; --run is the output folder')
  sweep.add_argument('--parallel', type=count, metavar='N', help='maximum number of tasks at once')
  sweep.add_argument('--confirm', action='store_true', help='run t2x sweep --confirm')


def _slurm(args: argparse.Namespace) -> 'Target':
  from t2x.launch import Allocation, Slurm, SlurmSweep

  options = [f'--partition={args.partition}'] if args.partition else []
  options += [f'--account={args.account}'] if args.account else []
  allocation = _built(
    Allocation,
    args,
    gpus_per_node=args.gpus or 0,
    cpu_devices=args.cpu_devices or 1,
    options=(*options, *args.sbatch),
    log=args.log_pattern,
  )
  if args.is_sweep:
    refuse(args, 'has no effect on a sweep, whose tasks have one node each', 'nodes', 'task_per')
    return _built(SlurmSweep, args, allocation=allocation)
  refuse(args, 'has no effect without a sweep file', 'parallel', 'confirm')
  return Slurm(nodes=args.nodes or 1, task_per=args.task_per or 'node', allocation=allocation)


def _add_kubernetes(parser: argparse.ArgumentParser) -> None:
  gpus = parser.add_argument_group('nodes with NVIDIA GPUs')
  _add_nodes(gpus, None)
  gpus.add_argument('--gpus-per-node', type=count, metavar='N', help='GPUs of each node')
  tpus = parser.add_argument_group('TPU slices of GKE')
  tpus.add_argument('--tpu', choices=('v4', 'v5e', 'v5p', 'v6e'), help='kind of TPU')
  tpus.add_argument('--topology', metavar='AxB', help='chips of a slice, such as 4x8')
  tpus.add_argument('--slices', type=count, metavar='N', help='number of slices (default: 1)')
  tpus.add_argument(
    '--chips-per-host',
    type=count,
    metavar='N',
    help='chips of a host (default: 4, or all of a smaller slice)',
  )
  parser.add_argument(
    '--image',
    required=True,
    metavar='IMAGE',
    help='container image with t2x and FILE (launch/docker)',
  )
  parser.add_argument(
    '--claim',
    default='shared',
    metavar='NAME',
    help='PersistentVolumeClaim to which all pods can write (default: shared)',
  )
  _add_mount(parser)
  add_repeatable(parser, '--secret', 'NAME', 'Secret whose entries become environment variables')
  parser.add_argument(
    '--grace',
    type=count,
    default=300,
    metavar='SECONDS',
    help='seconds between SIGTERM and SIGKILL, in which the run saves (default: 300)',
  )
  _add_restarts(parser, 10)


def _add_mount(parser: _Container) -> None:
  parser.add_argument(
    '--mount',
    default='/shared',
    metavar='DIR',
    help='mount point of the shared volume, which contains the run folder (default: /shared)',
  )


def _kubernetes(args: argparse.Namespace) -> 'Target':
  from t2x.launch import Kubernetes, gpu_nodes, tpu_slices

  if args.tpu:
    refuse(args, 'has no effect with --tpu', 'nodes', 'gpus_per_node')
    if not args.topology:
      raise UserError('--tpu requires --topology')
    machines = tpu_slices(args.tpu, args.topology, args.slices or 1, args.chips_per_host)
  else:
    refuse(args, 'has no effect without --tpu', 'topology', 'slices', 'chips_per_host')
    if not args.gpus_per_node:
      raise UserError('--gpus-per-node or --tpu is required')
    machines = gpu_nodes(args.nodes or 1, args.gpus_per_node)
  return _built(Kubernetes, args, machines=machines)


def _add_skypilot(parser: argparse.ArgumentParser) -> None:
  _add_nodes(parser)
  parser.add_argument(
    '--accelerators',
    required=True,
    metavar='NAME:N',
    help='accelerators of each node, such as H100:8, or a TPU slice, such as tpu-v6e-8:1',
  )
  parser.add_argument(
    '--storage',
    required=True,
    metavar='BUCKET',
    help='shared storage: s3://..., gs://... or a SkyPilot volume',
  )
  _add_mount(parser)
  parser.add_argument('--spot', action='store_true', help='use spot instances')
  parser.add_argument('--infra', metavar='CLOUD', help='cloud/region/zone (default: any)')
  parser.add_argument(
    '--strategy',
    choices=('EAGER_NEXT_REGION', 'FAILOVER'),
    default='EAGER_NEXT_REGION',
    help='where to restart a preempted job (default: EAGER_NEXT_REGION)',
  )
  _add_restarts(parser, 3)
  add_repeatable(
    parser, '--secret', 'NAME', 'environment variable that `sky` reads when it submits'
  )


def _skypilot(args: argparse.Namespace) -> 'Target':
  from t2x.launch import SkyPilot

  return _built(SkyPilot, args)


def _add_local(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--processes',
    # `args.processes` are the processes of a distributed run.
    dest='num_local',
    type=count,
    default=2,
    metavar='N',
    help='number of processes (default: 2)',
  )
  _add_devices(parser, '--gpus', 'process')


def _local(args: argparse.Namespace) -> 'Target':
  from t2x.launch import Local

  return Local(processes=args.num_local, gpus=args.gpus or 0, cpu_devices=args.cpu_devices or 1)


# Name -> a function that adds the options, a function that builds the target from them, and the help.
TARGETS = {
  'slurm': (_add_slurm, _slurm, 'batch script for Slurm; a sweep becomes job arrays'),
  'kubernetes': (_add_kubernetes, _kubernetes, 'JobSet for nodes with GPUs or TPU slices'),
  'skypilot': (
    _add_skypilot,
    _skypilot,
    'SkyPilot task for any cloud, on spot instances with --spot',
  ),
  'local': (_add_local, _local, 'script for several processes on this machine'),
}
