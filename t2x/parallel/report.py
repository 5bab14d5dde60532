"""A table of the arrays of a train state and a batch: shape, sharding, and bytes in total and per device.

It reads only shapes and shardings, so the mesh may have more devices than the machine.
"""

import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import NamedSharding

from t2x.base.text_table import text_table
from t2x.layers.arrays import named_leaves
from t2x.parallel.mesh import as_tuple
from t2x.parallel.sharding import AnyMesh

__all__ = ['mesh_text', 'sharding_table']

Row = tuple[str, str, str, str, str]


def mesh_text(mesh: AnyMesh, rules: Mapping[str, Any]) -> tuple[str, str]:
  """Describes the axes of a mesh that have several devices, and the logical axes that are split over them.

  Args:
    mesh: the devices.
    rules: axes of the mesh by logical axis.
  """
  sizes = {axis: size for axis, size in mesh.shape.items() if size > 1}
  split = {
    name: '+'.join(axis for axis in as_tuple(axes) if axis in sizes) for name, axes in rules.items()
  }
  split_text = ', '.join(f'{name} over {axes}' for name, axes in split.items() if axes)
  return ' x '.join(f'{axis} {size}' for axis, size in sizes.items()), split_text


def format_bytes(size: int) -> str:
  """Formats a number of bytes with three digits and a binary unit."""
  count = float(size)
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if count < 1000:
      return f'{count:.3g} {unit}'
    count /= 1024
  return f'{count:.4g} TiB'


def format_spec(sharding: NamedSharding, ndim: int) -> str:
  """Formats the mesh axes of more than one device that split each dimension; `-` for unsplit dimensions."""
  entries = [*sharding.spec, *(None,) * (ndim - len(sharding.spec))]
  sizes = sharding.mesh.shape
  axes = ['+'.join(axis for axis in as_tuple(entry) if sizes[axis] > 1) or '-' for entry in entries]
  return ', '.join(axes) or '-'


def sharding_table(title: str, parts: Mapping[str, Any]) -> str:
  """Formats a table of name, shape, mesh axes, total bytes and bytes per device, with subtotals per part.

  Args:
    title: the first line.
    parts: name -> tree of arrays or of shapes with NamedShardings.
  """
  rows: list[Row] = [('', 'shape', 'mesh axes', 'bytes', 'per device')]
  total, local = 0, 0
  for part, tree in parts.items():
    leaves: list[Row] = []
    part_total, part_local = 0, 0
    for name, leaf in named_leaves(tree):
      size = leaf.dtype.itemsize
      leaf_local = math.prod(leaf.sharding.shard_shape(leaf.shape)) * size
      leaf_total = math.prod(leaf.shape) * size
      part_total, part_local = part_total + leaf_total, part_local + leaf_local
      shape = ' x '.join(map(str, leaf.shape)) + f' {_short_dtype(leaf.dtype)}'
      spec = format_spec(leaf.sharding, leaf.ndim)
      leaves.append(
        (f'  {name or part}', shape, spec, format_bytes(leaf_total), format_bytes(leaf_local))
      )
    total, local = total + part_total, local + part_local
    rows += [(part, '', '', format_bytes(part_total), format_bytes(part_local)), *leaves]
  rows.append(('total', '', '', format_bytes(total), format_bytes(local)))
  return f'{title}\n{text_table(rows, "<<<>>")}'


def _short_dtype(dtype: object) -> str:
  return str(dtype).replace('float', 'f').replace('uint', 'u').replace('int', 'i')
