"""Slurm: batch scripts of runs and of sweeps. Jobs that reach their time limit are requeued and resume."""

import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import ClassVar, Literal

from t2x.base.errors import UserError
from t2x.launch.job import Job, check_word, device_exports, quoted_binding, refuse_secrets
from t2x.launch.template import fill

__all__ = ['Allocation', 'Slurm', 'SlurmSweep']

_TIME = re.compile(r'(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?')
# Directives that the templates set.
_OWN = {
  '--array': '',
  '--cpus-per-task': '',
  '--dependency': '',
  '--gpus-per-node': '',
  '--job-name': ' (--name)',
  '--no-requeue': '',
  '--nodes': '',
  '--ntasks': '',
  '--ntasks-per-node': ' (--task-per)',
  '--open-mode': '',
  '--output': ' (--log)',
  '--requeue': '',
  '--signal': ' (--warn)',
  '--time': '',
}
_SECRETS = 'export it in the shell that calls sbatch, which passes its environment to the job'
_SUBMIT = ('sbatch',)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocation:
  """Resources of a Slurm job.

  Attributes:
    gpus_per_node: GPUs of each node; 0 for a job on CPUs.
    cpu_devices: devices of each process of a job on CPUs.
    cpus_per_task: CPU cores of each task; None: the default of the cluster.
    time: time limit in a format of sbatch: MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS, ...
    warn: seconds before the time limit at which the processes are asked to save.
    max_requeues: number of requeues after which an interrupted job ends.
    options: further options of sbatch, such as '--partition=gpu'.
    log: pattern of the log file.
  """

  gpus_per_node: int = 0
  cpu_devices: int = 1
  cpus_per_task: int | None = None
  time: str = '12:00:00'
  warn: int = 120
  max_requeues: int = 100
  options: Sequence[str] = ()
  log: str = 'slurm-%x-%j.log'

  def __post_init__(self):
    check_word('--log', self.log)
    seconds = _seconds(self.time)
    if not 0 < self.warn < seconds:
      raise UserError(
        f'--warn {self.warn}: must be positive and less than the {seconds} seconds of --time {self.time}'
      )
    for option in self.options:
      name = option.partition('=')[0]
      if not re.fullmatch(r'--[a-z][a-z-]*(=\S+)?', option):
        raise UserError(f"--sbatch '{option}': must be --NAME or --NAME=VALUE")
      refuse_secrets('--sbatch', option, _SECRETS)
      if name in _OWN:
        raise UserError(f'--sbatch {option}: the file sets {name}{_OWN[name]}: remove it')

  @property
  def num_devices(self) -> int:
    """Number of devices of each node."""
    return self.gpus_per_node or self.cpu_devices

  def exports(self) -> list[str]:
    """Returns the shell lines that select the devices."""
    return device_exports(self.gpus_per_node, self.cpu_devices)

  def directives(self) -> list[str]:
    """Returns the lines of the resources that depend on the allocation."""
    lines = [f'--gpus-per-node={self.gpus_per_node}'] if self.gpus_per_node else []
    lines += [f'--cpus-per-task={self.cpus_per_task}'] if self.cpus_per_task else []
    lines += [f'--time={self.time}', f'--signal=B:TERM@{self.warn}', f'--output={self.log}']
    return [f'#SBATCH {line}' for line in (*lines, *self.options)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm:
  """A run on one or several nodes.

  Attributes:
    nodes: number of nodes.
    allocation: resources of the job.
    task_per: whether each node or each GPU has a process of its own.
  """

  nodes: int
  allocation: Allocation
  task_per: Literal['node', 'gpu'] = 'node'
  secrets: ClassVar[str] = _SECRETS
  submit: ClassVar[Sequence[str]] = _SUBMIT

  def __post_init__(self):
    if self.task_per == 'gpu' and not self.allocation.gpus_per_node:
      raise UserError('--task-per gpu requires --gpus-per-node')

  @property
  def num_devices(self) -> int:
    """Number of devices of the run."""
    return self.nodes * self.allocation.num_devices

  def render(self, job: Job) -> str:
    """Returns the batch script."""
    per_gpu = self.task_per == 'gpu'
    *first, last = job.train_lines()
    count = f'{self.nodes} node{"s" * (self.nodes > 1)}'
    return fill(
      'train.sbatch',
      what=f'{count} of a Slurm cluster, with one process per {"GPU" if per_gpu else "node"}',
      source=job.source,
      name=job.name,
      nodes=self.nodes,
      tasks=self.allocation.gpus_per_node if per_gpu else 1,
      directives=self.allocation.directives(),
      warn=self.allocation.warn,
      max_requeues=self.allocation.max_requeues,
      setup=[*self.allocation.exports(), *job.exports(), *job.setup],
      command=[*(f'  {line}' for line in first), f'  {last} &'],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmSweep:
  """A sweep as job arrays with one task per compiled program, each on one node.

  Attributes:
    allocation: resources of each task.
    parallel: maximum number of tasks that run at once; None: no limit.
    confirm: whether to run the confirmation of a sweep that has ended.
  """

  allocation: Allocation
  parallel: int | None = None
  confirm: bool = False
  secrets: ClassVar[str] = _SECRETS
  submit: ClassVar[Sequence[str]] = _SUBMIT

  @property
  def num_devices(self) -> int:
    """Number of devices of each task."""
    return self.allocation.num_devices

  def render(self, job: Job) -> str:
    """Returns the batch script."""
    (file,) = job.files
    sweep = f't2x sweep {shlex.quote(file)} --out {shlex.quote(job.folder)}'
    sweep += ' --confirm' if self.confirm else ''
    gpus = self.allocation.gpus_per_node
    return fill(
      'sweep.sbatch',
      source=job.source,
      name=job.name,
      directives=self.allocation.directives(),
      max_requeues=self.allocation.max_requeues,
      parallel=f'%{self.parallel}' if self.parallel else '',
      setup=[*self.allocation.exports(), *job.exports(), *job.setup],
      plan=' '.join([sweep, '--groups', *map(quoted_binding, job.overrides)]),
      sweep=sweep + (f' --processes {gpus}' if gpus > 1 else ''),
    )


def _seconds(time: str) -> int:
  """Returns the seconds of a time limit of sbatch.

  Raises:
    UserError: the format is unknown, or the time is zero.
  """
  match = _TIME.fullmatch(time)
  if match is None:
    raise UserError(
      f"--time '{time}': must be MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES"
    )
  days, *fields = match.groups()
  numbers = [int(field) for field in fields if field is not None]
  if days is not None:
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
  elif len(numbers) == 3:
    hours, minutes, seconds = numbers
  else:
    hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
  total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
  if not total:
    raise UserError(f'--time {time}: must be positive')
  return total
