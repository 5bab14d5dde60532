"""Kubernetes: a JobSet (https://jobset.sigs.k8s.io) of nodes with GPUs, or of TPU slices on GKE."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import ClassVar

from t2x.base.errors import UserError
from t2x.launch.job import PORT, Job, check_name, check_word
from t2x.launch.template import fill, yaml_text

__all__ = ['GpuNodes', 'Kubernetes', 'TpuSlices']

# Node labels of GKE by kind of TPU.
_TPU_LABELS = {
  'v4': 'tpu-v4-podslice',
  'v5e': 'tpu-v5-lite-podslice',
  'v5p': 'tpu-v5p-slice',
  'v6e': 'tpu-v6e-slice',
}


@dataclasses.dataclass(frozen=True)
class GpuNodes:
  """Nodes with NVIDIA GPUs: one pod per node.

  Attributes:
    nodes: number of nodes.
    gpus_per_node: GPUs of each node.
  """

  nodes: int
  gpus_per_node: int
  what: ClassVar[str] = 'nodes with NVIDIA GPUs, with one pod per node'
  slices: ClassVar[int] = 1
  annotations: ClassVar[Sequence[str]] = ()
  selector: ClassVar[Sequence[str]] = ()

  @property
  def num_devices(self) -> int:
    """Number of GPUs."""
    return self.nodes * self.gpus_per_node

  @property
  def resource(self) -> str:
    """The resource limit of a pod."""
    return f'nvidia.com/gpu: {self.gpus_per_node}'

  def processes(self, name: str) -> list[str]:
    """Returns the options by which the processes find each other."""
    if self.nodes == 1:
      return ['--num-processes 1']
    return [
      f'--coordinator {name}-workers-0-0.{name}:{PORT}',
      f'--num-processes {self.nodes} --process-id "$JOB_COMPLETION_INDEX" --wait 900',
    ]


@dataclasses.dataclass(frozen=True)
class TpuSlices:
  """TPU slices of GKE: one pod per host. The pods find each other through variables that GKE sets.

  Attributes:
    kind: kind of TPU, such as 'v5e'.
    topology: number of chips along each dimension of a slice, such as '4x8'.
    slices: number of slices.
    chips_per_host: chips of each host; None: 4, or all chips of a smaller slice.
  """

  kind: str
  topology: str
  slices: int = 1
  chips_per_host: int | None = None
  what: ClassVar[str] = 'TPU slices, with one pod per host'

  def __post_init__(self):
    dimensions = 3 if self.kind in ('v4', 'v5p') else 2
    if not re.fullmatch(rf'[1-9]\d*(x[1-9]\d*){{{dimensions - 1}}}', self.topology):
      example = '2x2x4' if dimensions == 3 else '4x8'
      raise UserError(
        f"--topology '{self.topology}': must have {dimensions} dimensions for {self.kind}, such as {example}"
      )
    if self.chips % self._chips_per_host:
      raise UserError(
        f'--chips-per-host {self._chips_per_host}: must divide the {self.chips} chips of --topology '
        f'{self.topology}'
      )

  @property
  def chips(self) -> int:
    """Number of chips of a slice."""
    return math.prod(map(int, self.topology.split('x')))

  @property
  def _chips_per_host(self) -> int:
    return self.chips_per_host or min(4, self.chips)

  @property
  def nodes(self) -> int:
    """Number of hosts of a slice."""
    return self.chips // self._chips_per_host

  @property
  def num_devices(self) -> int:
    """Number of chips of all slices."""
    return self.slices * self.chips

  @property
  def resource(self) -> str:
    """The resource limit of a pod."""
    return f'google.com/tpu: {self._chips_per_host}'

  @property
  def annotations(self) -> Sequence[str]:
    """Annotations of the JobSet: each slice is a node pool."""
    topology = 'alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool'
    return ['annotations:', f'  {topology}']

  @property
  def selector(self) -> Sequence[str]:
    """The node selector of a pod."""
    return [
      'nodeSelector:',
      f'  cloud.google.com/gke-tpu-accelerator: {_TPU_LABELS[self.kind]}',
      f'  cloud.google.com/gke-tpu-topology: {self.topology}',
    ]

  def processes(self, name: str) -> list[str]:
    """Returns the options by which the processes find each other."""
    single = self.slices * self.nodes == 1
    return ['--num-processes 1'] if single else ['--wait 900']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kubernetes:
  """A JobSet that restarts all pods after an interruption (exit code 75).

  Attributes:
    machines: the nodes or slices.
    image: container image with t2x and the gin files.
    claim: claim of a volume that all pods can write (ReadWriteMany).
    mount: where the volume is mounted; it holds the run folder and the cache of data.
    secret: names of Secrets whose entries become environment variables.
    grace: seconds between SIGTERM and SIGKILL, to finish a step and to save.
    max_restarts: restarts after failures; interruptions do not count.
  """

  machines: GpuNodes | TpuSlices
  image: str
  claim: str = 'shared'
  mount: str = '/shared'
  secret: Sequence[str] = ()
  grace: int = 300
  max_restarts: int = 10
  secrets: ClassVar[str] = (
    'put it into a Secret (kubectl create secret generic NAME --from-env-file FILE) and pass --secret NAME'
  )
  submit: ClassVar[Sequence[str]] = ('kubectl', 'apply', '-f')

  def __post_init__(self):
    check_word('--image', self.image)
    check_word('--mount', self.mount)
    for option, names in (('--claim', [self.claim]), ('--secret', self.secret)):
      for name in names:
        check_name(option, name)

  @property
  def num_devices(self) -> int:
    """Number of devices of the run."""
    return self.machines.num_devices

  def render(self, job: Job) -> str:
    """Returns the JobSet as YAML."""
    variables = job.variables_on(self.mount)
    references = [
      line for name in self.secret for line in ('- secretRef:', f'    name: {yaml_text(name)}')
    ]
    return fill(
      'jobset.yaml',
      what=self.machines.what,
      source=job.source,
      name=yaml_text(job.name),
      annotations=self.machines.annotations,
      max_restarts=self.max_restarts,
      slices=self.machines.slices,
      nodes=self.machines.nodes,
      grace=self.grace,
      selector=self.machines.selector,
      image=yaml_text(self.image),
      variables=[
        line
        for name, value in variables.items()
        for line in (f'- name: {yaml_text(name)}', f'  value: {yaml_text(value)}')
      ],
      secrets=['envFrom:', *(f'  {line}' for line in references)] if references else [],
      command=[*job.setup, *job.exec_lines(*self.machines.processes(job.name))],
      port=PORT,
      resource=self.machines.resource,
      mount=yaml_text(self.mount),
      claim=yaml_text(self.claim),
    )
