"""A name for what a config builds, whatever files, macros and order of bindings said so."""

import hashlib
from collections.abc import Collection
from typing import Any

from t2x.config.load import Config
from t2x.config.render import plain
from t2x.config.resolve import Call, Shared
from t2x.config.signature import MISSING
from t2x.config.values import map_leaves, to_gin

__all__ = ['canonical', 'identity']


def canonical(config: Config, without: Collection[str] = ()) -> str:
  """All that is built, defaults included, as text in which equal configs are equal.

  Args:
    config: a resolved config.
    without: parameters left out, as 'Trainer.seed'.
  """
  return to_gin(_written(config.root, config, frozenset(without)))


def identity(config: Config, without: Collection[str] = ()) -> str:
  """Twelve hexadecimal digits of `canonical`'s hash."""
  return hashlib.sha256(canonical(config, without).encode()).hexdigest()[:12]


class _Text(str):
  """Text that stands for itself."""

  def __repr__(self) -> str:
    return str(self)


def _written(value: Any, config: Config, without: frozenset[str]) -> Any:
  def one(leaf):
    # An object that a macro builds and one built in place are equal: parts have no identity.
    call = leaf.call if isinstance(leaf, Shared) else leaf
    if not isinstance(call, Call):
      return plain(leaf, config)
    name = config.bindings.registry.name_of(call.part)
    given = {p: a.value for p, a in call.arguments.items()}
    for param, parameter in call.part.parameters.items():
      if param not in given and parameter.default is not MISSING:
        given[param] = parameter.default
    told = ', '.join(
      f'{param}={to_gin(_written(given[param], config, without))}'
      for param in sorted(given)
      if f'{name}.{param}' not in without
    )
    return _Text(f'{name}({told})' if call.evaluate else f'@{name}({told})')

  return map_leaves(one, value)
