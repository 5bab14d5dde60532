"""Reads compiled XLA programs: instructions, loops with their trip counts, contractions, live arrays.

Parses the text of `jax.stages.Compiled.as_text()`, whose instructions are in the order of execution.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

# Bytes per element. Other types (tokens, tuples) have no size.
_SIZES = {
  'pred': 1,
  's8': 1,
  'u8': 1,
  's16': 2,
  'u16': 2,
  'f16': 2,
  'bf16': 2,
  's32': 4,
  'u32': 4,
  'f32': 4,
  's64': 8,
  'u64': 8,
  'f64': 8,
}
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\]')
_INSTRUCTION = re.compile(r'\s+(ROOT )?%?([\w.\-]+) = ')
_COMPUTATION = re.compile(r'(ENTRY )?%?([\w.\-]+) \(.*\{$')
_CALLED = re.compile(r'\b(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BRACKET = re.compile(r'[()]')
# Instructions whose output is their operand in another shape or order of reading.
VIEWS = ('bitcast', 'copy', 'optimization-barrier')


@dataclasses.dataclass(frozen=True)
class Shape:
  """An array: XLA's name of the type, and the size of each dimension."""

  kind: str
  dims: tuple[int, ...]

  @property
  def bytes(self) -> int:
    """Size in bytes; 0 for types without elements."""
    return math.prod(self.dims) * _SIZES.get(self.kind, 1 if self.kind.startswith('f8') else 0)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """An instruction; `attributes` is the text after its operands."""

  name: str
  opcode: str
  shapes: tuple[Shape, ...]
  operands: tuple[str, ...]
  attributes: str
  is_root: bool
  operand_text: str

  @property
  def bytes(self) -> int:
    """Size of the output in bytes."""
    return sum(shape.bytes for shape in self.shapes)

  @property
  def called(self) -> list[str]:
    """Names of the computations that it executes, without conditions of loops."""
    names = _CALLED.findall(self.attributes)
    for branches in _BRANCHES.findall(self.attributes):
      names += [name.strip().lstrip('%') for name in branches.split(',')]
    return names

  @property
  def is_backward(self) -> bool:
    """Whether it was traced by the backward pass of `jax.grad`."""
    return 'transpose(' in self.attributes


Computation = dict[str, Instruction]


class Program:
  """A compiled program.

  Attributes:
    computations: instructions by name, by name of the computation.
    entry: name of the first computation.
    unknown_loops: number of executed loops whose trip counts the compiler did not find.
  """

  def __init__(self, text: str):
    self.computations: dict[str, Computation] = {}
    self.entry = ''
    current: Computation = {}
    for line in text.splitlines():
      if (instruction := _instruction(line)) is not None:
        current[instruction.name] = instruction
      elif (match := _COMPUTATION.match(line)) is not None:
        current = self.computations.setdefault(match[2], {})
        if match[1]:
          self.entry = match[2]
    self.unknown_loops = 0

  @functools.cached_property
  def times(self) -> Mapping[str, int]:
    """Number of executions of each computation in one run of the program, by name.

    Loops of unknown length run over tables of indices [size, 2], each entry of which one of the loops visits
    (`t2x.layers.attention.kernels.schedule`): they count `size` times, other loops of unknown length once.
    """
    times: collections.Counter[str] = collections.Counter()
    stack = [(self.entry, 1)]
    while stack:
      name, count = stack.pop()
      times[name] += count
      for instruction in self.computations.get(name, {}).values():
        for called in instruction.called:
          trips = self._trips(instruction) if instruction.opcode == 'while' else 1
          stack.append((called, count * trips))
    return times

  def _trips(self, loop: Instruction) -> int:
    if match := _TRIPS.search(loop.attributes):
      return int(match[1])
    self.unknown_loops += 1
    tables = (s.dims[0] for s in loop.shapes if s.kind == 's32' and s.dims[1:] == (2,))
    return max(tables, default=1)

  def executed(self) -> Iterator[tuple[Instruction, int, Computation]]:
    """Yields each executed instruction, how often it is executed, and its computation."""
    for name, count in self.times.items():
      computation = self.computations.get(name, {})
      for instruction in computation.values():
        yield instruction, count, computation

  def flops(self) -> int:
    """FLOPs of the matrix products and convolutions on one device, 2 per multiply-add."""
    return sum(
      2 * count * _multiply_adds(instruction, computation)
      for instruction, count, computation in self.executed()
    )

  def writes(self, loop: Instruction, index: int) -> bool:
    """Returns whether a loop changes the element `index` of its state."""
    body = self.computations[loop.called[0]]
    root = next(instruction for instruction in body.values() if instruction.is_root)
    if root.opcode != 'tuple':
      return True
    source = body[root.operands[index]]
    while source.opcode in VIEWS:
      source = body[source.operands[0]]
    return not (source.opcode == 'get-tuple-element' and element_index(source) == index)

  def has_product(self, instruction: Instruction) -> bool:
    """Returns whether an instruction is a matrix product or a fusion with one."""
    if instruction.opcode == 'fusion':
      return any(map(self.has_product, self.computations[instruction.called[0]].values()))
    return instruction.opcode == 'dot'

  def is_conversion(self, instruction: Instruction) -> bool:
    """Returns whether an instruction only changes the dtype or the layout of its operand."""
    if instruction.opcode == 'fusion' and len(instruction.operands) == 1:
      fused = self.computations[instruction.called[0]]
      return all(i.opcode in ('parameter', 'convert', 'transpose', *VIEWS) for i in fused.values())
    return instruction.opcode == 'convert'


def _instruction(line: str) -> Instruction | None:
  match = _INSTRUCTION.match(line)
  if match is None:
    return None
  end = _closing(line, match.end()) if line[match.end()] == '(' else line.index(' ', match.end())
  kind = line[match.end() : end]
  start = line.index('(', end)
  close = _closing(line, start)
  shapes = tuple(Shape(name, tuple(integers(dims))) for name, dims in _ARRAY.findall(kind))
  operands = line[start:close]
  return Instruction(
    match[2],
    line[end:start].strip(),
    shapes,
    tuple(re.findall(r'%([\w.\-]+)', operands)),
    line[close:],
    match[1] is not None,
    operands[1:-1],
  )


def _closing(text: str, start: int) -> int:
  """Returns the index after the bracket that closes the bracket at `start`."""
  depth = 0
  for match in _BRACKET.finditer(text, start):
    depth += 1 if match[0] == '(' else -1
    if depth == 0:
      return match.end()
  return len(text)


def _dimensions(name: str, attributes: str) -> list[int]:
  match = re.search(rf'\b{name}={{([\d,]*)}}', attributes)
  return integers(match[1]) if match else []


def _multiply_adds(instruction: Instruction, computation: Computation) -> int:
  """Multiply-adds of a matrix product or convolution; 0 for other instructions."""
  if instruction.opcode == 'dot':
    operand = computation[instruction.operands[0]].shapes[0].dims
    contracted = _dimensions('lhs_contracting_dims', instruction.attributes)
    return math.prod(instruction.shapes[0].dims) * math.prod(operand[i] for i in contracted)
  if instruction.opcode == 'convolution':
    kernel = computation[instruction.operands[1]].shapes[0].dims
    labels = re.search(r'dim_labels=\w+_(\w+)->', instruction.attributes)
    outputs = kernel[labels[1].index('o')] if labels else 1
    return math.prod(instruction.shapes[0].dims) * math.prod(kernel) // outputs
  return 0


def element_index(element: Instruction) -> int:
  """Returns the index that a get-tuple-element instruction reads."""
  match = re.search(r'index=(\d+)', element.attributes)
  return int(match[1]) if match else 0


def integers(text: str) -> list[int]:
  """Returns the numbers of a list such as '2,3'; none for an empty text."""
  return [int(number) for number in text.split(',') if number]
