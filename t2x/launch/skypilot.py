"""SkyPilot (https://docs.skypilot.co): a task that recovers from preemptions of spot machines."""

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from t2x.base.errors import UserError
from t2x.launch.job import PORT, Job, check_name, check_variable, check_word
from t2x.launch.template import fill, yaml_text

__all__ = ['SkyPilot']

# Devices of JAX per unit of the size of a TPU slice: units are cores except for v5e and v6e.
_TPU_DEVICES = {'v2': 1.0, 'v3': 1.0, 'v4': 0.5, 'v5litepod': 1.0, 'v5p': 0.5, 'v6e': 1.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkyPilot:
  """A managed job on machines of any cloud.

  Attributes:
    nodes: number of nodes.
    accelerators: accelerators of each node, NAME:COUNT, such as 'H100:8', or a TPU slice, 'tpu-v6e-8:1'.
    storage: the bucket ('s3://my-bucket') or volume of SkyPilot that holds the run folder and the data cache.
    mount: where the storage is mounted.
    spot: whether to use spot machines.
    infra: cloud, region and zone, such as 'aws/us-east-1'; None: any.
    strategy: where a preempted job is started again.
    max_restarts: restarts after failures; preemptions and interruptions do not count.
    secret: names of environment variables that hold secrets; `sky` reads their values when it submits.
  """

  nodes: int
  accelerators: str
  storage: str
  mount: str = '/shared'
  spot: bool = False
  infra: str | None = None
  strategy: Literal['EAGER_NEXT_REGION', 'FAILOVER'] = 'EAGER_NEXT_REGION'
  max_restarts: int = 3
  secret: Sequence[str] = ()
  secrets: ClassVar[str] = 'export it in the shell that calls sky, and pass --secret NAME'

  def __post_init__(self):
    if not re.fullmatch(r'[\w.-]+:[1-9]\d*', self.accelerators, re.ASCII):
      raise UserError(
        f"--accelerators '{self.accelerators}': must be NAME:COUNT per node, such as H100:8"
      )
    if self._is_tpu and (self.num_devices < 1 or self.nodes > 1):
      raise UserError(
        f'--accelerators {self.accelerators}: must be one slice of a known kind, such as tpu-v6e-8:1 '
        f'({", ".join(_TPU_DEVICES)}), with --nodes 1; `t2x launch kubernetes` starts several slices'
      )
    check_word('--mount', self.mount)
    if self.infra is not None:
      check_word('--infra', self.infra)
    if self._is_bucket:
      check_word('--storage', self.storage)
    else:
      check_name('--storage', self.storage)
    if self._is_bucket and self.nodes > 1:
      raise UserError(
        f'--storage {self.storage}: nodes see the files of other nodes in a bucket with a delay, so that '
        'a checkpoint of several nodes would be incomplete: use a volume (sky volumes apply), or --nodes 1'
      )
    for name in self.secret:
      check_variable('--secret', name)

  @property
  def _is_bucket(self) -> bool:
    return '://' in self.storage

  @property
  def _is_tpu(self) -> bool:
    return self.accelerators.startswith('tpu-')

  @property
  def num_devices(self) -> int:
    """Number of devices of the run; 0 for an unknown kind of TPU."""
    if not self._is_tpu:
      return self.nodes * int(self.accelerators.rpartition(':')[2])
    match = re.fullmatch(r'tpu-(\w+)-(\d+):1', self.accelerators)
    return int(_TPU_DEVICES.get(match[1], 0.0) * int(match[2])) if match else 0

  @property
  def submit(self) -> Sequence[str]:
    """Submits a managed job."""
    return ('sky', 'jobs', 'launch', '--yes', *(f'--secret={name}' for name in self.secret))

  def render(self, job: Job) -> str:
    """Returns the task as YAML."""
    bucket = [
      'file_mounts:',
      f'  {self.mount}:',
      f'    source: {self.storage}',
      '    mode: MOUNT_CACHED',
    ]
    volume = ['volumes:', f'  {self.mount}: {yaml_text(self.storage)}']
    variables = job.variables_on(self.mount)
    # The processes of the hosts of a TPU slice find each other.
    processes = [] if self._is_tpu else ['--num-processes 1']
    if self.nodes > 1:
      processes = [
        f'--coordinator "$(head -n 1 <<< "$SKYPILOT_NODE_IPS"):{PORT}"',
        '--num-processes "$SKYPILOT_NUM_NODES" --process-id "$SKYPILOT_NODE_RANK"',
      ]
    return fill(
      'skypilot.yaml',
      source=job.source,
      name=yaml_text(job.name),
      submit=' '.join((*self.submit, 'FILE')),
      nodes=self.nodes,
      accelerators=yaml_text(self.accelerators),
      infra=[f'infra: {self.infra}'] if self.infra else [],
      spot='true' if self.spot else 'false',
      strategy=self.strategy,
      max_restarts=self.max_restarts,
      storage=bucket if self._is_bucket else volume,
      variables=[f'{yaml_text(name)}: {yaml_text(value)}' for name, value in variables.items()],
      secrets=['secrets:', *(f'  {yaml_text(name)}: null' for name in self.secret)]
      if self.secret
      else [],
      extra='tpu' if self._is_tpu else 'cuda',
      setup=job.setup,
      command=job.exec_lines(*processes),
    )
