"""Time of a train step from recorded steps and the rates of a device, and the days and the price of a run."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from t2x.parallel.mesh import BATCH_AXES
from t2x.plan.collectives import MIXED, Collective
from t2x.plan.hardware import LINK_EFFICIENCY, RECORDED, Device, Recorded

# Mesh axes whose collectives of parameters and gradients can run beside products.
OVERLAPPED = frozenset(BATCH_AXES)


@dataclasses.dataclass(frozen=True)
class StepTime:
  """Seconds of a step.

  Attributes:
    compute: products, and operations beside them.
    overlapped: collectives over the axes that split the batch, except all-to-all, which moves activations.
    exposed: other collectives, whose results the next operation needs.
  """

  compute: float
  overlapped: float
  exposed: float

  @property
  def estimate(self) -> float:
    """Seconds if the collectives of parameters and gradients run beside the compute."""
    return max(self.compute, self.overlapped) + self.exposed

  @property
  def slowest(self) -> float:
    """Seconds if nothing overlaps."""
    return self.compute + self.overlapped + self.exposed


def nearest_recorded(
  flops: float, experts: bool, recorded: Sequence[Recorded] = RECORDED
) -> Recorded:
  """Returns the recorded step with the nearest number of model FLOPs per token, relative to it.

  Args:
    flops: model FLOPs per token.
    experts: whether the model is a mixture of experts.
    recorded: recorded steps.
  """
  alike = [run for run in recorded if run.experts == experts]
  return min(alike, key=lambda run: abs(math.log(flops / run.flops)))


def step_time(
  flops: int,
  mfu: float,
  communication: Iterable[Collective],
  device: Device,
  mesh_shape: Mapping[str, int],
) -> StepTime:
  """Estimates the time of a step.

  The products have the MFU of a recorded step, which contains its other operations. Each collective takes the longer of
  its bytes inside and between the domains of the links.

  Args:
    flops: FLOPs of the products of the step on one device.
    mfu: model FLOPs utilisation of a recorded step.
    communication: collectives of the step.
    device: the accelerator.
    mesh_shape: number of devices by mesh axis.
  """
  overlapped = exposed = 0.0
  for collective in communication:
    seconds = collective_seconds(collective, device, mesh_shape)
    if collective.kind != 'all-to-all' and OVERLAPPED.issuperset(collective.axes):
      overlapped += seconds
    else:
      exposed += seconds
  return StepTime(flops / (device.peak * mfu), overlapped, exposed)


def collective_seconds(
  collective: Collective, device: Device, mesh_shape: Mapping[str, int]
) -> float:
  """Returns the time of all collectives of a kind for bfloat16, with rings inside and between domains of links."""
  inside = _members_inside(collective, device, mesh_shape)
  outside = collective.members // inside
  passes = 2 if collective.kind == 'all-reduce' else 1
  size = passes * collective.narrow_bytes
  if collective.kind == 'collective-permute':
    return size / (LINK_EFFICIENCY * (device.link if outside == 1 else device.network))
  fast = size * (inside - 1) / inside / device.link
  # All members inside a domain share the transfer between domains.
  slow = size * (outside - 1) / outside / (device.network * inside)
  return max(fast, slow) / LINK_EFFICIENCY


def _members_inside(collective: Collective, device: Device, mesh_shape: Mapping[str, int]) -> int:
  """Returns how many members of a group share a domain, which has consecutive devices of the mesh."""
  if collective.axes == MIXED:
    return collective.members if device.domain >= math.prod(mesh_shape.values()) else 1
  inside, stride = 1, 1
  for axis in reversed(tuple(mesh_shape)):
    size = mesh_shape[axis]
    if axis in collective.axes:
      inside *= max(1, min(size, device.domain // stride))
    stride *= size
  return inside


@dataclasses.dataclass(frozen=True)
class RunCost:
  """Time and price of a run.

  Attributes:
    seconds: estimated time of a step.
    mfu: model FLOPs utilisation (see `t2x.train.logs.flops`).
    tokens: number of tokens of the run.
    days: days for these tokens.
    price: price of these days; None without a price per device-hour.
  """

  seconds: float
  mfu: float
  tokens: float
  days: float
  price: float | None


def run_cost(
  seconds: float,
  model_flops: float,
  step_tokens: int,
  tokens: float,
  device: Device,
  num_devices: int,
  price: float | None,
) -> RunCost:
  """Computes the cost of a run of steps that take `seconds` each.

  Args:
    seconds: time of a step.
    model_flops: model FLOPs of a step on all devices.
    step_tokens: tokens of a step.
    tokens: tokens of the run.
    device: the accelerator.
    num_devices: number of devices.
    price: price of a device-hour; None if unknown.
  """
  hours = seconds * tokens / step_tokens / 3600
  return RunCost(
    seconds,
    model_flops / (seconds * device.peak * num_devices),
    tokens,
    hours / 24,
    None if price is None else price * hours * num_devices,
  )
