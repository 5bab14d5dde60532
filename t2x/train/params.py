"""Parameters by name, and their metadata."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers.arrays import named_variables
from t2x.layers.building import LayerNumbers
from t2x.layers.dtypes import Dtypes
from t2x.layers.parameters import Kind
from t2x.layers.rules import Rule

Params = dict[str, Any]

# Prefix of the names of a teacher's parameters among the frozen ones.
TEACHER = 'teacher.'


@dataclasses.dataclass(frozen=True)
class ParamInfo:
  """Metadata of a parameter.

  Attributes:
    name: path in the model, such as `body.stack.blocks.0.mixer.q.kernel`.
    axes: logical axis of each dimension, without those of stacked copies.
    shape: shape of the array; the dimensions of stacked copies come first.
    kind: what the parameter is; see `t2x.layers.param`.
    matrix: (inputs, outputs) of each matrix; None for other parameters.
    stacked: logical axis of each dimension of stacked copies.
    layers: for each index of the dimension of stacked layers, the layers of the body that use it, counted from 0
      (several if layers share parameters); None outside of stacks of layers.
    num_layers: number of layers of the body; 0 outside of stacks of layers.
    keep_float32: whether a step uses the parameter in float32, whatever the compute dtype.
    rule: what moves a parameter of kind 'rule'; None for other parameters.
    maximum: upper bound to which a step clips the elements after its update; None: no bound.
    active: share of the elements that a token uses, of experts those of the chosen ones.
  """

  name: str
  axes: tuple[str | None, ...]
  shape: tuple[int, ...]
  kind: Kind
  matrix: tuple[int, int] | None = None
  stacked: tuple[str, ...] = ()
  layers: tuple[tuple[int, ...], ...] | None = None
  num_layers: int = 0
  keep_float32: bool = False
  rule: Rule | None = None
  maximum: float | None = None
  active: float = 1.0

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  @property
  def all_axes(self) -> tuple[str | None, ...]:
    """Logical axis of each dimension, including those of stacked copies."""
    return self.stacked + self.axes

  @property
  def layer_axis(self) -> int:
    """Dimension of stacked layers, of nested ones the innermost."""
    return _layer_axis(self.stacked)

  @property
  def decayed(self) -> bool:
    """Whether weight decay applies."""
    return self.kind in ('matrix', 'table', 'filter')

  @property
  def matrix_axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dimensions of the inputs and of the outputs of a matrix; dimensions before them are those of several matrices."""
    assert self.matrix is not None
    inputs, outputs = self.matrix
    first, end = len(self.stacked), len(self.shape)
    middle = next(i for i in range(first, end + 1) if math.prod(self.shape[i:]) == outputs)
    start = next(i for i in range(first, end) if math.prod(self.shape[i:middle]) == inputs)
    return tuple(range(start, middle)), tuple(range(middle, end))

  def moved(self, value: object, statistic: object) -> Any:
    """Returns a parameter of kind 'rule' after a step, each stacked copy by itself."""
    assert self.rule is not None
    move: Callable[..., Any] = self.rule
    for _ in self.stacked:
      move = jax.vmap(move)
    return move(value, statistic)

  def rows(self, indices: np.ndarray) -> 'ParamInfo':
    """Returns the metadata of the slice with these indices of the dimension of stacked layers."""
    layers, shape = self.layers and tuple(self.layers[i] for i in indices), list(self.shape)
    shape[self.layer_axis] = len(indices)
    return dataclasses.replace(self, shape=tuple(shape), layers=layers)


def _layer_axis(stacked: tuple[str, ...]) -> int:
  return max(axis for axis, name in enumerate(stacked) if name == 'layers')


def _infos(model: nnx.Module, prefix: str) -> Iterator[ParamInfo]:
  for name, variable in named_variables(model):
    shape, metadata = tuple(variable.get_raw_value().shape), variable.get_metadata()
    if 'kind' not in metadata:
      raise UserError(
        f'{name} {list(shape)} does not state what kind of parameter it is: create it with t2x.layers.param'
      )
    numbers: LayerNumbers | None = metadata['layers']
    stacked = metadata.get('stacked', ())
    yield ParamInfo(
      prefix + name,
      axes=metadata['axes'],
      shape=shape,
      kind=metadata['kind'],
      matrix=metadata['matrix'],
      stacked=stacked,
      layers=numbers.users if numbers else None,
      num_layers=numbers.num_layers if numbers else 0,
      keep_float32=metadata['keep_float32'],
      rule=metadata['rule'],
      maximum=metadata['maximum'],
      active=metadata.get('active', 1.0),
    )


class Blueprint:
  """Converts between a model and a dict of its parameters by name.

  Args:
    shapes: the model with `jax.ShapeDtypeStruct`s as leaves.
    prefix: precedes each name.

  Attributes:
    shapes: the model with `jax.ShapeDtypeStruct`s as leaves.
    infos: metadata of each parameter by name, in the order of the model's leaves.
  """

  def __init__(self, shapes: nnx.Module, prefix: str = ''):
    self.shapes = shapes
    self.infos = {info.name: info for info in _infos(shapes, prefix)}
    self._structure = jax.tree.structure(shapes)

  def params(self, model: nnx.Module) -> Params:
    """Returns the parameters of a model by name."""
    return dict(zip(self.infos, jax.tree.leaves(model), strict=True))

  def model(self, params: Mapping[str, Any], dtype: str | None = None) -> Any:
    """Returns the model with these parameters, cast to `dtype` except for parameters kept in float32."""
    leaves = [params[name] for name in self.infos]
    if dtype is not None:
      policy = Dtypes(dtype)
      dtypes = [policy.working(info.keep_float32) for info in self.infos.values()]
      leaves = [leaf.astype(kind) for leaf, kind in zip(leaves, dtypes, strict=True)]
    return jax.tree.unflatten(self._structure, leaves)

  @property
  def size(self) -> int:
    """Number of scalars."""
    return sum(info.size for info in self.infos.values())

  def active(self, tables: bool = True) -> int:
    """Returns the number of scalars that a token uses: of experts those of the chosen ones, of tables all or none."""
    infos = [info for info in self.infos.values() if tables or info.kind != 'table']
    return round(sum(info.size * info.active for info in infos))
