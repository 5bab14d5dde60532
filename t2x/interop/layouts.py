"""How an array of ours lies in a tensor of theirs.

Ours: kernels are [*inputs, *outputs], heads are a dimension of their own. Theirs: a torch Linear is
[outputs, inputs], GPT-2's Conv1D [inputs, outputs], heads are flat. Reading gives views, so that of a
mapped file only what is taken comes into memory.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
  """As it is; several of ours in one of theirs follow each other along `axis` of theirs."""

  axis: int = 0

  @property
  def bias(self) -> 'Layout':
    """The layout of the bias beside a matrix of this layout."""
    return VECTOR

  @property
  def from_heads(self) -> 'Layout':
    """The layout of the projection back from heads, in models whose other matrices have this layout."""
    return self

  def theirs_shape(self, ours: Shape) -> Shape:
    """Of the tensor that an array of shape `ours` becomes."""
    return ours

  def to_theirs(self, ours: np.ndarray) -> np.ndarray:
    """Our array as it lies in their file."""
    return ours.reshape(self.theirs_shape(ours.shape))

  def to_ours(self, theirs: np.ndarray, shape: Shape) -> np.ndarray:
    """A view of their tensor with our shape."""
    return theirs.reshape(shape)

  def part(self, theirs: np.ndarray, ours: Sequence[Shape], number: int) -> np.ndarray:
    """The view of our array `number` of those that lie in their tensor."""
    sizes = [self.theirs_shape(shape)[self.axis] if len(ours) > 1 else None for shape in ours]
    if len(ours) > 1:
      start = sum(size or 0 for size in sizes[:number])
      span = slice(start, start + (sizes[number] or 0))
      theirs = theirs[(slice(None),) * self.axis + (span,)]
    return self.to_ours(theirs, ours[number])

  def whole_shape(self, ours: Sequence[Shape]) -> Shape:
    """Of their tensor, which holds all of `ours`."""
    first, *others = (self.theirs_shape(shape) for shape in ours)
    if not others:
      return first
    joined = first[self.axis] + sum(shape[self.axis] for shape in others)
    return (*first[: self.axis], joined, *first[self.axis + 1 :])

  def whole(self, ours: Sequence[np.ndarray]) -> np.ndarray:
    """Their tensor, which holds all of `ours`."""
    return np.concatenate([self.to_theirs(one) for one in ours], self.axis)


class _Vector(Layout):
  """[heads, head_dim] -> [heads * head_dim]."""

  def theirs_shape(self, ours):
    return (math.prod(ours),)


@dataclasses.dataclass(frozen=True)
class _Row(Layout):
  """[...] -> [1, ...], with this many ones."""

  ones: int = 1

  def theirs_shape(self, ours):
    return (*(1,) * self.ones, *ours)


@dataclasses.dataclass(frozen=True)
class _Matrix(Layout):
  """[*inputs, *outputs] -> [inputs, outputs], or turned over."""

  num_inputs: int = 1
  turned: bool = True

  @property
  def from_heads(self):
    return dataclasses.replace(self, num_inputs=2)

  def _flat(self, ours: Shape) -> Shape:
    return math.prod(ours[: self.num_inputs]), math.prod(ours[self.num_inputs :])

  def theirs_shape(self, ours):
    inputs, outputs = self._flat(ours)
    return (outputs, inputs) if self.turned else (inputs, outputs)

  def to_theirs(self, ours):
    flat = ours.reshape(self._flat(ours.shape))
    return flat.T if self.turned else flat

  def to_ours(self, theirs, shape):
    if not self.turned:
      return theirs.reshape(shape)
    inputs, outputs = shape[: self.num_inputs], shape[self.num_inputs :]
    order = (*range(len(outputs), len(shape)), *range(len(outputs)))
    return theirs.reshape(*outputs, *inputs).transpose(order)


class _Grouped(Layout):
  """[*inputs, heads, head_dim] of queries, keys and values -> [groups * heads of a group * head_dim, *inputs].

  A group is the query heads that share a key head, that key head and its value head: [q, k, v] of each head
  in GPT-NeoX and BLOOM, [q, q, ..., k, v] of each key head in Falcon with `new_decoder_architecture`. An array
  with several heads in a group is copied when it is read.
  """

  @property
  def bias(self):
    return self

  def part(self, theirs, ours, number):
    *inputs, heads, head_dim = ours[number]
    groups, sizes = self._groups(ours)
    start = sum(sizes[:number])
    whole = theirs.reshape(groups, sum(sizes), head_dim, *inputs)
    part = whole[:, start : start + sizes[number]].reshape(heads, head_dim, *inputs)
    return np.moveaxis(part, (0, 1), (-2, -1))

  def whole_shape(self, ours):
    *inputs, _, head_dim = ours[0]
    return (sum(shape[-2] for shape in ours) * head_dim, *inputs)

  def whole(self, ours):
    groups, _ = self._groups([one.shape for one in ours])
    heads_first = [np.moveaxis(one, (-2, -1), (0, 1)) for one in ours]
    parts = [one.reshape(groups, -1, *one.shape[1:]) for one in heads_first]
    return np.concatenate(parts, axis=1).reshape(self.whole_shape([one.shape for one in ours]))

  def _groups(self, ours: Sequence[Shape]) -> tuple[int, list[int]]:
    """The number of groups, and the heads of each array in a group."""
    groups = min(shape[-2] for shape in ours)
    return groups, [shape[-2] // groups for shape in ours]


class _Patches(Layout):
  """HWIO -> OIHW, the kernel of a convolution."""

  def theirs_shape(self, ours):
    height, width, inputs, outputs = ours
    return outputs, inputs, height, width

  def to_theirs(self, ours):
    return ours.transpose(3, 2, 0, 1)

  def to_ours(self, theirs, shape):
    return theirs.transpose(2, 3, 1, 0)


SAME = Layout()
VECTOR = _Vector()
ROW = _Row()
CLASS_TOKEN = _Row(ones=2)
LINEAR = _Matrix()
CONV1D = _Matrix(axis=1, turned=False)
GROUPED = _Grouped()
PATCHES = _Patches()
