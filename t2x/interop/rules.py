"""The mapping between t2x parameters and the tensors of a Hugging Face model folder.

A rule lists the t2x parameters in one tensor. `{}` in both names is the number of a layer. t2x stacks layers:
`body.stack.{}.mixer.q.kernel` is `body.stack.blocks.i.mixer.q.kernel` at [repeat]. A final `.{}` in a
parameter name is the number of an expert, along the next dimension.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from t2x.base.errors import UserError
from t2x.base.external_files import printed
from t2x.interop.layouts import LINEAR, SAME, Layout, Shape


@dataclasses.dataclass(frozen=True)
class Rule:
  """A tensor of a model folder.

  Attributes:
    tensor: the name of the tensor.
    parameters: the names of the t2x parameters in it, in their order in the tensor.
    layout: the layout of the parameters in the tensor.
    requires: the rule applies only to models that have this parameter.
    excludes: the rule applies only to models that lack this parameter.
    first: number in the tensor's name of the first layer.
  """

  tensor: str
  parameters: tuple[str, ...]
  layout: Layout = SAME
  requires: str = ''
  excludes: str = ''
  first: int = 0


def dense(prefix: str, *modules: str, layout: Layout = LINEAR) -> tuple[Rule, Rule]:
  """Weight and bias of a projection, which may fuse several t2x modules."""
  return (
    Rule(f'{prefix}.weight', tuple(f'{module}.kernel' for module in modules), layout),
    Rule(f'{prefix}.bias', tuple(f'{module}.bias' for module in modules), layout.bias),
  )


def only_if(rules: Iterable[Rule], requires: str = '', excludes: str = '') -> Iterator[Rule]:
  """Yields rules with conditions; see `Rule`."""
  for rule in rules:
    yield dataclasses.replace(rule, requires=requires, excludes=excludes)


def norm(prefix: str, module: str) -> tuple[Rule, Rule]:
  """Scale and bias of a norm."""
  return Rule(f'{prefix}.weight', (f'{module}.scale',)), Rule(f'{prefix}.bias', (f'{module}.bias',))


def attention(
  prefix: str,
  module: str,
  names: Sequence[str],
  layout: Layout = LINEAR,
  qkv: Layout | None = None,
) -> Iterator[Rule]:
  """The projections of multi-head attention.

  Args:
    prefix: prefix of the tensor names.
    module: the t2x attention module.
    names: tensor names of queries, keys, values and output; or of fused queries, keys and values, and of the
      output.
    layout: layout of the matrices.
    qkv: layout of queries, keys and values; None: `layout`.
  """
  *inputs, output = names
  parts = [f'{module}.{part}' for part in 'qkv']
  groups = [parts] if len(inputs) == 1 else [[part] for part in parts]
  for name, group in zip(inputs, groups, strict=True):
    yield from dense(f'{prefix}.{name}', *group, layout=qkv or layout)
  yield from dense(f'{prefix}.{output}', f'{module}.out', layout=layout.from_heads)


def block(
  prefix: str,
  module: str = 'body.stack.{}',
  *,
  norms: Sequence[str],
  mixer: Sequence[str],
  feed_forward: Sequence[str],
  layout: Layout = LINEAR,
  qkv: Layout | None = None,
) -> Iterator[Rule]:
  """A block of self-attention and feed-forward layer, in sequence or in parallel, with a norm each.

  Args:
    prefix: prefix of the tensor names; `{}` is the number of the layer.
    module: the t2x block.
    norms: tensor names of the norms of attention and feed-forward layer.
    mixer: see `attention`.
    feed_forward: tensor names of the up and down projection, or of gate, up and down; () for layers that are no MLPs.
    layout: layout of the matrices.
    qkv: see `attention`.
  """
  # The norms of `Block`, then those of `ParallelBlock`.
  for norm_modules in (
    ('mixer_wiring.norm', 'feed_forward_wiring.norm'),
    ('norm', 'feed_forward_norm'),
  ):
    for name, norm_module in zip(norms, norm_modules, strict=True):
      yield from norm(f'{prefix}.{name}', f'{module}.{norm_module}')
  yield from attention(prefix, f'{module}.mixer', mixer, layout, qkv)
  parts = ('gate', 'up', 'down')[3 - len(feed_forward) :]
  for name, part in zip(feed_forward, parts, strict=True):
    yield from dense(f'{prefix}.{name}', f'{module}.feed_forward.{part}', layout=layout)


# [repeat] of a stacked parameter, [repeat, expert] of an expert parameter, else empty.
Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A rule at one layer and expert; parts are (parameter, index of its leading dimensions)."""

  rule: Rule
  parts: tuple[tuple[str, Index], ...]

  @property
  def layout(self) -> Layout:
    return self.rule.layout


class Table:
  """The rules of a family applied to the parameters of one model.

  Args:
    rules: all rules of the family; rules for parameters that the model lacks are skipped.
    shapes: name -> shape of all parameters of the model.

  Attributes:
    tensors: tensor name -> rule and parameters.
    pieces: parameter name -> index -> (tensor name, position of the parameter in the tensor).

  Raises:
    ValueError: a parameter has no rule.
  """

  def __init__(self, rules: Sequence[Rule], shapes: Mapping[str, Shape]):
    self.shapes = dict(shapes)
    self.tensors: dict[str, _Tensor] = {}
    used = set()
    for rule in rules:
      if tensors := dict(self._expand(rule)):
        used.add(rule.tensor)
        self.tensors |= tensors
    unused = {rule.tensor for rule in rules} - used
    self.unused = [re.compile(re.escape(name).replace(r'\{\}', r'\d+')) for name in unused]
    self.pieces: dict[str, dict[Index, tuple[str, int]]] = {}
    for name, tensor in self.tensors.items():
      for number, (parameter, index) in enumerate(tensor.parts):
        self.pieces.setdefault(parameter, {})[index] = name, number
    missing = sorted(set(shapes) - set(self.pieces))
    if missing:
      raise ValueError(f'no rule for the parameters {", ".join(missing)}')

  def _expand(self, rule: Rule) -> Iterator[tuple[str, _Tensor]]:
    """Yields the tensors of a rule, for all layers and experts of the model."""
    for numbers in itertools.product(*self._counts(rule.parameters[0])):
      parts = tuple(self._part(name, numbers) for name in rule.parameters)
      required = [name for name, _ in parts]
      if rule.requires:
        required.append(self._part(rule.requires, numbers)[0])
      excluded = rule.excludes and self._part(rule.excludes, numbers)[0] in self.shapes
      if all(name in self.shapes for name in required) and not excluded:
        layers = (numbers[0] + rule.first, *numbers[1:]) if numbers else ()
        yield rule.tensor.format(*layers), _Tensor(rule, parts)

  def _counts(self, name: str) -> list[range]:
    """Returns the ranges of layers and experts for the `{}` in a parameter name."""
    parameter = name.removesuffix('.{}')
    layers = self._num_layers(parameter)
    if '.{}.' not in parameter:
      return []
    if parameter == name:
      return [range(layers)]
    names = (self._part(parameter, (layer,))[0] for layer in range(layers))
    experts = next((self.shapes[name][1] for name in names if name in self.shapes), 0)
    return [range(layers), range(experts)]

  def _part(self, name: str, numbers: Index) -> tuple[str, Index]:
    """Returns the stacked parameter of a layer and expert, and the index into it."""
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
    stacked = [shape[0] for name, shape in self.shapes.items() if name.startswith(first)]
    return stacked[0] * self._num_blocks(stack) if stacked else 0

  def parameter_shape(self, name: str, index: Index) -> Shape:
    """The shape of a parameter at an index of its stack and experts."""
    return self.shapes[name][len(index) :]

  def tensor_shape(self, name: str) -> Shape:
    """The shape of a tensor."""
    tensor = self.tensors[name]
    return tensor.layout.joined_shape([self.parameter_shape(*part) for part in tensor.parts])

  def view(self, name: str, index: Index, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns a parameter at one of its `pieces`, as a view of its tensor if the layout permits."""
    tensor_name, number = self.pieces[name][index]
    tensor = self.tensors[tensor_name]
    shapes = [self.parameter_shape(*part) for part in tensor.parts]
    return tensor.layout.extract(tensors[tensor_name], shapes, number)

  def check(self, shapes: Mapping[str, Shape], ignored: Sequence[str], where: str) -> list[str]:
    """Compares the tensors of a folder with the parameters of the model.

    Args:
      shapes: name -> shape of all tensors in the folder.
      ignored: patterns of tensor names that are not parameters (copies of tied tables, buffers).
      where: the folder, for error messages.

    Returns:
      Names of tensors that belong to modules which the model lacks.

    Raises:
      UserError: tensors are missing, unknown or of another shape; lists all problems.
    """
    problems = []
    missing = [name for name in self.tensors if name not in shapes]
    if missing:
      problems.append(f'{len(missing)} tensors are missing: {_shortened(missing)}')
    unused: list[str] = []
    unknown: list[str] = []
    for name in shapes:
      if name in self.tensors or any(re.fullmatch(pattern, name) for pattern in ignored):
        continue
      is_unused = any(pattern.fullmatch(name) for pattern in self.unused)
      (unused if is_unused else unknown).append(name)
    if unknown:
      problems.append(f'{len(unknown)} tensors are unknown: {_shortened(unknown)}')
    for name in self.tensors:
      if name in shapes and tuple(shapes[name]) != self.tensor_shape(name):
        problems.append(
          f'{name} has shape {tuple(shapes[name])}, config.json requires {self.tensor_shape(name)}'
        )
    if problems:
      more = [f'and {len(problems) - 8} more'] if len(problems) > 8 else []
      raise UserError(
        '\n  '.join([f'{where} does not match its config.json:', *problems[:8], *more])
      )
    return unused


def _shortened(names: Sequence[str]) -> str:
  return ', '.join(map(printed, names[:5])) + (
    f' and {len(names) - 5} more' if len(names) > 5 else ''
  )
