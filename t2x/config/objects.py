"""Objects that Python code has made, as gin text that makes them again."""

import dataclasses
from typing import Any

from t2x.config.values import Reference, leaves, map_leaves, to_gin

__all__ = ['gin_of']


def gin_of(name: str, part: Any) -> str:
  """Gin text that binds `name` to a frozen dataclass, which has no two parts of one class."""
  lines = [f'{name} = {_text(part)}']
  pending = [part]
  while pending:
    one = pending.pop(0)
    for field in dataclasses.fields(one):
      value = getattr(one, field.name)
      if value != field.default:
        lines.append(f'{type(one).__name__}.{field.name} = {_text(value)}')
        pending += filter(dataclasses.is_dataclass, leaves(value))
  return '\n'.join(lines) + '\n'


def _text(value: Any) -> str:
  def one(leaf):
    is_part = dataclasses.is_dataclass(leaf)
    return Reference('', type(leaf).__name__, True) if is_part else leaf

  return to_gin(map_leaves(one, value))
