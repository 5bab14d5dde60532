"""The plan of an experiment: memory, collectives, time and cost, with the variants tried."""

import dataclasses
from collections.abc import Callable, Sequence

from t2x.base.errors import UserError
from t2x.plan.collectives import Collective
from t2x.plan.compiled import Compiled
from t2x.plan.cost import RunCost, StepTime
from t2x.plan.hardware import Device
from t2x.plan.planner import NUM_COMPILED, Planner, Variant, expected_collectives, no_time

__all__ = ['Plan', 'Request', 'make_plan']


@dataclasses.dataclass(frozen=True)
class Request:
  """Arguments of a plan.

  Attributes:
    files: gin files.
    overrides: `NAME=VALUE` each.
    num_devices: number of devices; None for the number that the mesh requires.
    device: the accelerator; None: no time and no check of the memory.
    tokens: tokens of the run; None: those of `Trainer.num_steps`.
    price: price of a device-hour; None: no cost.
    search: whether to try strategies, micro-batches and rematerialisation policies.
    dry: whether to compile nothing.
  """

  files: Sequence[str]
  overrides: Sequence[str] = ()
  num_devices: int | None = None
  device: Device | None = None
  tokens: float | None = None
  price: float | None = None
  search: bool = False
  dry: bool = False


@dataclasses.dataclass(frozen=True)
class Planned:
  """A variant with its compiled program and cost.

  Attributes:
    variant: the variant.
    fits: whether it fits into the device; None without a device.
    compiled: its compiled program; None if it was not compiled.
    time: seconds of a step, with the collectives of the compiled program if it was compiled; None if unknown.
    cost: cost of the run; None without a time.
    error: the reason why it could not be compiled; None if it was.
  """

  variant: Variant
  fits: bool | None
  compiled: Compiled | None = None
  time: StepTime | None = None
  cost: RunCost | None = None
  error: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
  """The experiment and the variants tried.

  Attributes:
    request: the arguments of the plan.
    base: the experiment.
    changes: variants tried because it does not fit.
    best: variants of the search, the best first.
    num_tried: number of variants of the search.
  """

  request: Request
  base: Planned
  changes: tuple[Planned, ...] = ()
  best: tuple[Planned, ...] = ()
  num_tried: int = 0


def make_plan(request: Request, log: Callable[[str], None]) -> Plan:
  """Traces an experiment, compiles it, and tries variants of it.

  Args:
    request: the arguments.
    log: called with a line before each long computation.

  Raises:
    UserError: parts of the experiment do not fit each other, or it cannot be compiled.
  """
  planner = Planner(request.files, request.overrides, request.num_devices, request.device)
  if request.search and (reason := no_time(planner.base.program)) is not None:
    raise UserError(f'--search ranks by time, which is unknown: {reason}')
  finish = _Finisher(planner, request, log)
  base = finish(planner.base, required=True)
  changes, best, num_tried = [], [], 0
  if request.search:
    log('searching strategies, micro-batches and rematerialisation policies')
    variants = planner.search()
    num_tried, best = len(variants), [finish(v) for v in variants[:NUM_COMPILED]]
  elif base.fits is False:
    log('searching for the nearest changes that fit')
    fitting = 0
    for variant in planner.nearest_changes():
      fitting += planner.fits(variant)
      changes.append(finish(variant, compiles=planner.fits(variant) and fitting <= NUM_COMPILED))
  return Plan(request, base, tuple(changes), tuple(best), num_tried)


class _Finisher:
  """Compiles variants and computes their costs."""

  def __init__(self, planner: Planner, request: Request, log: Callable[[str], None]):
    self.planner, self.request, self.log = planner, request, log

  def __call__(self, variant: Variant, required: bool = False, compiles: bool = True) -> Planned:
    request, compiled, error = self.request, None, None
    if compiles and not request.dry:
      settings = ' '.join(variant.bindings) or 'the train step'
      self.log(f'compiling {settings} for {variant.program.mesh.size} fake devices')
      try:
        compiled = self.planner.compile(variant)
      except UserError as failure:
        if required:
          raise
        error = str(failure)
    device, cost, time = request.device, None, variant.time
    fits = None if device is None else self.planner.fits(variant)
    if device is not None and compiled is not None:
      time = variant.step_time(compiled.collectives, device)
    if device is not None and time is not None:
      cost = variant.run_cost(time.estimate, device, request.tokens, request.price)
    return Planned(variant, fits, compiled, time, cost, error)


def communication(planned: Planned) -> Sequence[Collective]:
  """Returns the collectives of the compiled step, or those expected if it was not compiled."""
  variant, compiled = planned.variant, planned.compiled
  if compiled is not None:
    return compiled.collectives
  return expected_collectives(variant.footprint, variant.mesh_shape)
