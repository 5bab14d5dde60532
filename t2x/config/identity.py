"""A name for what a config builds, whatever files, macros and order of bindings said so."""

import hashlib
from collections.abc import Collection
from typing import Any

from t2x.config.hints import is_tunable
from t2x.config.load import Config
from t2x.config.render import Text, plain
from t2x.config.resolve import Call, Shared, calls, key_of
from t2x.config.values import map_leaves, to_gin

__all__ = ['canonical', 'hyperparameters', 'identity']


def canonical(config: Config, without: Collection[str] = ()) -> str:
  """All that is built, defaults included, as text in which equal configs are equal.

  Args:
    config: a resolved config.
    without: parameters left out, as 'Trainer.seed' or 'encoder/MLP.dropout_rate'.
  """
  return to_gin(_written(config.root, config, frozenset(without)))


def identity(config: Config, without: Collection[str] = ()) -> str:
  """Twelve hexadecimal digits of `canonical`'s hash."""
  return hashlib.sha256(canonical(config, without).encode()).hexdigest()[:12]


def hyperparameters(config: Config) -> dict[str, float]:
  """Values of the parameters annotated `float | Hyperparameter`, by 'scope/Name.param'.

  Zeros are left out: they leave computation out, so that they belong to the program.
  """
  found: dict[str, float] = {}
  for call in calls(config.root):
    for param, value in call.given.items():
      parameter = call.part.parameters.get(param)
      if parameter and is_tunable(parameter.hint) and isinstance(value, float) and value != 0.0:
        found[key_of(call, param)] = value
  return found


def _written(value: Any, config: Config, without: frozenset[str]) -> Any:
  def one(leaf):
    # An object that a macro builds and one built in place are equal: parts have no identity.
    call = leaf.call if isinstance(leaf, Shared) else leaf
    if not isinstance(call, Call):
      return plain(leaf, config)
    name = config.bindings.registry.name_of(call.part)
    given = call.given
    told = ', '.join(
      f'{param}={to_gin(_written(given[param], config, without))}'
      for param in sorted(given)
      if key_of(call, param) not in without
    )
    return Text(f'{name}({told})' if call.evaluate else f'@{name}({told})')

  return map_leaves(one, value)
