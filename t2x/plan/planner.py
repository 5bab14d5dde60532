"""Variants of an experiment for a device: their memory and time from the traced program, and which of them fit."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from flax import nnx

from t2x.base.errors import UserError
from t2x.experiments import read_experiment
from t2x.models import Stack
from t2x.parallel.mesh import BATCH_AXES, MESH_AXES
from t2x.plan.collectives import Collective
from t2x.plan.compiled import Compiled, compile_step
from t2x.plan.cost import RunCost, StepTime, nearest_recorded, run_cost, step_time
from t2x.plan.footprint import Footprint, footprint
from t2x.plan.hardware import RECORDED, Device, Recorded
from t2x.train import Program
from t2x.train.checks import check_vocabulary
from t2x.train.program import step_flops, step_tokens

# Values of Stack.remat, from the fewest recomputed arrays to the most.
POLICIES = (None, 'dots', 'dots_no_batch+attention', 'dots_no_batch', 'attention', 'full')
# Of the traced total, whose temporaries are an estimate: it was within this share of the compiled total where the
# compiler for CPUs adds no conversions (tests/plan/test_footprint.py).
FIT_MARGIN = 0.1
# A model with fewer FLOPs per token than the smallest recorded one by more than this factor has no estimated time: its
# small operations take time that FLOPs do not show.
SMALLER = 4
# Number of variants that are compiled.
NUM_COMPILED = 3


@dataclasses.dataclass(frozen=True)
class Variant:
  """An experiment, or one with other settings.

  Attributes:
    bindings: its settings, `NAME=VALUE` each; () for the experiment itself.
    program: shapes and functions of the experiment.
    footprint: memory, products and collectives from the traced program.
    time: seconds of a step; None without a device, or for the reason that `no_time` returns.
  """

  bindings: tuple[str, ...]
  program: Program
  footprint: Footprint
  time: StepTime | None

  @property
  def mesh_shape(self) -> dict[str, int]:
    """Number of devices by mesh axis."""
    return dict(self.program.mesh.shape)

  @property
  def recorded(self) -> Recorded:
    """The recorded step with whose MFU the time is estimated."""
    infos = self.program.blueprint.infos.values()
    experts = any(info.active < 1 for info in infos if info.kind != 'table')
    return nearest_recorded(self.program.flops.visible, experts)

  def step_time(self, communication: Iterable[Collective], device: Device) -> StepTime | None:
    """Returns the time of a step with these collectives; None for the reason that `no_time` returns."""
    if no_time(self.program) is not None:
      return None
    return step_time(
      self.footprint.flops, self.recorded.mfu, communication, device, self.mesh_shape
    )

  @property
  def accumulate(self) -> int:
    """Micro-batches per step."""
    return self.program.trainer.accumulate

  @property
  def remat(self) -> str | None:
    """Rematerialisation policy of the first stack."""
    modules = nnx.iter_modules(self.program.blueprint.shapes)
    return next((part.remat for _, part in modules if isinstance(part, Stack)), None)

  def run_cost(
    self, seconds: float, device: Device, tokens: float | None, price: float | None
  ) -> RunCost:
    """Returns the cost of `tokens`, or of all steps of the experiment, at `seconds` per step."""
    program, count = self.program, step_tokens(self.program)
    tokens = tokens or program.trainer.num_steps * count
    size = program.mesh.size
    return run_cost(seconds, step_flops(program), count, tokens, device, size, price)


class Planner:
  """Tries variants of an experiment.

  Args:
    files: gin files.
    overrides: `NAME=VALUE` each.
    num_devices: number of devices; None for the number that the mesh requires.
    device: the accelerator; None: no time, and everything fits.
  """

  def __init__(
    self,
    files: Sequence[str],
    overrides: Sequence[str],
    num_devices: int | None,
    device: Device | None,
  ):
    self.files, self.overrides = tuple(files), tuple(overrides)
    self.num_devices, self.device = num_devices, device
    self._variants: dict[tuple[str, ...], Variant] = {}
    self.base = self.variant(())
    self.num_devices = self.base.program.mesh.size

  def variant(self, bindings: tuple[str, ...]) -> Variant:
    """Traces a variant, once.

    Args:
      bindings: settings that replace those of the experiment.

    Raises:
      UserError: the parts of the variant do not fit each other or the mesh.
    """
    if bindings not in self._variants:
      self._variants[bindings] = self._traced(bindings)
    return self._variants[bindings]

  def _traced(self, bindings: tuple[str, ...]) -> Variant:
    experiment = read_experiment(self.files, [*self.overrides, *bindings])
    _, task, _ = experiment.complete()
    check_vocabulary(task)
    required = experiment.mesh.num_devices
    if required is not None and self.num_devices not in (None, required):
      raise UserError(
        f'--devices {self.num_devices}: the mesh has Mesh.num_devices = {required}, remove one of them'
      )
    program = Program(experiment, mesh=experiment.mesh.abstract(self.num_devices))
    traced = footprint(program, None if self.device is None else self.device.platform)
    variant = Variant(bindings, program, traced, None)
    if self.device is None:
      return variant
    communication = expected_collectives(traced, variant.mesh_shape)
    return dataclasses.replace(variant, time=variant.step_time(communication, self.device))

  def compile(self, variant: Variant) -> Compiled:
    """Compiles a variant for fake devices.

    Raises:
      UserError: it cannot be compiled.
    """
    return compile_step(self.files, [*self.overrides, *variant.bindings], variant.program.mesh.size)

  def fits(self, variant: Variant) -> bool:
    """Returns whether a variant fits into the memory of the device."""
    return self.device is None or (1 + FIT_MARGIN) * variant.footprint.total <= self.device.usable

  def nearest_changes(self) -> list[Variant]:
    """Returns the variants tried because the experiment does not fit, variants that fit first.

    For each kind of change it has the smallest change that fits, else the change with the least memory. If none fits,
    changes are combined.
    """
    kinds: list[Iterable[tuple[str, ...]]] = [
      self._micro_batches(()),
      self._policies(),
      self._strategies(),
    ]
    tried = [self._first_that_fits(bindings) for bindings in kinds]
    if not any(variant and self.fits(variant) for variant in tried):
      for bindings in ((), *self._strategies()):
        full = self._with_policy(bindings, 'full')
        tried.append(self._first_that_fits([full, *self._micro_batches(full)]))
    variants = list({v.bindings: v for v in tried if v is not None}.values())
    return sorted(variants, key=lambda variant: not self.fits(variant))

  def search(self) -> list[Variant]:
    """Returns all variants tried, the fastest that fit first: strategies, policies, and micro-batches.

    For each strategy and policy it has the fewest micro-batches that fit.
    """
    variants: dict[tuple[str, ...], Variant] = {(): self.base}
    for strategy in [(), *self._strategies()]:
      for policy in POLICIES:
        bindings = self._with_policy(strategy, policy)
        options = [(*bindings, 'Trainer.accumulate=1'), *self._micro_batches(bindings, 1)]
        variant = self._first_that_fits(options)
        if variant is not None:
          variants[variant.bindings] = variant
    return sorted(variants.values(), key=self._rank)

  def _rank(self, variant: Variant) -> tuple[bool, float]:
    seconds = math.inf if variant.time is None else variant.time.estimate
    return not self.fits(variant), seconds

  def _first_that_fits(self, options: Iterable[tuple[str, ...]]) -> Variant | None:
    """Returns the first variant that fits; otherwise the valid variant with the least memory."""
    smallest: Variant | None = None
    for bindings in options:
      try:
        variant = self.variant(bindings)
      except UserError:
        continue
      if self.fits(variant):
        return variant
      if smallest is None or variant.footprint.total < smallest.footprint.total:
        smallest = variant
    return smallest

  def _with_policy(self, bindings: tuple[str, ...], policy: str | None) -> tuple[str, ...]:
    return (*(b for b in bindings if not b.startswith('Stack.remat=')), f'Stack.remat={policy!r}')

  def _micro_batches(
    self, bindings: tuple[str, ...], start: int | None = None
  ) -> Iterator[tuple[str, ...]]:
    trainer = self.base.program.trainer
    count = 2 * (start or trainer.accumulate)
    while count <= trainer.batch_size:
      if trainer.batch_size % count == 0:
        yield (*bindings, f'Trainer.accumulate={count}')
      count *= 2

  def _policies(self) -> Iterator[tuple[str, ...]]:
    current = POLICIES.index(self.base.remat)
    return (self._with_policy((), policy) for policy in POLICIES[current + 1 :])

  def _strategies(self) -> list[tuple[str, ...]]:
    """Returns the meshes of the usual strategies that differ from the experiment's."""
    size, base = self.base.program.mesh.size, self.base.mesh_shape
    domain = size if self.device is None else min(size, self.device.domain)
    shapes = [{'data': size}, {'fsdp': size}, {'data': size // domain, 'fsdp': domain}]
    shapes += [{'fsdp': size // t, 'tensor': t} for t in (2, 4, 8) if size % t == 0 and t <= domain]
    result = {}
    for shape in shapes:
      full = {axis: shape.get(axis, 1) for axis in MESH_AXES}
      if math.prod(full.values()) == size and full != base:
        sizes = (f'Mesh.{axis}={count}' for axis, count in full.items())
        result[tuple(full.values())] = ('Experiment.mesh=@Mesh()', *sizes)
    return list(result.values())


def no_time(program: Program) -> str | None:
  """Returns why the time of a step is not estimated, or None."""
  smallest, flops = min(run.flops for run in RECORDED), program.flops.visible
  if program.trainer.compute_dtype != 'bfloat16':
    return 'the peak rates are those of bfloat16: add t2x:precision/bf16.gin'
  if SMALLER * flops < smallest:
    return (
      f'{flops / 1e9:.2g} GFLOPs per token are fewer than a quarter of those of the smallest recorded model, '
      f'{smallest / 1e9:.2g}: its operations are too small to estimate their time by FLOPs'
    )
  return None


def expected_collectives(traced: Footprint, mesh_shape: dict[str, int]) -> list[Collective]:
  """Returns the collectives that the traced program needs; the compiler may choose others."""
  return [
    Collective(kind, axes, 0, size, math.prod(mesh_shape[axis] for axis in axes), size)
    for (kind, axes), size in traced.collectives.items()
  ]


def rows_per_device(variant: Variant) -> int:
  """Returns the rows of a micro-batch on one device."""
  parts = math.prod(variant.mesh_shape[axis] for axis in BATCH_AXES)
  return variant.program.trainer.batch_size // variant.accumulate // parts
