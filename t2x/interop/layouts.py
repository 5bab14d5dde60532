"""Layouts of t2x parameters in Hugging Face tensors.

A t2x kernel is [*inputs, *outputs], and heads are a separate dimension. A Hugging Face tensor has flattened
heads; a torch Linear is [outputs, inputs], GPT-2's Conv1D [inputs, outputs]. Parameters are views of
tensors, so that only the requested part of a memory-mapped file is read.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
  """The identity layout; several parameters in one tensor are concatenated along `axis` of the tensor."""

  axis: int = 0

  @property
  def bias(self) -> 'Layout':
    """The layout of the bias of a matrix with this layout."""
    return VECTOR

  @property
  def from_heads(self) -> 'Layout':
    """The layout of the attention output projection in models whose other matrices have this layout."""
    return self

  def to_tensor(self, parameter: np.ndarray) -> np.ndarray:
    """Converts one parameter to a tensor."""
    return parameter

  def to_parameter(self, tensor: np.ndarray, shape: Shape) -> np.ndarray:
    """Returns a view of a tensor with one parameter, of `shape`."""
    return tensor.reshape(shape)

  def tensor_shape(self, shape: Shape) -> Shape:
    """The shape of the tensor for a parameter of `shape`."""
    # An array of any shape that takes no memory.
    return self.to_tensor(np.broadcast_to(np.int8(0), shape)).shape

  def extract(self, tensor: np.ndarray, shapes: Sequence[Shape], number: int) -> np.ndarray:
    """Returns a view of parameter `number` of a tensor that holds parameters of `shapes`."""
    if len(shapes) > 1:
      sizes = [self.tensor_shape(shape)[self.axis] for shape in shapes]
      tensor = np.split(tensor, np.cumsum(sizes[:-1]), self.axis)[number]
    return self.to_parameter(tensor, shapes[number])

  def joined_shape(self, shapes: Sequence[Shape]) -> Shape:
    """The shape of a tensor that holds parameters of `shapes`."""
    first, *rest = (self.tensor_shape(shape) for shape in shapes)
    if not rest:
      return first
    size = first[self.axis] + sum(shape[self.axis] for shape in rest)
    return (*first[: self.axis], size, *first[self.axis + 1 :])

  def join(self, parameters: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the tensor that holds all `parameters`; a single one may be a number."""
    tensors = [self.to_tensor(parameter) for parameter in parameters]
    return np.concatenate(tensors, self.axis) if len(tensors) > 1 else np.array(tensors[0])


class _Vector(Layout):
  """[heads, head_dim] -> [heads * head_dim]."""

  def to_tensor(self, parameter):
    return parameter.reshape(-1)


@dataclasses.dataclass(frozen=True)
class _Row(Layout):
  """[...] -> [1, ...], with `leading` dimensions of size 1."""

  leading: int = 1

  def to_tensor(self, parameter):
    return parameter[(None,) * self.leading]


@dataclasses.dataclass(frozen=True)
class _Matrix(Layout):
  """[*inputs, *outputs] -> [outputs, inputs], or [inputs, outputs] if not `transposed`."""

  num_inputs: int = 1
  transposed: bool = True

  @property
  def from_heads(self):
    return dataclasses.replace(self, num_inputs=2)

  def to_tensor(self, parameter):
    flat = parameter.reshape(math.prod(parameter.shape[: self.num_inputs]), -1)
    return flat.T if self.transposed else flat

  def to_parameter(self, tensor, shape):
    if not self.transposed:
      return tensor.reshape(shape)
    inputs, outputs = shape[: self.num_inputs], shape[self.num_inputs :]
    order = (*range(len(outputs), len(shape)), *range(len(outputs)))
    return tensor.reshape(*outputs, *inputs).transpose(order)


class _Grouped(Layout):
  """[*inputs, heads, head_dim] of q, k and v -> [groups * heads of a group * head_dim, *inputs].

  A group holds the query heads that share a key head, that key head and its value head: [q, k, v] of each
  head in GPT-NeoX and BLOOM, [q, q, ..., k, v] of each key head in Falcon with `new_decoder_architecture`. A
  parameter with several heads per group is copied when it is read.
  """

  @property
  def bias(self):
    return self

  def extract(self, tensor, shapes, number):
    *inputs, heads, head_dim = shapes[number]
    groups, sizes = self._groups(shapes)
    start = sum(sizes[:number])
    grouped = tensor.reshape(groups, sum(sizes), head_dim, *inputs)
    part = grouped[:, start : start + sizes[number]].reshape(heads, head_dim, *inputs)
    return np.moveaxis(part, (0, 1), (-2, -1))

  def joined_shape(self, shapes):
    *inputs, _, head_dim = shapes[0]
    return (sum(shape[-2] for shape in shapes) * head_dim, *inputs)

  def join(self, parameters):
    groups, _ = self._groups([parameter.shape for parameter in parameters])
    heads_first = [np.moveaxis(parameter, (-2, -1), (0, 1)) for parameter in parameters]
    parts = [array.reshape(groups, -1, *array.shape[1:]) for array in heads_first]
    return np.concatenate(parts, axis=1).reshape(
      self.joined_shape([parameter.shape for parameter in parameters])
    )

  def _groups(self, shapes: Sequence[Shape]) -> tuple[int, list[int]]:
    """Returns the number of groups, and the number of heads of each parameter in a group."""
    groups = min(shape[-2] for shape in shapes)
    return groups, [shape[-2] // groups for shape in shapes]


class _Patches(Layout):
  """HWIO -> OIHW: the kernel of a convolution."""

  def to_tensor(self, parameter):
    return parameter.transpose(3, 2, 0, 1)

  def to_parameter(self, tensor, shape):
    return tensor.transpose(2, 3, 1, 0)


class _Taps(Layout):
  """[taps, inputs, outputs] -> [outputs, inputs, taps]: the kernel of a convolution over a sequence."""

  def to_tensor(self, parameter):
    return parameter.transpose(2, 1, 0)

  def to_parameter(self, tensor, shape):
    return tensor.transpose(2, 1, 0)


class _Depthwise(Layout):
  """[taps, *features] -> [features, 1, taps]: the kernel of a convolution of each feature over a sequence."""

  def to_tensor(self, parameter):
    return parameter.reshape(len(parameter), -1).T[:, None]

  def to_parameter(self, tensor, shape):
    return np.moveaxis(tensor[:, 0], -1, 0).reshape(shape)


SAME = Layout()
VECTOR = _Vector()
ROW = _Row()
CLASS_TOKEN = _Row(leading=2)
LINEAR = _Matrix()
CONV1D = _Matrix(axis=1, transposed=False)
GROUPED = _Grouped()
PATCHES = _Patches()
TAPS = _Taps()
DEPTHWISE = _Depthwise()
