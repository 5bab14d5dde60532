"""Walks through the traced train step as one device executes it: shardings, memory, products, collectives."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from t2x.parallel.mesh import BATCH_AXES, as_tuple
from t2x.plan.arrays import Array, Frame, Operation, Totals, constant, itemsize, stacked
from t2x.plan.rules import (
  COLLECTIVES,
  EXPENSIVE,
  HEAVY,
  PRODUCTS,
  ROW_AXES,
  SCATTERS,
  constrained,
  matching_axes,
  num_groups,
  output_specs,
  product_flops,
)
from t2x.plan.shards import Sizes, flat, merged, once, padded_spec, parts, without

# Jitted functions of attention kernels, whose tiles stay in the caches of a device.
KERNELS = ('blockwise_forward', 'blockwise_backward', 'ring_forward', 'ring_backward')
_VIEWS = ('reshape', 'transpose', 'squeeze', 'sharding_constraint', 'dynamic_update_slice')
_IDENTITIES = ('copy', 'copy_p', 'optimization_barrier')
# Primitives whose parameter `jaxpr` is not the program that they execute.
_NO_CALLS = ('reduce', 'reduce_window', 'pallas_call')
_SLICES = ('slice', 'dynamic_slice')


class Walker:
  """Walks through a jaxpr and the jaxprs inside it.

  Args:
    sizes: number of devices by mesh axis.
    gradients: sorted shape of a parameter -> mesh axes of a dimension by its size.
  """

  def __init__(
    self, sizes: Sizes, gradients: Mapping[tuple[int, ...], Mapping[int, tuple[str, ...]]]
  ):
    self.sizes, self.gradients = sizes, gradients

  def walk(
    self,
    jaxpr: Jaxpr | ClosedJaxpr,
    inputs: Sequence[Array],
    *,
    owned: bool = False,
    is_backward: bool = False,
  ) -> tuple[list[Array], Totals]:
    """Walks through a closed jaxpr.

    Args:
      jaxpr: the program.
      inputs: its inputs.
      owned: whether the caller owns the buffers of the outputs.
      is_backward: whether it belongs to the backward pass.

    Returns:
      The outputs and the totals.
    """
    frame = _FrameWalker(self)
    outputs = frame.inline(jaxpr, inputs, is_backward)
    peak = frame.frame.finish(outputs, outputs if owned else ())
    # Loops over tiles visit each tile in at most one loop.
    flops = frame.flops + frame.frame.flops + max(frame.unknown, default=0)
    saved = max(frame.saved, frame.frame.saved)
    return outputs, Totals(peak, saved, flops, frame.collectives, frame.repeated)


class _FrameWalker:
  """Collects the operations of one frame; calls are inlined, loops become operations."""

  def __init__(self, walker: Walker):
    self.walker, self.sizes = walker, walker.sizes
    self.frame = Frame(walker.sizes)
    self.unknown: list[int] = []
    self.collectives: collections.Counter = collections.Counter()
    self.flops = self.saved = self.repeated = 0
    self.gathered: dict[tuple[int, tuple[str, ...]], Array] = {}

  def inline(
    self, closed: Jaxpr | ClosedJaxpr, inputs: Sequence[Array], is_backward: bool
  ) -> list[Array]:
    """Adds the equations of a jaxpr and returns its outputs."""
    jaxpr = getattr(closed, 'jaxpr', closed)
    env = dict(zip(jaxpr.invars, inputs, strict=True))
    env |= {v: constant(v.aval) for v in jaxpr.constvars}
    uses = collections.Counter(map(id, jaxpr.outvars))
    uses.update(id(v) for equation in jaxpr.eqns for v in equation.invars)

    def read(variable):
      return constant(variable.aval) if hasattr(variable, 'val') else env[variable]

    for equation in jaxpr.eqns:
      backward = is_backward or 'transpose' in str(equation.source_info.name_stack)
      outputs = self._equation(equation, [read(v) for v in equation.invars], backward)
      if equation.primitive.name in EXPENSIVE and uses[id(equation.outvars[0])] > 1:
        outputs[0].to_memory(len(self.frame.operations))
      env.update(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]

  def _equation(self, equation: JaxprEqn, inputs: list[Array], is_backward: bool) -> list[Array]:
    name, params = equation.primitive.name, equation.params
    if name == 'scan':
      return self._scan(equation, inputs, is_backward)
    if name == 'while':
      return self._while(equation, inputs, is_backward)
    if name == 'cond':
      return self._cond(equation, inputs, is_backward)
    if name == 'shard_map':
      return self._shard_map(equation, inputs, is_backward)
    # The recomputation reads its inputs behind a barrier, which is in the lowered program only.
    if params.get('prevent_cse') and params['differentiated']:
      for array in inputs:
        if array.from_batch:
          array.to_memory(len(self.frame.operations))
    if name in _IDENTITIES or self._is_kept(name, params, inputs):
      return inputs
    inner = params.get('jaxpr', params.get('call_jaxpr'))
    if inner is not None and name not in _NO_CALLS:
      if params.get('name') in KERNELS and any(a.from_batch for a in inputs):
        return self._kernel(equation, inner, inputs, is_backward)
      return self.inline(inner, inputs, is_backward)
    return self._simple(equation, inputs, is_backward)

  # Loops and calls.

  def _scan(self, equation: JaxprEqn, inputs: list[Array], is_backward: bool) -> list[Array]:
    params = equation.params
    length, (consts, num_carry) = params['length'], _scan_sizes(params)
    carried = consts + num_carry
    if params['unroll'] >= length:
      return self._unrolled(params, inputs, consts, carried, is_backward)
    own = [a.as_input() for a in inputs[:carried]]
    own += [
      dataclasses.replace(a.as_input(), shape=a.shape[1:], spec=a.spec[1:], is_slice=True)
      for a in inputs[carried:]
    ]
    outputs, totals = self._body(params['jaxpr'], own, consts, carried, is_backward)
    results = [a.as_result(a.shape, a.spec) for a in outputs[:num_carry]]
    # Only the compiler's partitioner stacks an array once if it is several outputs in the same shape.
    stacks: dict[tuple[Array, tuple[int, ...]], Array] = {}
    for array in outputs[num_carry:]:
      stack = array.as_result((length, *array.shape), ((), *array.spec))
      root = array.root() if parts([tuple(self.sizes)], self.sizes) > 1 else array
      results.append(stacks.setdefault((root, array.shape), stack))
    pairs = list(zip(inputs[consts:carried], results[:num_carry], strict=True))
    self._add_loop(inputs, results, totals, length, pairs, is_backward)
    return results

  def _unrolled(
    self, params: Mapping[str, Any], inputs: list[Array], first: int, end: int, is_backward: bool
  ) -> list[Array]:
    """Adds the equations of all iterations of a scan with the carry `inputs[first:end]`."""
    consts, carry, scanned = inputs[:first], inputs[first:end], inputs[end:]
    by_iteration: dict[int, list[Array]] = {}
    numbers = range(params['length'])
    for number in reversed(numbers) if params['reverse'] else numbers:
      own = [*consts, *carry, *(a.slice(number) for a in scanned)]
      outputs = self.inline(params['jaxpr'], own, is_backward)
      carry, by_iteration[number] = outputs[: end - first], outputs[end - first :]
    ordered = zip(*(by_iteration[number] for number in numbers), strict=True)
    return [*carry, *map(stacked, ordered)]

  def _while(self, equation: JaxprEqn, inputs: list[Array], is_backward: bool) -> list[Array]:
    params = equation.params
    skipped, consts = params['cond_nconsts'], params['body_nconsts']
    inputs = inputs[skipped:]
    own = [a.as_input() for a in inputs]
    outputs, totals = self._body(params['body_jaxpr'], own, consts, len(inputs), is_backward)
    results = [a.as_result(a.shape, a.spec) for a in outputs]
    tables = [a.shape[0] for a in inputs if a.itemsize == 4 and a.shape[1:] == (2,)]
    pairs = list(zip(inputs[consts:], results, strict=True))
    self._add_loop(
      inputs, results, totals, max(tables, default=1), pairs, is_backward, bool(tables)
    )
    return results

  def _body(
    self, jaxpr: Jaxpr | ClosedJaxpr, own: list[Array], first: int, end: int, is_backward: bool
  ) -> tuple[list[Array], Totals]:
    """Walks through a body until the shardings of its carry, `own[first:end]`, do not change."""
    for _ in range(4):
      outputs, totals = self.walker.walk(jaxpr, own, is_backward=is_backward)
      changed = False
      for place, output in zip(range(first, end), outputs, strict=False):
        before = own[place]
        spec = before.spec if flat(before.spec) else output.spec
        flags = before.from_batch or output.from_batch, before.is_gradient or output.is_gradient
        if (spec, *flags) != (before.spec, before.from_batch, before.is_gradient):
          changed = True
        own[place] = dataclasses.replace(
          before.as_input(), spec=spec, from_batch=flags[0], is_gradient=flags[1]
        )
      if not changed:
        break
      own = [dataclasses.replace(a.as_input(), is_slice=a.is_slice) for a in own]
    carry = [
      dataclasses.replace(output, spec=own[place].spec)
      for place, output in zip(range(first, end), outputs, strict=False)
    ]
    return [*carry, *outputs[end - first :]], totals

  def _add_loop(self, inputs, results, totals, length, pairs, is_backward, is_unknown=False):
    for array in inputs:
      array.to_memory(len(self.frame.operations))
    self.frame.add(
      Operation(
        inputs,
        results,
        inside=totals.peak,
        in_place=pairs,
        is_backward=is_backward,
        is_loop=True,
      )
    )
    if is_unknown:
      self.unknown.append(totals.flops * length)
    else:
      self.flops += totals.flops * length
    for key, size in totals.collectives.items():
      self.collectives[key] += size * length
    self.repeated += totals.repeated * length
    if not is_backward:
      self.saved = max(self.saved, totals.saved)

  def _cond(self, equation: JaxprEqn, inputs: list[Array], is_backward: bool) -> list[Array]:
    own = [a.as_input() for a in inputs[1:]]
    walked = [
      self.walker.walk(branch, own, owned=True, is_backward=is_backward)
      for branch in equation.params['branches']
    ]
    outputs, totals = max(walked, key=lambda pair: pair[1].flops)
    results = [a.as_result(a.shape, a.spec) for a in outputs]
    self._add_loop(inputs, results, totals, 1, [], is_backward)
    return results

  def _shard_map(self, equation: JaxprEqn, inputs: list[Array], is_backward: bool) -> list[Array]:
    """Adds the equations of a function that each device applies to its parts of the arrays."""
    inner, in_specs, out_specs = (equation.params[n] for n in ('jaxpr', 'in_specs', 'out_specs'))
    mapped = {axis for spec in (*in_specs, *out_specs) for axes in spec for axis in as_tuple(axes)}
    own = [
      array.viewed(variable.aval.shape, without(array.spec, mapped))
      for array, variable in zip(inputs, inner.invars, strict=True)
    ]
    results = []
    outputs = zip(self.inline(inner, own, is_backward), equation.outvars, out_specs, strict=True)
    for array, variable, spec in outputs:
      ndim = len(array.shape)
      whole = merged([padded_spec(spec, ndim), array.spec], ndim)
      results.append(array.viewed(cast(ShapedArray, variable.aval).shape, whole))
    return results

  def _kernel(
    self, equation: JaxprEqn, inner: Jaxpr | ClosedJaxpr, inputs: list[Array], is_backward: bool
  ) -> list[Array]:
    """Adds a call that reads its inputs from memory and writes its outputs there."""
    own = [a.as_input() for a in inputs]
    outputs, totals = self.walker.walk(inner, own, owned=True, is_backward=is_backward)
    results = [a.as_result(a.shape, a.spec) for a in outputs]
    for array in inputs:
      array.to_memory(len(self.frame.operations))
    self.frame.add(Operation(inputs, results, totals.flops, totals.peak, is_backward=is_backward))
    self.collectives.update(totals.collectives)
    return results

  # Other equations.

  def _simple(self, equation: JaxprEqn, inputs: list[Array], is_backward: bool) -> list[Array]:
    name = equation.primitive.name
    inputs, extra = self._gathered(name, equation, inputs)
    specs, summed = output_specs(name, equation, inputs, self.sizes)
    from_batch = any(a.from_batch for a in inputs)
    results = []
    for variable, spec in zip(equation.outvars, specs, strict=True):
      aval = cast(ShapedArray, variable.aval)
      shape = tuple(aval.shape)
      result = Array(shape, itemsize(aval), spec, from_batch)
      result.is_gradient = any(a.is_gradient and a.size == result.size for a in inputs)
      results.append(result)
    flops = 0
    if name in PRODUCTS:
      flops = product_flops(equation, results[0], inputs, summed, self.sizes)
      self.repeated += (num_groups(equation) - 1) * flops
    if summed:
      for result in results:
        self._combine(result, summed)
    if name in COLLECTIVES:
      axes = equation.params['axes' if name == 'psum' else 'axis_name']
      # Of a gather the whole result, of a scatter the whole operand.
      for array in inputs if name == 'reduce_scatter' else results:
        self._record(COLLECTIVES[name], as_tuple(axes), array)
    is_root = name in HEAVY or name.startswith(('reduce_', 'arg'))
    # A scatter adds to its operand in place.
    if name in HEAVY:
      for array in inputs[1 if name in SCATTERS else 0 :]:
        array.to_memory(len(self.frame.operations))
    for result in results:
      result.in_memory = is_root or self._is_moved(name, inputs, result)
      result.sources = tuple(inputs)
      if name in _VIEWS and not result.in_memory:
        result.is_view, result.sources = True, (inputs[0],)
      result.is_slice = name in _SLICES
    self.frame.add(
      Operation(
        inputs,
        results,
        flops,
        extra=extra,
        in_place=() if is_root else None,
        is_backward=is_backward,
      )
    )
    return results

  def _is_kept(self, name: str, params: Mapping[str, Any], inputs: list[Array]) -> bool:
    """Whether an equation is a constraint that its operand satisfies."""
    if name != 'sharding_constraint':
      return False
    return constrained(params['sharding'], inputs[0]) == inputs[0].spec

  def _is_moved(self, name: str, inputs: list[Array], result: Array) -> bool:
    """Whether a constraint moves data between devices; records the collective."""
    if name != 'sharding_constraint':
      return False
    before, after = flat(inputs[0].spec), flat(result.spec)
    lost = tuple(axis for axis in before if axis not in after)
    pairs = zip(inputs[0].spec, result.spec, strict=True)
    moved = tuple(axis for old, new in pairs for axis in new if axis in before and axis not in old)
    if result.from_batch:
      self._record('all-to-all', moved, result)
      self._record('all-gather', lost, result)
    return bool(lost or moved)

  def _gathered(
    self, name: str, equation: JaxprEqn, inputs: list[Array]
  ) -> tuple[list[Array], int]:
    """Returns the operands, of which parameters are gathered over the axes that split the batch."""
    batch = [a for a in inputs if a.from_batch and flat(a.spec) and not a.is_gradient]
    if not batch or len(inputs) < 2 or name == 'gather':
      return inputs, 0
    result, extra = [], 0
    largest = max(batch, key=lambda a: a.size)
    used = {x for x in flat(largest.spec) if x in BATCH_AXES}
    for place, array in enumerate(inputs):
      # An axis that splits the same dimension of both stays, as that of the experts.
      same = matching_axes(name, equation.params, array, largest, swapped=place > 0)
      pairs = zip(array.spec, same, strict=True)
      lost = tuple(x for axes, kept in pairs for x in axes if x in used and x not in kept)
      if array.from_batch or not lost:
        result.append(array)
        continue
      complete = self._complete(array, lost)
      result.append(complete)
      # Other operands are broadcast after they are gathered.
      extra += complete.bytes(self.sizes) if complete.is_view else 0
    return result, extra

  def _complete(self, array: Array, lost: tuple[str, ...]) -> Array:
    """Returns an operand gathered over mesh axes, once per frame."""
    key = id(array), lost
    if key not in self.gathered:
      complete = Array(
        array.shape,
        array.itemsize,
        without(array.spec, lost),
        False,
        sources=(array,),
        is_view=True,
      )
      small = array
      while len(small.sources) == 1 and not small.in_memory:
        small = small.sources[0]
      if small.size < array.size:
        complete.is_view = False
        self._record('all-gather', lost, dataclasses.replace(small, spec=without(small.spec, lost)))
      else:
        self._record('all-gather', lost, complete)
      self.gathered[key] = complete
    return self.gathered[key]

  def _combine(self, result: Array, summed: tuple[str, ...]) -> None:
    """Sums the parts of an array over mesh axes; a gradient is split like its parameter."""
    gradient = self.walker.gradients.get(tuple(sorted(result.shape)))
    scattered: tuple[str, ...] = ()
    if result.from_batch and gradient is not None and set(summed) & ROW_AXES:
      scattered = tuple(x for axes in gradient.values() for x in axes if x in summed)
      if scattered:
        self._record('reduce-scatter', scattered, result)
      result.spec = once((gradient[n] for n in result.shape), ())
      result.is_gradient = True
    rest = tuple(axis for axis in summed if axis not in scattered)
    if rest:
      self._record('all-reduce', rest, result)

  def _record(self, kind: str, axes: Sequence[str], array: Array) -> None:
    axes = tuple(axis for axis in axes if self.sizes[axis] > 1)
    if axes:
      self.collectives[kind, axes] += array.bytes(self.sizes)


def _scan_sizes(params: Mapping[str, Any]) -> Sequence[int]:
  """Returns how many constants and how many carried values a scan has."""
  if 'ft_in' in params:  # Since jax 0.12.
    return [len(part) for part in params['ft_in'].unpack()[:2]]
  return params['num_consts'], params['num_carry']
