"""The table between our names and theirs, worked out for one model.

A rule says which of our parameters lie in a tensor of theirs. `{}` in both is the number of a layer: ours
are stacked (`body.stack.{}.mixer.q.kernel` is `body.stack.blocks.i.mixer.q.kernel` at [repeat]).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from t2x.errors import UserError
from t2x.foreign import printed
from t2x.interop.layouts import LINEAR, SAME, VECTOR, Layout, Shape

__all__ = ['Rule', 'Table', 'dense', 'norm']


@dataclasses.dataclass(frozen=True)
class Rule:
  """One tensor of theirs.

  Attributes:
    theirs: its name.
    ours: the parameters that lie in it, one after the other.
    layout: how.
    beside: holds only in models that have this parameter, ...
    without: ... and only in those that lack this one.
  """

  theirs: str
  ours: tuple[str, ...]
  layout: Layout = SAME
  beside: str = ''
  without: str = ''


def dense(theirs: str, *ours: str, layout: Layout = LINEAR) -> tuple[Rule, Rule]:
  """Weight and bias of a projection, or of several that theirs does at once."""
  return (
    Rule(f'{theirs}.weight', tuple(f'{one}.kernel' for one in ours), layout),
    Rule(f'{theirs}.bias', tuple(f'{one}.bias' for one in ours), VECTOR),
  )


def norm(theirs: str, ours: str) -> tuple[Rule, Rule]:
  """Scale and bias of a norm."""
  return Rule(f'{theirs}.weight', (f'{ours}.scale',)), Rule(f'{theirs}.bias', (f'{ours}.bias',))


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A rule at one layer: (our parameter, index in its stack or None) of each part."""

  rule: Rule
  parts: tuple[tuple[str, int | None], ...]

  @property
  def layout(self) -> Layout:
    return self.rule.layout


class Table:
  """What of a model lies where in their tensors.

  Args:
    rules: of the whole family; those about parameters that this model lacks are passed over.
    shapes: name -> shape of all our parameters.

  Raises:
    ValueError: a parameter of ours that no rule speaks of.
  """

  def __init__(self, rules: Sequence[Rule], shapes: Mapping[str, Shape]):
    self.shapes = dict(shapes)
    self.tensors: dict[str, _Tensor] = {}
    self.unused: list[re.Pattern] = []
    for rule in rules:
      found = dict(self._at_layers(rule))
      self.tensors |= found
      if not found:
        self.unused.append(re.compile(re.escape(rule.theirs).replace(r'\{\}', r'\d+')))
    # Our name -> for each repeat (or once, where nothing is stacked) their name and the part of it.
    self.pieces: dict[str, dict[int | None, tuple[str, int]]] = {}
    for theirs, tensor in self.tensors.items():
      for number, (ours, index) in enumerate(tensor.parts):
        self.pieces.setdefault(ours, {})[index] = theirs, number
    forgotten = sorted(set(shapes) - set(self.pieces))
    if forgotten:
      raise ValueError(f'no rule says where {", ".join(forgotten)} lie')

  def _at_layers(self, rule: Rule):
    layers = range(self._num_layers(rule.ours[0])) if '{}' in rule.theirs else [None]
    for layer in layers:
      parts = tuple(self._part(name, layer) for name in rule.ours)
      wanted = [name for name, _ in parts]
      if rule.beside:
        wanted.append(self._part(rule.beside, layer)[0])
      refused = rule.without and self._part(rule.without, layer)[0] in self.shapes
      if all(name in self.shapes for name in wanted) and not refused:
        yield rule.theirs.replace('{}', str(layer)), _Tensor(rule, parts)

  def _part(self, name: str, layer: int | None) -> tuple[str, int | None]:
    """Our parameter and its index in the stack, at a layer; as it is where nothing is stacked."""
    if layer is None or '.{}.' not in name:
      return name, None
    stack, inside = name.split('.{}.')
    blocks = self._num_blocks(stack)
    return f'{stack}.blocks.{layer % blocks}.{inside}', layer // blocks

  def _num_blocks(self, stack: str) -> int:
    numbers = [
      int(name[len(stack) + 8 :].partition('.')[0])
      for name in self.shapes
      if name.startswith(f'{stack}.blocks.')
    ]
    return max(numbers, default=-1) + 1

  def _num_layers(self, name: str) -> int:
    stack = name.split('.{}.')[0]
    first = f'{stack}.blocks.0.'
    stacked = [shape[0] for one, shape in self.shapes.items() if one.startswith(first)]
    return stacked[0] * self._num_blocks(stack) if stacked else 0

  def our_shape(self, name: str, index: int | None) -> Shape:
    """Of one layer of a stacked parameter, or of a parameter that is not stacked."""
    shape = self.shapes[name]
    return shape if index is None else shape[1:]

  def their_shape(self, theirs: str) -> Shape:
    """Of a tensor of theirs."""
    tensor = self.tensors[theirs]
    return tensor.layout.whole_shape([self.our_shape(*part) for part in tensor.parts])

  def view(self, name: str, theirs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """A parameter of ours as views of their tensors: one for each layer of its stack, or one."""
    views = []
    for _, (their_name, number) in sorted(self.pieces[name].items(), key=lambda item: item[0] or 0):
      tensor = self.tensors[their_name]
      shapes = [self.our_shape(*part) for part in tensor.parts]
      views.append(tensor.layout.part(theirs[their_name], shapes, number))
    return views

  def is_stacked(self, name: str) -> bool:
    """Whether its first dimension is a stack's."""
    return None not in self.pieces[name]

  def check(self, theirs: Mapping[str, Shape], ignored: Sequence[str], where: str) -> list[str]:
    """Compares their tensors with what the model needs.

    Args:
      theirs: name -> shape of all their tensors.
      ignored: patterns of names that say nothing (copies of tied tables, buffers).

    Returns:
      Names of tensors that belong to parts which the model lacks.

    Raises:
      UserError: missing or unknown tensors, or shapes that differ; all of them.
    """
    problems = []
    missing = [name for name in self.tensors if name not in theirs]
    if missing:
      problems.append(f'{len(missing)} tensors are missing: {_some(missing)}')
    left: list[str] = []
    unknown: list[str] = []
    for name in theirs:
      if name in self.tensors or any(re.fullmatch(pattern, name) for pattern in ignored):
        continue
      known = any(pattern.fullmatch(name) for pattern in self.unused)
      (left if known else unknown).append(name)
    if unknown:
      problems.append(f'{len(unknown)} tensors are not known: {_some(unknown)}')
    for name in self.tensors:
      if name in theirs and tuple(theirs[name]) != self.their_shape(name):
        problems.append(
          f'{name} is {tuple(theirs[name])}, by config.json it is {self.their_shape(name)}'
        )
    if problems:
      more = [f'and {len(problems) - 8} more'] if len(problems) > 8 else []
      raise UserError('\n  '.join([f'{where} does not fit:', *problems[:8], *more]))
    return left


def _some(names: Sequence[str]) -> str:
  return ', '.join(map(printed, names[:5])) + (
    f' and {len(names) - 5} more' if len(names) > 5 else ''
  )
