"""Arms of a sweep: a variant at a point of the grid, as gin files and bindings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t2x import config as config_lib
from t2x.base.errors import is_printable


def shown(binding: str) -> str:
  """Converts a binding `NAME=VALUE` to the form `NAME = VALUE` of gin files."""
  return binding.replace('=', ' = ', 1)


def plain(value: object) -> Any:
  """Converts a value of the grid for plans and reports: scalars are unchanged, others become gin text."""
  if isinstance(value, str):
    return value if is_printable(value) else config_lib.to_gin(value)
  return (
    value if value is None or isinstance(value, bool | int | float) else config_lib.to_gin(value)
  )


@dataclasses.dataclass(frozen=True)
class Arm:
  """A variant at a point of the grid, shared by trials that differ only in the seed.

  Attributes:
    variant: name of the variant.
    point: values of the grid by axis.
    files: gin files, in order.
    bindings: bindings `NAME=VALUE` that override the files; later ones override earlier ones.
    own_files: gin files of the variant, read after the base.
    own_bindings: bindings of the variant and the point, the last ones of `bindings`.
    tuned: the tuned parameter and its value, also in the bindings; {} without tuning.
    seeds: seeds that run at the tuned value, with the tuning seed that chose it; {}: all seeds of the variant.
  """

  variant: str
  point: Mapping[str, Any]
  files: tuple[str, ...]
  bindings: tuple[str, ...]
  own_files: tuple[str, ...]
  own_bindings: tuple[str, ...]
  tuned: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
  seeds: Mapping[int, int] = dataclasses.field(default_factory=dict)

  @property
  def changes(self) -> tuple[str, ...]:
    """Files and bindings that differ from the base."""
    return (*self.own_files, *map(shown, self.own_bindings))

  @property
  def plain_point(self) -> dict[str, Any]:
    """The point as in plans and reports."""
    return {name: plain(value) for name, value in self.point.items()}

  @property
  def title(self) -> str:
    """Name with the values of the grid: 'geglu', or 'geglu, Stack.num_layers=4'."""
    axes = [f'{name}={config_lib.to_gin(value)}' for name, value in self.point.items()]
    return ', '.join([self.variant, *axes])

  def at(self, parameter: str, value: int | float) -> 'Arm':
    """Returns the arm with a value of the tuned parameter, which replaces a binding of the variant."""
    binding = f'{parameter}={config_lib.to_gin(value)}'

    def at(bindings: tuple[str, ...]) -> tuple[str, ...]:
      return (*(b for b in bindings if not b.startswith(f'{parameter}=')), binding)

    return dataclasses.replace(
      self,
      bindings=at(self.bindings),
      own_bindings=at(self.own_bindings),
      tuned={parameter: value},
    )
