"""Arrays of a compiled train step that wait for its backward pass: the saved activations."""

import re
from collections.abc import Collection, Iterator

from t2x.plan.hlo import VIEWS, Computation, Instruction, Program, element_index

_INPUTS = ('parameter', 'constant', 'iota')

# An array: the name of the instruction that computes it, and its index in the output.
_Unit = tuple[str, int]


def saved_bytes(program: Program) -> int:
  """Returns the bytes of the arrays, computed from the batch, that are live when the backward pass starts.

  The backward pass starts at its loop with the largest state, or without loops at its first matrix product.
  Arrays that are computed from parameters only are not counted. The entry's parameters need their names in
  the train step (`state.params`, `batch`), as JAX writes them.
  """
  entry = program.computations[program.entry]
  tainted = {
    (name, 0)
    for name, instruction in entry.items()
    if instruction.opcode == 'parameter' and not _is_state(instruction)
  }
  return _Scope(program, entry, tainted).largest()


def _is_state(parameter: Instruction) -> bool:
  return (
    re.search(r'op_name="(state\.(params|opt_state|ema)|frozen)', parameter.attributes) is not None
  )


class _Scope:
  """One computation, with the arrays that depend on the batch.

  Args:
    program: the program.
    computation: the computation.
    tainted: its inputs that depend on the batch.
  """

  def __init__(self, program: Program, computation: Computation, tainted: Collection[_Unit]):
    self.program, self.computation = program, computation
    self.place = {name: place for place, name in enumerate(computation)}
    self.tainted = set(tainted)
    for name, instruction in computation.items():
      if instruction.opcode in _INPUTS or not self._reads_batch(instruction):
        continue
      self.tainted |= {(name, index) for index in range(max(1, len(instruction.shapes)))}

  def _reads_batch(self, instruction: Instruction) -> bool:
    return any(unit in self.tainted for name in instruction.operands for unit in self.units(name))

  def largest(self) -> int:
    """Returns the saved bytes of this computation or of a loop in it, whichever are more."""
    sizes = [self._saved()]
    for instruction in self.computation.values():
      if instruction.is_backward:
        continue
      if instruction.opcode == 'while':
        sizes.append(self._inside(instruction).largest())
      elif instruction.opcode == 'call':
        sizes.append(self._called(instruction).largest())
    return max(sizes)

  def _inside(self, loop: Instruction) -> '_Scope':
    """Returns the scope of the body of a loop."""
    body = self.program.computations[loop.called[0]]
    (parameter,) = (i for i in body.values() if i.opcode == 'parameter')
    elements = range(len(loop.shapes))
    tainted = {
      (parameter.name, index)
      for index in elements
      if any(unit in self.tainted for unit in self._element(loop, index))
    }
    return _Scope(self.program, body, tainted)

  def _called(self, call: Instruction) -> '_Scope':
    body = self.program.computations[call.called[0]]
    inputs = {int(i.operand_text): name for name, i in body.items() if i.opcode == 'parameter'}
    tainted = {
      (inputs[number], 0)
      for number, name in enumerate(call.operands)
      if any(unit in self.tainted for unit in self.units(name))
    }
    return _Scope(self.program, body, tainted)

  def units(self, name: str) -> set[_Unit]:
    """Returns the arrays that the output of an instruction consists of; conversions are their operands."""
    instruction = self.computation[name]
    if instruction.opcode in VIEWS or self.program.is_conversion(instruction):
      return self.units(instruction.operands[0])
    if instruction.opcode == 'tuple':
      return set().union(*map(self.units, instruction.operands))
    if instruction.opcode == 'get-tuple-element':
      return self._element(self.computation[instruction.operands[0]], element_index(instruction))
    if instruction.opcode == 'while':
      return set().union(
        *(self._element(instruction, index) for index in range(len(instruction.shapes)))
      )
    return {(name, index) for index in range(max(1, len(instruction.shapes)))}

  def _element(self, instruction: Instruction, index: int) -> set[_Unit]:
    """Returns the arrays of one element of an instruction's output."""
    if instruction.opcode == 'tuple':
      return self.units(instruction.operands[index])
    if instruction.opcode == 'while' and not self.program.writes(instruction, index):
      return self._element(self.computation[instruction.operands[0]], index)
    return {(instruction.name, index)}

  def _saved(self) -> int:
    start = self._backward_start()
    if start is None:
      return 0
    later = (i for i in self.computation.values() if self.place[i.name] >= start)
    read = {unit for i in later for name in i.operands for unit in self.units(name)}
    return sum(
      self._bytes(unit)
      for unit in read
      if unit in self.tainted
      and self.place[unit[0]] < start
      and self.computation[unit[0]].opcode not in _INPUTS
      and not self.computation[unit[0]].is_backward
    )

  def _bytes(self, unit: _Unit) -> int:
    shapes = self.computation[unit[0]].shapes
    return shapes[unit[1]].bytes if shapes else 0

  def _backward_start(self) -> int | None:
    backward = list(self._backward())
    loops = [i for i in backward if i.opcode == 'while']
    if loops:
      return self.place[max(loops, key=lambda loop: loop.bytes).name]
    products = [self.place[i.name] for i in backward if self.program.has_product(i)]
    return min(products, default=None)

  def _backward(self) -> Iterator[Instruction]:
    return (i for i in self.computation.values() if i.is_backward)
