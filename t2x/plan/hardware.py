"""Memory, peak rates and bandwidths of accelerators, from their vendors' data sheets.

Bandwidths of links count one direction: half of the bidirectional numbers of the data sheets.
"""

import dataclasses

from t2x.base.errors import UserError
from t2x.train.logs.flops import PEAK_FLOPS

__all__ = ['DEVICES', 'RECORDED', 'Device', 'Recorded', 'device']

# An assumption.
LINK_EFFICIENCY = 0.8
# Of the memory of a device: t2x's setting for GPUs (`t2x.process.gpu_flags`).
USABLE_MEMORY = 0.92


@dataclasses.dataclass(frozen=True)
class Recorded:
  """A recorded train step of a GPT-2 in bfloat16 on one device.

  Attributes:
    name: number of parameters.
    flops: model FLOPs per token, as in `t2x.train.logs.flops`.
    mfu: model FLOPs utilisation.
    experts: whether the model is a mixture of experts.
    kind: the device.
  """

  name: str
  flops: float
  mfu: float
  experts: bool = False
  kind: str = 'h100'


# From experiments/speed/results/h100.md.
RECORDED = (
  Recorded('124M', 798087168, 0.3565),
  Recorded('350M', 2272149504, 0.42),
  Recorded('1.3B', 8470167552, 0.5137),
  Recorded('124M', 798861312, 0.215, experts=True),
)


@dataclasses.dataclass(frozen=True)
class Device:
  """An accelerator.

  Attributes:
    kind: name on the command line.
    jax_kind: `jax.Device.device_kind`.
    memory: bytes of device memory.
    memory_bandwidth: bytes per second.
    link: bytes per second that a device sends inside its domain.
    domain: number of devices that these links connect: a machine, a rack or a TPU slice.
    network: bytes per second that a device sends outside its domain.
    source: pages with these numbers.
  """

  kind: str
  jax_kind: str
  memory: float
  memory_bandwidth: float
  link: float
  domain: int
  network: float
  source: str

  @property
  def platform(self) -> str:
    """Name of the platform in JAX."""
    return 'tpu' if self.jax_kind.startswith('TPU') else 'gpu'

  @property
  def peak(self) -> float:
    """FLOPs per second of dense bfloat16 products."""
    return PEAK_FLOPS[self.jax_kind]

  @property
  def usable(self) -> float:
    """Bytes of memory for a program."""
    return USABLE_MEMORY * self.memory


def _gpu(kind, jax_kind, memory, bandwidth, link, domain, network, source) -> Device:
  # NVIDIA's GB of memory are GiB: an 80 GB H100 reports 79.6 GiB, a 141 GB H200 140.4 GiB.
  return Device(kind, jax_kind, memory * 2**30, bandwidth, link, domain, network, source)


_TPU, _NVIDIA = 'https://cloud.google.com/tpu/docs', 'https://www.nvidia.com/en-us/data-center'

# NVIDIA's networks are those of DGX and HGX machines: one 200 (A100) or 400 Gb/s adapter per GPU. The networks of
# TPUs are those of the data center, between slices.
DEVICES = {
  device.kind: device
  for device in (
    Device('v5e', 'TPU v5e', 16 * 2**30, 819e9, 200e9, 256, 3.125e9, f'{_TPU}/v5e'),
    Device('v5p', 'TPU v5p', 95 * 2**30, 2765e9, 600e9, 6144, 6.25e9, f'{_TPU}/v5p'),
    Device('v6e', 'TPU v6e', 32 * 2**30, 1600e9, 400e9, 256, 12.5e9, f'{_TPU}/v6e'),
    _gpu('a100-40gb', 'NVIDIA A100-SXM4-40GB', 40, 1555e9, 300e9, 8, 25e9, f'{_NVIDIA}/a100'),
    _gpu('a100', 'NVIDIA A100-SXM4-80GB', 80, 2039e9, 300e9, 8, 25e9, f'{_NVIDIA}/a100'),
    _gpu('h100', 'NVIDIA H100 80GB HBM3', 80, 3350e9, 450e9, 8, 50e9, f'{_NVIDIA}/h100'),
    _gpu('h200', 'NVIDIA H200', 141, 4800e9, 450e9, 8, 50e9, f'{_NVIDIA}/h200'),
    _gpu('b200', 'NVIDIA B200', 180, 8000e9, 900e9, 8, 50e9, f'{_NVIDIA}/dgx-b200'),
    _gpu('gb200', 'NVIDIA GB200', 186, 8000e9, 900e9, 72, 50e9, f'{_NVIDIA}/gb200-nvl72'),
  )
}


def device(kind: str) -> Device:
  """Returns the device of a kind.

  Raises:
    UserError: the kind is not in `DEVICES`.
  """
  if kind not in DEVICES:
    raise UserError(f"--kind '{kind}': must be one of {', '.join(DEVICES)}")
  return DEVICES[kind]
