"""One machine: a script that starts several processes (see t2x.launch.processes)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t2x.launch.job import Job, device_exports
from t2x.launch.template import fill

__all__ = ['Local']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local:
  """Processes on this machine, each with its own GPUs or CPU devices.

  Attributes:
    processes: number of processes.
    gpus: GPUs of each process; 0: CPU devices.
    cpu_devices: CPU devices of each process, if it has no GPUs.
  """

  processes: int
  gpus: int = 0
  cpu_devices: int = 1
  secrets: ClassVar[str] = 'export it in the shell that runs the script'
  submit: ClassVar[Sequence[str]] = ('bash',)

  @property
  def num_devices(self) -> int:
    """Number of devices of the run."""
    return self.processes * (self.gpus or self.cpu_devices)

  def render(self, job: Job) -> str:
    """Returns the script."""
    count = f'{self.processes} process{"es" * (self.processes > 1)}'
    return fill(
      'local.sh',
      what=count,
      source=job.source,
      setup=[*device_exports(self.gpus, self.cpu_devices), *job.exports(), *job.setup],
      options=f'-n {self.processes}' + (f' --gpus {self.gpus}' if self.gpus else ''),
      command=[f'  {line}' for line in job.train_lines()],
    )
