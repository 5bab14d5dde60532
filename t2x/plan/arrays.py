"""Arrays and operations of a traced program on one device, and the memory that they need together.

Models the fusion of XLA: an elementwise operation is computed inside the operations that read it, unless one of them
(a product, a loop, ...) needs its operand in memory.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from t2x.plan.shards import Sizes, Spec, parts, unsplit

# Categories of memory at the peak.
COPIES, GRADIENTS, SAVED, TEMPORARIES = 'copies', 'gradients', 'saved', 'temporaries'


@dataclasses.dataclass(eq=False)
class Array:
  """An array of the program.

  Attributes:
    shape: global shape.
    itemsize: bytes per element.
    spec: mesh axes of each dimension.
    from_batch: whether it is computed from the batch; else from parameters or constants.
    is_gradient: whether it is the gradient of a parameter, or computed from gradients of this size.
    in_memory: whether it has a buffer of its own; else it is a view, part of a fusion, or an input.
    sources: arrays that it is computed from, if it has no buffer; () for inputs.
    is_view: whether it has the elements of its only source.
    is_slice: whether only its own elements of the sources are read.
    is_stack: whether its sources are its slices along the first dimension.
    born: index of the operation that computes it.
    last: index of the last operation that reads it; -1 for none.
  """

  shape: tuple[int, ...]
  itemsize: int
  spec: Spec
  from_batch: bool
  is_gradient: bool = False
  in_memory: bool = False
  sources: tuple['Array', ...] = ()
  is_view: bool = False
  is_slice: bool = False
  is_stack: bool = False
  born: int = -1
  last: int = -1

  @property
  def size(self) -> int:
    """Number of elements on all devices."""
    return math.prod(self.shape)

  def bytes(self, sizes: Sizes) -> int:
    """Bytes on one device."""
    return self.size // parts(self.spec, sizes) * self.itemsize

  def buffers(self) -> tuple['Array', ...]:
    """Returns the arrays in memory and the inputs that are read to compute it."""
    return (self,) if self.in_memory or not self.sources else self._source_buffers

  @functools.cached_property
  def _source_buffers(self) -> tuple['Array', ...]:
    return tuple(dict.fromkeys(b for source in self.sources for b in source.buffers()))

  def root(self) -> 'Array':
    """Returns the array that it is a view of, or itself."""
    return self.sources[0].root() if self.is_view and not self.in_memory else self

  def is_filled(self) -> bool:
    """Whether all elements are computed from constant scalars."""
    if self.from_batch or self.in_memory or self.is_slice:
      return False
    return all(a.is_filled() for a in self.sources) if self.sources else self.size == 1

  def as_input(self) -> 'Array':
    """Returns the array as an input of another frame."""
    return Array(self.shape, self.itemsize, self.spec, self.from_batch, self.is_gradient)

  def as_result(self, shape: tuple[int, ...], spec: Spec) -> 'Array':
    """Returns an output of a body as an array in memory."""
    return dataclasses.replace(self.as_input(), shape=shape, spec=spec, in_memory=True)

  def viewed(self, shape: Sequence[int], spec: Spec) -> 'Array':
    """Returns the elements on a device in another shape."""
    return dataclasses.replace(
      self.as_input(), shape=tuple(shape), spec=spec, sources=(self,), is_view=True
    )

  def slice(self, number: int) -> 'Array':
    """Returns a slice along the first dimension."""
    if self.is_stack:
      return self.sources[number]
    own = dataclasses.replace(self.as_input(), shape=self.shape[1:], spec=self.spec[1:])
    return dataclasses.replace(own, sources=(self,), is_slice=True)

  def to_memory(self, now: int) -> None:
    """Gives the array a buffer, or the array that it is a view of; constants need none."""
    if self.in_memory or self.is_filled():
      return
    if self.is_view:
      self.sources[0].to_memory(now)
    elif self.sources or self.is_slice:
      self.in_memory = True
      self.born = now if self.born < 0 else self.born


def stacked(slices: Sequence[Array]) -> Array:
  """Returns the array with these slices along the first dimension."""
  first = slices[0]
  result = Array((len(slices), *first.shape), first.itemsize, ((), *first.spec), first.from_batch)
  return dataclasses.replace(
    result, is_gradient=first.is_gradient, sources=tuple(slices), is_stack=True
  )


def itemsize(aval: object) -> int:
  """Returns the bytes of an element; 0 for what is not an array."""
  return getattr(getattr(aval, 'dtype', None), 'itemsize', 0)


def constant(aval: object) -> Array:
  """Returns a constant."""
  shape = tuple(getattr(aval, 'shape', ()))
  return Array(shape, itemsize(aval), unsplit(len(shape)), False)


@dataclasses.dataclass(eq=False)
class Operation:
  """An equation of the program.

  Attributes:
    reads: arrays that it reads.
    writes: arrays that it computes.
    flops: FLOPs of its products on one device.
    inside: peak memory of its body by category, if it is a loop or call.
    extra: bytes of operands that are gathered from other devices.
    in_place: pairs (read, written) of arrays that can share a buffer; None: all of equal size.
    is_backward: whether it belongs to the backward pass.
    is_loop: whether it is a loop.
  """

  reads: Sequence[Array]
  writes: Sequence[Array]
  flops: int = 0
  inside: Mapping[str, int] = dataclasses.field(default_factory=dict)
  extra: int = 0
  in_place: Sequence[tuple[Array, Array]] | None = ()
  is_backward: bool = False
  is_loop: bool = False


@dataclasses.dataclass
class Totals:
  """Totals of a program or of the body of a loop, on one device.

  Attributes:
    peak: memory at the peak by category, without inputs.
    saved: bytes that are computed from the batch and live when the backward pass starts.
    flops: FLOPs of all products.
    collectives: bytes by (kind, mesh axes), counted as in `t2x.plan.collectives`.
    repeated: FLOPs that a CPU adds to grouped products, because it multiplies each row with the matrices of all groups.
  """

  peak: dict[str, int]
  saved: int
  flops: int
  collectives: collections.Counter[tuple[str, tuple[str, ...]]]
  repeated: int = 0


class Frame:
  """The operations of a program or of the body of a loop, in order.

  Args:
    sizes: number of devices by mesh axis.
  """

  def __init__(self, sizes: Sizes):
    self.sizes = sizes
    self.operations: list[Operation] = []
    self.flops = self.saved = 0

  def add(self, operation: Operation) -> None:
    """Appends an operation."""
    for array in operation.writes:
      array.born = len(self.operations)
    self.operations.append(operation)

  def finish(self, outputs: Iterable[Array], owned: Iterable[Array] = ()) -> dict[str, int]:
    """Computes the FLOPs and the memory.

    Args:
      outputs: arrays that leave the frame. They are written into buffers of the caller.
      owned: those of the outputs whose buffers are not part of the frame either.

    Returns:
      The bytes at the peak by category, without the inputs.
    """
    for array in owned:
      for buffer in array.buffers() if array.is_view else (array,):
        buffer.in_memory = False
    end = len(self.operations)
    executed = [
      operation
      for operation in self.operations
      if not operation.writes or any(a.in_memory for a in operation.writes)
    ]
    places = {id(operation): place for place, operation in enumerate(self.operations)}
    for operation in executed:
      for array in operation.reads:
        for buffer in array.buffers():
          buffer.last = max(buffer.last, places[id(operation)])
      self.flops += operation.flops
    for array in outputs:
      for buffer in array.buffers():
        buffer.last = end
    start = self._backward_start()
    arrays = [a for o in self.operations for a in (*o.writes, *o.reads) if a.in_memory]
    arrays = [a for a in dict.fromkeys(arrays) if a.last >= a.born]
    crossing = [
      a
      for a in arrays
      if start is not None and a.from_batch and a.born < start <= a.last
      if not self.operations[a.born].is_backward
    ]
    self.saved = max(self.saved, sum(a.bytes(self.sizes) for a in crossing))
    return self._peak(arrays, set(map(id, crossing)))

  def _backward_start(self) -> int | None:
    """Returns the place of the backward loop with the largest state, or of the first backward product."""
    backward = [(i, o) for i, o in enumerate(self.operations) if o.is_backward]
    loops = [
      (sum(a.bytes(self.sizes) for a in (*o.reads, *o.writes)), -i)
      for i, o in backward
      if o.is_loop
    ]
    if loops:
      return -max(loops)[1]
    return next((i for i, o in backward if o.flops), None)

  def _peak(self, arrays: Iterable[Array], crossing: set[int]) -> dict[str, int]:
    steps: list[collections.Counter[str]] = [
      collections.Counter() for _ in range(len(self.operations) + 2)
    ]
    for array in arrays:
      size, name = array.bytes(self.sizes), _category(array, id(array) in crossing)
      steps[array.born][name] += size
      steps[array.last + 1][name] -= size
    live: collections.Counter[str] = collections.Counter()
    peak: dict[str, int] = {}
    for place, operation in enumerate(self.operations):
      live.update(steps[place])
      now = live + collections.Counter(operation.inside)
      now[TEMPORARIES] += operation.extra
      for read, written in self._shared(operation, place):
        now[_category(written, id(read) in crossing)] -= read.bytes(self.sizes)
      if sum(now.values()) > sum(peak.values()):
        peak = dict(now)
    return peak

  def _shared(self, operation: Operation, place: int) -> Iterable[tuple[Array, Array]]:
    """Returns the pairs of arrays that share a buffer because the first is read for the last time."""
    dying = [b for a in operation.reads for b in a.buffers() if b.in_memory and b.last == place]
    if operation.in_place is not None:
      return [
        (buffer, written)
        for read, written in operation.in_place
        for buffer in read.buffers()[:1]
        if buffer in dying and buffer.bytes(self.sizes) == written.bytes(self.sizes)
      ]
    result = []
    for written in operation.writes:
      size = written.bytes(self.sizes)
      match = next((b for b in dying if b.bytes(self.sizes) == size), None)
      if match is not None and written.in_memory:
        dying.remove(match)
        result.append((match, written))
    return result


def _category(array: Array, crosses: bool) -> str:
  if array.is_gradient:
    return GRADIENTS
  if not array.from_batch:
    return COPIES
  return SAVED if crosses else TEMPORARIES
