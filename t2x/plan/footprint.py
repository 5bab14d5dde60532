"""Memory, products and collectives of a train step on one device, from its traced program: nothing is compiled."""

import collections
import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.interpreters import partial_eval

from t2x.base.step import in_step
from t2x.layers import XLA, AttentionInputs, Auto, Blockwise, Kernel, PallasMHA, Splash
from t2x.plan.arrays import COPIES, GRADIENTS, SAVED, TEMPORARIES, Array, Totals
from t2x.plan.shards import Spec, spec_of
from t2x.plan.trace import Walker
from t2x.train import Program
from t2x.train.logs.flops import with_kernels
from t2x.train.params import Blueprint


@dataclasses.dataclass(frozen=True)
class Footprint:
  """The train step on one device, in bytes and FLOPs.

  Attributes:
    parameters: trained and frozen parameters.
    optimizer: state of the optimizer.
    other: moving average, counts, keys, the batch.
    peak: memory beyond these at the peak by category: copies of the parameters in the compute dtype, gradients,
      saved activations, temporaries.
    saved: arrays that are computed from the batch and live when the backward pass starts.
    flops: FLOPs of all products, recomputation included.
    collectives: bytes by (kind, mesh axes).
    repeated: FLOPs that a CPU adds to grouped products (`jax.lax.ragged_dot`), which it computes for every group.
  """

  parameters: int
  optimizer: int
  other: int
  peak: Mapping[str, int]
  saved: int
  flops: int
  collectives: Mapping[tuple[str, tuple[str, ...]], int]
  repeated: int = 0

  @property
  def arguments(self) -> int:
    """Bytes of the arguments of the step."""
    return self.parameters + self.optimizer + self.other

  @property
  def total(self) -> int:
    """Bytes at the peak."""
    return self.arguments + sum(self.peak.values())

  def parts(self) -> dict[str, int]:
    """Bytes at the peak by name, in the order in which they are printed."""
    return {
      'parameters': self.parameters,
      'optimizer state': self.optimizer,
      'averages, keys, batch': self.other,
      'parameters in the compute dtype': self.peak.get(COPIES, 0),
      'gradients': self.peak.get(GRADIENTS, 0),
      'saved activations': self.peak.get(SAVED, 0),
      'temporaries': self.peak.get(TEMPORARIES, 0),
    }


def footprint(program: Program, target: str | None = None) -> Footprint:
  """Traces the train step of a program and walks through it.

  Args:
    program: its mesh may be abstract.
    target: platform of the devices; see `t2x.base.step.target`. None: that of this process.
  """
  state, batch = program.abstract, program.batch()
  totals = _totals(program, (state, program.frozen, batch), target)
  return Footprint(
    parameters=_bytes((state.params, program.frozen)),
    optimizer=_bytes(state.opt_state),
    other=_bytes((state.ema, state.key, state.step, batch)),
    peak=totals.peak,
    saved=totals.saved,
    flops=totals.flops,
    collectives=totals.collectives,
    repeated=totals.repeated,
  )


@dataclasses.dataclass(frozen=True, eq=False)
class _InTiles(Kernel):
  """Computes what a fused kernel would by `Blockwise`, which saves the same arrays and can be traced anywhere."""

  kernel: Kernel

  needs_complete_rows = False

  def supports(self, inputs: AttentionInputs) -> str | None:
    return self.kernel.supports(inputs)

  def attend(self, inputs: AttentionInputs) -> jax.Array:
    kernel = self.kernel.choose(inputs)[0] if isinstance(self.kernel, Auto) else self.kernel
    is_fused = isinstance(kernel, (PallasMHA, Splash)) or kernel == XLA('cudnn')
    return (Blockwise() if is_fused else kernel)(inputs)


def _totals(program: Program, arguments: tuple[Any, Any, Any], target: str | None) -> Totals:
  traced = copy.copy(program)
  traced.blueprint = Blueprint(with_kernels(program.blueprint.shapes, _InTiles))
  with in_step(target=target):
    closed = jax.make_jaxpr(traced.step())(*arguments)
  outputs = [True] * len(closed.jaxpr.outvars)
  jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, outputs, instantiate=True)
  state, frozen, batch = arguments
  # Dropout masks are computed from the key.
  varying = dataclasses.replace(jax.tree.map(lambda leaf: False, state), key=True)
  flags = jax.tree.leaves(
    (
      varying,
      *(
        jax.tree.map(lambda leaf, flag=flag: flag, tree)
        for tree, flag in ((frozen, False), (batch, True))
      ),
    )
  )
  inputs = [
    Array(tuple(leaf.shape), _itemsize(leaf), _spec(leaf), flag)
    for leaf, flag in zip(jax.tree.leaves(arguments), flags, strict=True)
  ]
  walker = Walker(dict(program.mesh.shape), _gradients(program))
  return walker.walk(jaxpr, inputs, owned=True)[1]


def _gradients(program: Program) -> dict[tuple[int, ...], dict[int, tuple[str, ...]]]:
  """Returns the mesh axes of each dimension by its size, by the sorted shape of a trained parameter or layer."""
  result: dict[tuple[int, ...], dict[int, tuple[str, ...]]] = {}
  for name, info in program.groups.trained.items():
    leaf = program.abstract.params[name]
    spec = _spec(leaf)
    for skipped in {0, info.layer_axis + 1 if info.layers else 0}:
      shape = leaf.shape[skipped:]
      axes: dict[int, tuple[str, ...]] = collections.defaultdict(tuple)
      for size, names in zip(shape, spec[skipped:], strict=True):
        axes[size] = axes[size] or names
      result.setdefault(tuple(sorted(shape)), axes)
  return result


def _spec(leaf: jax.ShapeDtypeStruct) -> Spec:
  return spec_of(leaf.sharding, len(leaf.shape))


def _itemsize(leaf: jax.ShapeDtypeStruct) -> int:
  return leaf.dtype.itemsize


def _bytes(tree: object) -> int:
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * _itemsize(leaf)
    for leaf in jax.tree.leaves(tree)
  )
