"""A table of what every device holds: shape, spec and bytes of each array of a state and a batch.

It reads shapes and shardings alone, so the mesh may be larger than the machine.
"""

import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import NamedSharding

from t2x.arrays import named_leaves
from t2x.parallel.mesh import as_tuple
from t2x.text_table import text_table

Row = tuple[str, str, str, str, str]


def told_bytes(size: int) -> str:
  """A number of bytes with three digits and a binary unit."""
  count = float(size)
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if count < 1000:
      return f'{count:.3g} {unit}'
    count /= 1024
  return f'{count:.4g} TiB'


def told_spec(sharding: NamedSharding, ndim: int) -> str:
  """Each dimension's mesh axes that have more than one device; `-` where there is none."""
  entries = [*sharding.spec, *(None,) * (ndim - len(sharding.spec))]
  sizes = sharding.mesh.shape
  told = ['+'.join(axis for axis in as_tuple(one) if sizes[axis] > 1) or '-' for one in entries]
  return ', '.join(told) or '-'


def sharding_table(title: str, parts: Mapping[str, Any]) -> str:
  """Rows of name, shape, spec, bytes in all and bytes on each device, part by part, with totals.

  Args:
    title: the first line.
    parts: name -> tree of arrays or of shapes with NamedShardings.
  """
  rows: list[Row] = [('', 'shape', 'over', 'bytes', 'a device')]
  whole, local = 0, 0
  for part, tree in parts.items():
    inside: list[Row] = []
    part_whole, part_local = 0, 0
    for name, leaf in named_leaves(tree):
      size = leaf.dtype.itemsize
      here = math.prod(leaf.sharding.shard_shape(leaf.shape)) * size
      there = math.prod(leaf.shape) * size
      part_whole, part_local = part_whole + there, part_local + here
      shape = ' x '.join(map(str, leaf.shape)) + f' {_short(leaf.dtype)}'
      spec = told_spec(leaf.sharding, leaf.ndim)
      inside.append((f'  {name or part}', shape, spec, told_bytes(there), told_bytes(here)))
    whole, local = whole + part_whole, local + part_local
    rows += [(part, '', '', told_bytes(part_whole), told_bytes(part_local)), *inside]
  rows.append(('total', '', '', told_bytes(whole), told_bytes(local)))
  return f'{title}\n{text_table(rows, "<<<>>")}'


def _short(dtype: Any) -> str:
  return str(dtype).replace('float', 'f').replace('uint', 'u').replace('int', 'i')
