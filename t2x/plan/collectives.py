"""Collectives of a compiled program: kind, mesh axes, number and bytes."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from t2x.plan.hlo import Computation, Instruction, Program

KINDS = ('all-gather', 'reduce-scatter', 'all-reduce', 'all-to-all', 'collective-permute')
# Mesh axes of groups of devices that are not all devices along some axes.
MIXED = ('mixed',)
_IOTA = re.compile(r'replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?')
_PAIRS = re.compile(r'source_target_pairs=\{(.*?)\}\}')


@dataclasses.dataclass(frozen=True)
class Collective:
  """Collectives of one kind over the same mesh axes in one step.

  Attributes:
    kind: name of the operation.
    axes: mesh axes that a group of devices spans; ('mixed',) if it is not all devices along some axes.
    count: number of operations, loops included.
    bytes: size of the arrays on each device: the result of all-gathers, the operand of other operations.
    members: number of devices of a group.
  """

  kind: str
  axes: tuple[str, ...]
  count: int
  bytes: int
  members: int


def collectives(program: Program, mesh_shape: Mapping[str, int]) -> list[Collective]:
  """Returns the collectives of a step, those with the most bytes first.

  An all-reduce that is only read by slices of the size of one device's part is counted as the reduce-scatter
  that the compilers of GPUs and TPUs make of it.

  Args:
    program: the compiled program; its partitions are the devices of the mesh in order.
    mesh_shape: number of devices by mesh axis.
  """
  counts: collections.Counter = collections.Counter()
  sizes: collections.Counter = collections.Counter()
  for instruction, times, computation in program.executed():
    kind = instruction.opcode.removesuffix('-start')
    if kind not in KINDS:
      continue
    group = _group(instruction, math.prod(mesh_shape.values()))
    if len(group) < 2:
      continue
    if kind == 'all-reduce' and _is_scattered(program, instruction, computation, len(group)):
      kind = 'reduce-scatter'
    key = kind, _axes(group, mesh_shape), len(group)
    counts[key] += times
    sizes[key] += times * _bytes(kind, instruction, computation)
  found = [
    Collective(kind, axes, counts[kind, axes, members], size, members)
    for (kind, axes, members), size in sizes.items()
  ]
  return sorted(found, key=lambda one: -one.bytes)


def _bytes(kind: str, instruction: Instruction, computation: Computation) -> int:
  operands = sum(computation[name].bytes for name in instruction.operands)
  if kind != 'all-gather':
    return operands
  # An asynchronous operation returns its operand too.
  return instruction.bytes - (operands if instruction.opcode.endswith('-start') else 0)


def _is_scattered(
  program: Program, instruction: Instruction, computation: Computation, members: int
) -> bool:
  """Whether only slices of the result are read, each a part for one of the members."""
  names, users = {instruction.name}, []
  for other in computation.values():
    if names.isdisjoint(other.operands):
      continue
    if other.opcode in ('get-tuple-element', 'bitcast', 'copy', 'convert', 'transpose', 'reshape'):
      names.add(other.name)
    else:
      users.append(other)
  return bool(users) and all(_is_slice(program, user, names, members) for user in users)


def _is_slice(program: Program, user: Instruction, names: set[str], members: int) -> bool:
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
    if other.opcode in ('bitcast', 'copy', 'convert', 'transpose', 'reshape'):
      inputs.add(other.name)
    else:
      readers.append(other)
  return bool(readers) and all(
    reader.opcode == 'dynamic-slice' and reader.operands[0] in inputs for reader in readers
  )


def _group(instruction: Instruction, num_devices: int) -> Sequence[int]:
  """Returns the devices of the first group; for a permutation, those of its cycle or chain."""
  text = instruction.attributes
  if match := _IOTA.search(text):
    groups, members, dims = int(match[1]), int(match[2]), _integers(match[3])
    ids = np.arange(math.prod(dims)).reshape(dims)
    if match[4]:
      ids = ids.transpose(_integers(match[4]))
    return ids.reshape(groups, members)[0].tolist()
  if match := _PAIRS.search(text):
    return _cycle(re.findall(r'(\d+),(\d+)', match[1] + '}'))
  if match := re.search(r'replica_groups=\{\{([\d,]*)\}', text):
    return _integers(match[1])
  return range(num_devices)


def _cycle(pairs: Iterable[tuple[str, str]]) -> list[int]:
  targets = {int(source): int(target) for source, target in pairs if source != target}
  if not targets:
    return []
  # The start of a chain, or any device of a cycle.
  at = next((device for device in targets if device not in targets.values()), min(targets))
  members = [at]
  while (at := targets.get(at, members[0])) not in members:
    members.append(at)
  return sorted(members)


def _integers(text: str) -> list[int]:
  return [int(number) for number in text.split(',') if number]


def _axes(group: Sequence[int], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
  """Returns the mesh axes along which the devices of a group differ."""
  places = np.array(np.unravel_index(list(group), tuple(mesh_shape.values())))
  axes = tuple(
    axis for axis, row in zip(mesh_shape, places, strict=True) if len(set(row.tolist())) > 1
  )
  return axes if math.prod(mesh_shape[axis] for axis in axes) == len(group) else MIXED
