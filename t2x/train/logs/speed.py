"""Model FLOPs utilisation (MFU), relative to the peak of the devices.

MFU (PaLM, https://arxiv.org/abs/2204.02311, appendix B) is the model FLOPs of the train steps of a second, divided by
the peak of the devices. The model FLOPs are those of `t2x.train.flops`: 6 N per token plus attention, which counts
the pairs that its pattern shows. All positions of a batch count, padding included; recomputation does not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from t2x.train.program import TrainProgram

# Peak FLOPs per second of dense bfloat16 products, without sparsity, by `jax.Device.device_kind`. NVIDIA's data
# sheets list twice these numbers for 2:4 sparsity. Parts of a GPU (MIG) have other names, which are not listed.
PEAK_FLOPS = {
  # https://cloud.google.com/tpu/docs/v4, v5e, v5p, v6e: per chip, which is one device.
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  # https://www.nvidia.com/en-us/data-center/a100
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA A100-PCIE-40GB': 312e12,
  'NVIDIA A100 80GB PCIe': 312e12,
  # https://www.nvidia.com/en-us/data-center/h100 and h200
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H100 PCIe': 756e12,
  'NVIDIA H100 NVL': 835e12,
  'NVIDIA GH200 480GB': 989e12,
  'NVIDIA H200': 989e12,
  'NVIDIA H200 NVL': 835e12,
  # https://www.nvidia.com/en-us/data-center/hgx and gb200-nvl72
  'NVIDIA B200': 2250e12,
  'NVIDIA GB200': 2500e12,
  # https://www.nvidia.com/en-us/data-center/l4 and l40s
  'NVIDIA L4': 121e12,
  'NVIDIA L40S': 362e12,
}


def peak_flops(program: 'TrainProgram') -> float | None:
  """Returns the peak FLOPs per second of all devices of a program; None if it is unknown.

  It is known for bfloat16 on the devices of `PEAK_FLOPS`. None is also returned for batches of different lengths, for
  which the FLOPs of a step are not constant.
  """
  if program.trainer.compute_dtype != 'bfloat16':
    return None
  task = program.experiment.task
  if task is None or task.row_lengths:
    return None
  peak = PEAK_FLOPS.get(program.mesh.devices.flat[0].device_kind)
  return None if peak is None else peak * program.mesh.size


def step_tokens(program: 'TrainProgram') -> int:
  """Returns the tokens of a train step, padding included."""
  return program.trainer.batch_size * sum(program.row_lengths.values())


def step_flops(program: 'TrainProgram') -> float:
  """Returns the model FLOPs of a train step (see `t2x.train.flops`)."""
  return program.flops.visible * step_tokens(program)
