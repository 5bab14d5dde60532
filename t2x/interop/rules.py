"""The table between our names and those of a model folder, worked out for one model.

A rule says which of our parameters lie in a tensor of the folder. `{}` in both names is the number of a
layer: ours are stacked (`body.stack.{}.mixer.q.kernel` is `body.stack.blocks.i.mixer.q.kernel` at [repeat]).
A last `.{}` in our name is the number of an expert, along the next dimension.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from t2x.errors import UserError
from t2x.external_files import printed
from t2x.interop.layouts import LINEAR, SAME, Layout, Shape


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
    Rule(f'{theirs}.bias', tuple(f'{one}.bias' for one in ours), layout.bias),
  )


def norm(theirs: str, ours: str) -> tuple[Rule, Rule]:
  """Scale and bias of a norm."""
  return Rule(f'{theirs}.weight', (f'{ours}.scale',)), Rule(f'{theirs}.bias', (f'{ours}.bias',))


def attention(
  theirs: str,
  ours: str,
  names: Sequence[str],
  layout: Layout = LINEAR,
  qkv: Layout | None = None,
) -> Iterator[Rule]:
  """The projections of a multi-head attention.

  Args:
    theirs: prefix of the names of the tensors.
    ours: the name of the attention.
    names: of queries, keys, values and output; or of the matrix that holds queries, keys and values, and of
      the output.
    layout: of all matrices.
    qkv: of queries, keys and values where theirs is another.
  """
  *inputs, output = names
  parts = [f'{ours}.{part}' for part in 'qkv']
  groups = [parts] if len(inputs) == 1 else [[part] for part in parts]
  for name, group in zip(inputs, groups, strict=True):
    yield from dense(f'{theirs}.{name}', *group, layout=qkv or layout)
  yield from dense(f'{theirs}.{output}', f'{ours}.out', layout=layout.from_heads)


def block(
  theirs: str,
  ours: str = 'body.stack.{}',
  *,
  norms: Sequence[str],
  mixer: Sequence[str],
  feed_forward: Sequence[str],
  layout: Layout = LINEAR,
  qkv: Layout | None = None,
) -> Iterator[Rule]:
  """A block of self-attention and feed-forward layer, one after the other or side by side, with a norm each.

  Args:
    theirs: prefix of the names of the tensors; `{}` is the number of the layer.
    ours: the name of the block.
    norms: of the attention and of the feed-forward layer.
    mixer: see `attention`.
    feed_forward: the first and second projection, or those of gate, first and second.
    layout: of all matrices.
    qkv: see `attention`.
  """
  # Of a block whose sublayers are wired one by one, and of a parallel one.
  for ours_of_norms in (
    ('mixer_wiring.norm', 'feed_forward_wiring.norm'),
    ('norm', 'feed_forward_norm'),
  ):
    for name, our_norm in zip(norms, ours_of_norms, strict=True):
      yield from norm(f'{theirs}.{name}', f'{ours}.{our_norm}')
  yield from attention(theirs, f'{ours}.mixer', mixer, layout, qkv)
  parts = ('gate', 'up', 'down')[-len(feed_forward) :]
  for name, part in zip(feed_forward, parts, strict=True):
    yield from dense(f'{theirs}.{name}', f'{ours}.feed_forward.{part}', layout=layout)


# [repeat] of a stacked parameter, [repeat, expert] of one of experts; nothing of any other.
Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A rule at one layer and expert: (our parameter, index of its first dimensions) of each part."""

  rule: Rule
  parts: tuple[tuple[str, Index], ...]

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
    used = set()
    for rule in rules:
      if found := dict(self._at_layers(rule)):
        used.add(rule.theirs)
        self.tensors |= found
    unused = {rule.theirs for rule in rules} - used
    self.unused = [re.compile(re.escape(name).replace(r'\{\}', r'\d+')) for name in unused]
    # Our name -> index -> the name of the tensor and the part of it.
    self.pieces: dict[str, dict[Index, tuple[str, int]]] = {}
    for theirs, tensor in self.tensors.items():
      for number, (ours, index) in enumerate(tensor.parts):
        self.pieces.setdefault(ours, {})[index] = theirs, number
    forgotten = sorted(set(shapes) - set(self.pieces))
    if forgotten:
      raise ValueError(f'no rule says where {", ".join(forgotten)} lie')

  def _at_layers(self, rule: Rule) -> Iterator[tuple[str, _Tensor]]:
    for numbers in itertools.product(*self._counts(rule.ours[0])):
      parts = tuple(self._part(name, numbers) for name in rule.ours)
      needed = [name for name, _ in parts]
      if rule.beside:
        needed.append(self._part(rule.beside, numbers)[0])
      refused = rule.without and self._part(rule.without, numbers)[0] in self.shapes
      if all(name in self.shapes for name in needed) and not refused:
        yield rule.theirs.format(*numbers), _Tensor(rule, parts)

  def _counts(self, name: str) -> list[range]:
    """The layers, and the experts, that `{}` in a name of ours stands for."""
    parameter = name.removesuffix('.{}')
    layers = self._num_layers(parameter)
    if '.{}.' not in parameter:
      return []
    if parameter == name:
      return [range(layers)]
    names = (self._part(parameter, (layer,))[0] for layer in range(layers))
    experts = next((self.shapes[one][1] for one in names if one in self.shapes), 0)
    return [range(layers), range(experts)]

  def _part(self, name: str, numbers: Index) -> tuple[str, Index]:
    """A parameter of ours at a layer and expert, and its index in the stack."""
    if '.{}.' not in name:
      return name, ()
    stack, inside = name.removesuffix('.{}').split('.{}.')
    layer, *expert = numbers
    blocks = self._num_blocks(stack)
    return f'{stack}.blocks.{layer % blocks}.{inside}', (layer // blocks, *expert)

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

  def our_shape(self, name: str, index: Index) -> Shape:
    """Of a parameter at an index of its stack and experts."""
    return self.shapes[name][len(index) :]

  def their_shape(self, theirs: str) -> Shape:
    """Of a tensor of theirs."""
    tensor = self.tensors[theirs]
    return tensor.layout.whole_shape([self.our_shape(*part) for part in tensor.parts])

  def view(self, name: str, index: Index, theirs: Mapping[str, np.ndarray]) -> np.ndarray:
    """A parameter of ours at one of its `pieces`, as a view of their tensor where the layout allows it."""
    their_name, number = self.pieces[name][index]
    tensor = self.tensors[their_name]
    shapes = [self.our_shape(*part) for part in tensor.parts]
    return tensor.layout.part(theirs[their_name], shapes, number)

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
