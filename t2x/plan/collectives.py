"""Collectives of a compiled program: kind, mesh axes, number and bytes."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from t2x.plan.hlo import Computation, Instruction, Program, Shape, element_index, integers

KINDS = ('all-gather', 'reduce-scatter', 'all-reduce', 'all-to-all', 'collective-permute')
# Mesh axes of groups of devices that are not all devices along some axes.
MIXED = ('mixed',)
# Instructions that do not change the elements of an array, up to their dtype.
_SAME = ('bitcast', 'copy', 'convert', 'transpose', 'reshape')
# Devices are listed in three formats: all groups, a transposed range, axes of a mesh of all devices or of such a range.
_IOTA = re.compile(r'replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?')
_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}'
)
_PAIRS = re.compile(r'source_target_pairs=\{(.*?)\}\}')


@dataclasses.dataclass(frozen=True)
class Collective:
  """Collectives of one kind over the same mesh axes in one step.

  Attributes:
    kind: name of the operation.
    axes: mesh axes that a group of devices spans; ('mixed',) if it is not all devices along some axes.
    count: number of operations, loops included; 0 if unknown.
    bytes: size of the arrays on each device: the result of all-gathers, the operand of other operations.
    members: number of devices of a group.
    narrow_bytes: the same if arrays of 4 bytes per element had 2: XLA for CPUs converts bfloat16 to float32.
  """

  kind: str
  axes: tuple[str, ...]
  count: int
  bytes: int
  members: int
  narrow_bytes: int


def collectives(program: Program, mesh_shape: Mapping[str, int]) -> list[Collective]:
  """Returns the collectives of a step, those with the most bytes first.

  An all-reduce that is only read by slices is counted as the reduce-scatter that the compilers of GPUs and TPUs make
  of it.

  Args:
    program: the compiled program; its partitions are the devices of the mesh in order.
    mesh_shape: number of devices by mesh axis.
  """
  sums: dict[tuple, list[int]] = {}
  for instruction, times, computation in program.executed():
    kind = instruction.opcode.removesuffix('-start')
    if kind not in KINDS:
      continue
    group = _group(instruction, mesh_shape)
    if len(group) < 2:
      continue
    axes, kinds = _axes(group, mesh_shape), set()
    for index, shape in enumerate(_arrays(kind, instruction, computation)):
      own = kind
      if kind == 'all-reduce' and _is_scattered(program, instruction, index, computation):
        own = 'reduce-scatter'
      total = sums.setdefault((own, axes, len(group)), [0, 0, 0])
      total[0] += times if own not in kinds else 0
      total[1] += times * shape.bytes
      total[2] += times * shape.bytes // (2 if shape.kind == 'f32' else 1)
      kinds.add(own)
  result = [
    Collective(kind, axes, count, size, members, narrow)
    for (kind, axes, members), (count, size, narrow) in sums.items()
  ]
  return sorted(result, key=lambda c: -c.bytes)


def _arrays(kind: str, instruction: Instruction, computation: Computation) -> list[Shape]:
  operands = [shape for name in instruction.operands for shape in computation[name].shapes]
  if kind != 'all-gather':
    return operands
  # An asynchronous operation returns its operands first.
  skipped = len(operands) if instruction.opcode.endswith('-start') else 0
  return list(instruction.shapes[skipped:])


def _is_scattered(
  program: Program, instruction: Instruction, index: int, computation: Computation
) -> bool:
  """Whether only slices of an element of the result are read."""
  names, users = set(), []
  if len(instruction.shapes) == 1:
    names.add(instruction.name)
  for other in computation.values():
    if instruction.name in other.operands and other.opcode == 'get-tuple-element':
      names |= {other.name} if element_index(other) == index else set()
    elif not names.isdisjoint(other.operands):
      if other.opcode in _SAME or program.is_conversion(other):
        names.add(other.name)
      else:
        users.append(other)
  return bool(users) and all(_is_slice(program, user, names) for user in users)


def _is_slice(program: Program, user: Instruction, names: set[str]) -> bool:
  if user.opcode == 'dynamic-slice':
    return True
  if user.opcode != 'fusion':
    return False
  fused = program.computations[user.called[0]]
  positions = {str(place) for place, name in enumerate(user.operands) if name in names}
  inputs = {
    i.name for i in fused.values() if i.opcode == 'parameter' and i.operand_text in positions
  }
  readers = []
  for other in fused.values():
    if inputs.isdisjoint(other.operands):
      continue
    if other.opcode in _SAME:
      inputs.add(other.name)
    else:
      readers.append(other)
  return bool(readers) and all(
    reader.opcode == 'dynamic-slice' and reader.operands[0] in inputs for reader in readers
  )


def _group(instruction: Instruction, mesh_shape: Mapping[str, int]) -> Sequence[int]:
  """Returns the devices of the first group; for a permutation, those along the axes in which it moves."""
  text = instruction.attributes
  if match := _IOTA.search(text):
    return _range(match[3], match[4]).reshape(int(match[1]), int(match[2]))[0].tolist()
  if match := _MESH.search(text):
    places = _along_axes(match[1], match[4])
    return sorted(_range(match[2], match[3])[places].tolist()) if match[2] else places
  if match := _PAIRS.search(text):
    return _moved(re.findall(r'(\d+),(\d+)', match[1] + '}'), mesh_shape)
  if match := re.search(r'replica_groups=\{\{([\d,]*)\}', text):
    return integers(match[1])
  return range(math.prod(mesh_shape.values()))


def _range(dims: str, order: str | None) -> np.ndarray:
  """Returns the numbers of all devices as `[2,4]T(1,0)` lists them, in an array of these dimensions transposed."""
  ids = np.arange(math.prod(integers(dims))).reshape(integers(dims))
  return (ids.transpose(integers(order)) if order else ids).reshape(-1)


def _along_axes(mesh: str, axes: str) -> list[int]:
  """Returns the devices of the first group along axes such as 'axis_0', or 'axis_0':(2)4 for a part of an axis."""
  sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
  ids, strides = np.zeros(1, int), {}
  stride = 1
  for name in reversed(sizes):
    strides[name], stride = stride, stride * sizes[name]
  for name, before, part in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes):
    size = int(part or sizes[name])
    step = strides[name] * (sizes[name] // (int(before or 1) * size))
    ids = (ids[:, None] + step * np.arange(size)).ravel()
  return sorted(ids.tolist())


def _moved(pairs: Iterable[tuple[str, str]], mesh_shape: Mapping[str, int]) -> list[int]:
  """Returns the first devices along all axes in which sources and targets differ."""
  shape = tuple(mesh_shape.values())
  sources, targets = (
    np.array(np.unravel_index([int(x) for x in ids], shape)) for ids in zip(*pairs, strict=True)
  )
  differs = (sources != targets).any(1)
  grid = np.arange(math.prod(shape)).reshape(shape)
  return grid[tuple(slice(None) if moved else 0 for moved in differs)].reshape(-1).tolist()


def _axes(group: Sequence[int], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
  """Returns the mesh axes along which the devices of a group differ."""
  places = np.array(np.unravel_index(list(group), tuple(mesh_shape.values())))
  axes = tuple(
    axis for axis, row in zip(mesh_shape, places, strict=True) if len(set(row.tolist())) > 1
  )
  return axes if math.prod(mesh_shape[axis] for axis in axes) == len(group) else MIXED
