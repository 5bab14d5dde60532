"""Kubernetes: a JobSet (https://jobset.sigs.k8s.io) of nodes with GPUs, or of TPU slices on GKE."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from t2x.base.errors import UserError
from t2x.launch.job import PORT, Job, check_name, check_word
from t2x.launch.template import block, fill, yaml_text

__all__ = ['Kubernetes', 'gpu_nodes', 'tpu_slices']

# Node labels of GKE by kind of TPU.
_TPU_LABELS = {
  'v4': 'tpu-v4-podslice',
  'v5e': 'tpu-v5-lite-podslice',
  'v5p': 'tpu-v5p-slice',
  'v6e': 'tpu-v6e-slice',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
  """The nodes of a JobSet, with one pod each.

  Attributes:
    what: description, for the header of the file.
    num_devices: number of devices of all nodes.
    nodes: number of nodes of a slice.
    resource: the resource limit of a pod.
    processes: maps the name of the JobSet to the options by which the processes find each other.
    slices: number of slices.
    annotations: annotations of the JobSet.
    selector: the node selector of a pod.
  """

  what: str
  num_devices: int
  nodes: int
  resource: str
  processes: Callable[[str], Sequence[str]]
  slices: int = 1
  annotations: Sequence[str] = ()
  selector: Sequence[str] = ()


def gpu_nodes(nodes: int, gpus_per_node: int) -> Machines:
  """Returns nodes with NVIDIA GPUs."""

  def processes(name: str) -> list[str]:
    return [
      f'--coordinator {name}-workers-0-0.{name}:{PORT}',
      f'--num-processes {nodes} --process-id "$JOB_COMPLETION_INDEX" --wait 900',
    ]

  return Machines(
    what='nodes with NVIDIA GPUs, with one pod per node',
    num_devices=nodes * gpus_per_node,
    nodes=nodes,
    resource=f'nvidia.com/gpu: {gpus_per_node}',
    processes=processes if nodes > 1 else _single_process,
  )


def tpu_slices(
  kind: str, topology: str, slices: int = 1, chips_per_host: int | None = None
) -> Machines:
  """Returns TPU slices of GKE. The pods find each other through variables that GKE sets.

  Args:
    kind: kind of TPU, such as 'v5e'.
    topology: number of chips along each dimension of a slice, such as '4x8'.
    slices: number of slices, each a node pool.
    chips_per_host: chips of each host; None: 4, or all chips of a smaller slice.
  """
  dimensions = 3 if kind in ('v4', 'v5p') else 2
  if not re.fullmatch(rf'[1-9]\d*(x[1-9]\d*){{{dimensions - 1}}}', topology):
    example = '2x2x4' if dimensions == 3 else '4x8'
    raise UserError(
      f"--topology '{topology}': must have {dimensions} dimensions for {kind}, such as {example}"
    )
  chips = math.prod(map(int, topology.split('x')))
  chips_per_host = chips_per_host or min(4, chips)
  if chips % chips_per_host:
    raise UserError(
      f'--chips-per-host {chips_per_host}: must divide the {chips} chips of --topology {topology}'
    )
  nodes = chips // chips_per_host
  exclusive = 'alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool'
  return Machines(
    what='TPU slices, with one pod per host',
    num_devices=slices * chips,
    nodes=nodes,
    resource=f'google.com/tpu: {chips_per_host}',
    processes=(lambda name: ['--wait 900']) if slices * nodes > 1 else _single_process,
    slices=slices,
    annotations=['annotations:', f'  {exclusive}'],
    selector=[
      'nodeSelector:',
      f'  cloud.google.com/gke-tpu-accelerator: {_TPU_LABELS[kind]}',
      f'  cloud.google.com/gke-tpu-topology: {topology}',
    ],
  )


def _single_process(name: str) -> list[str]:
  return ['--num-processes 1']


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

  machines: Machines
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
    command = [*job.setup, *job.exec_lines(*self.machines.processes(job.name))]
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
        for line in (f'- name: {yaml_text(name)}', f'  value: {yaml_text(_unexpanded(value))}')
      ],
      secrets=['envFrom:', *(f'  {line}' for line in references)] if references else [],
      command=block(map(_unexpanded, command)),
      port=PORT,
      resource=self.machines.resource,
      mount=yaml_text(self.mount),
      claim=yaml_text(self.claim),
    )


def _unexpanded(text: str) -> str:
  """Escapes `$$` and `$(`, which Kubernetes replaces in commands and in values of variables."""
  return re.sub(r'\$\$+|\$(?=\()', lambda match: 2 * match[0], text)
