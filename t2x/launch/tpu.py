"""Cloud TPUs: a script for queued resources, and a command of xpk for GKE clusters."""

import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import ClassVar

from t2x.errors import UserError
from t2x.launch.job import Job, check_name, check_word
from t2x.launch.template import fill

# Devices of JAX per unit of an accelerator type (units are cores except for v5e and v6e), and the default
# software of a TPU VM.
_TYPES = {
  'v2': (1.0, 'tpu-ubuntu2204-base'),
  'v3': (1.0, 'tpu-ubuntu2204-base'),
  'v4': (0.5, 'tpu-ubuntu2204-base'),
  'v5litepod': (1.0, 'v2-alpha-tpuv5-lite'),
  'v5p': (0.5, 'v2-alpha-tpuv5'),
  'v6e': (1.0, 'v2-alpha-tpuv6e'),
}


def _parse(accelerator: str) -> tuple[int, str]:
  """Returns the number of devices of an accelerator type ('v5litepod-64'), and its default software.

  Raises:
    UserError: the type is unknown.
  """
  match = re.fullmatch(r'(\w+)-([1-9]\d*)', accelerator)
  if match is None or match[1] not in _TYPES:
    raise UserError(
      f"--accelerator '{accelerator}': must be one of {', '.join(_TYPES)} and a size, such as v5litepod-64"
    )
  factor, runtime = _TYPES[match[1]]
  return max(1, int(int(match[2]) * factor)), runtime


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Slices:
  """TPU slices, and a script that starts a run on them.

  Attributes:
    accelerator: accelerator type of a slice.
    slices: number of slices.
  """

  accelerator: str
  slices: int = 1
  # The script of a queued resource waits until the run ends.
  submit: ClassVar[Sequence[str]] = ('bash',)

  @property
  def num_devices(self) -> int:
    """Number of devices of the run."""
    return self.slices * _parse(self.accelerator)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueuedResource(_Slices):
  """A TPU slice, or several, requested as a queued resource, with the same command on each host.

  Attributes:
    resource: name of the queued resource.
    zone: zone of Google Cloud.
    runtime: software version of the TPU VMs; None: the default of the accelerator type.
    spot: whether to request spot capacity; a preempted resource is requested again.
  """

  resource: str
  zone: str
  runtime: str | None = None
  spot: bool = False
  secrets: ClassVar[str] = (
    "write it to a file on the hosts, and read it with --setup '. /path/of/the/file'"
  )

  def __post_init__(self):
    check_name('--resource', self.resource)
    check_name('--zone', self.zone)
    _parse(self.accelerator)
    if self.runtime is not None:
      check_word('--runtime', self.runtime)

  def render(self, job: Job) -> str:
    """Returns the script."""
    names = [f'{self.resource}-{i}' for i in range(self.slices)]
    several = f'--node-count={self.slices} --node-prefix={self.resource}'
    return fill(
      'queued_resource.sh',
      source=job.source,
      resource=self.resource,
      zone=self.zone,
      accelerator=self.accelerator,
      runtime=self.runtime or _parse(self.accelerator)[1],
      slices=' '.join(names) if self.slices > 1 else self.resource,
      nodes=several if self.slices > 1 else f'--node-id={self.resource}',
      spot=' --spot' if self.spot else '',
      setup=[*job.exports(), *job.setup],
      command=job.exec_lines(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Xpk(_Slices):
  """A workload of a GKE cluster that xpk manages.

  Attributes:
    cluster: name of the cluster.
    image: container image with t2x and the gin files.
    storage: storages of the cluster that xpk mounts; they hold the run folder.
    max_restarts: restarts after interruptions and failures of machines.
    grace: seconds between SIGTERM and SIGKILL, to finish a step and to save.
  """

  cluster: str
  image: str
  storage: Sequence[str] = ()
  max_restarts: int = 100
  grace: int = 300
  secrets: ClassVar[str] = 'pass --env-file to the rendered script, which passes its options to xpk'

  def __post_init__(self):
    check_word('--image', self.image)
    _parse(self.accelerator)
    for option, names in (('--cluster', [self.cluster]), ('--storage', self.storage)):
      for name in names:
        check_name(option, name)

  def render(self, job: Job) -> str:
    """Returns the script."""
    # xpk inserts the command into a line of YAML.
    train = ' '.join(line.strip().removesuffix(' \\') for line in job.exec_lines())
    options = [
      f'--workload={job.name}',
      f'--cluster={self.cluster}',
      f'--tpu-type={self.accelerator}',
      f'--num-slices={self.slices}',
      f'--docker-image={self.image}',
      *(f'--storage={name}' for name in self.storage),
      f'--max-restarts={self.max_restarts}',
      '--restart-on-exit-codes=75',
      f'--termination-grace-period-seconds={self.grace}',
      f'--command={shlex.quote("; ".join([*job.exports(), *job.setup, train]))}',
    ]
    return fill('xpk.sh', source=job.source, options=[f'{option} \\' for option in options])
