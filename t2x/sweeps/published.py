"""Published results of the variants of a sweep, for the comparison of rankings in its report."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from t2x.base.errors import UserError, is_printable
from t2x.base.suggestions import did_you_mean

# With two variants every rank correlation is -1 or 1.
FEWEST = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
  """Published results (`Sweep.published`).

  Attributes:
    values: published number of each variant.
    goal: whether a lower ('min') or a higher ('max') number is better.
    label: label of their axis.
    groups: variants by group, whose rankings are also compared.
  """

  values: Mapping[str, float]
  goal: Literal['min', 'max']
  label: str
  groups: Mapping[str, tuple[str, ...]]


def published_results(
  values: Mapping[str, float],
  goal: Literal['min', 'max'] | None,
  label: str,
  groups: Mapping[str, Sequence[str]],
  variants: Mapping[str, object],
) -> Published | None:
  """Checks the published results of a sweep.

  Args:
    values: Sweep.published.
    goal: Sweep.published_goal.
    label: Sweep.published_label; '' for 'published result'.
    groups: Sweep.groups.
    variants: Sweep.variants.

  Returns:
    The results; None if `values` is empty.

  Raises:
    UserError: a variant or group is invalid, or a setting has no effect.
  """
  if not values:
    settings = {'published_goal': goal, 'published_label': label, 'groups': groups}
    for name, value in settings.items():
      if value:
        raise UserError(f'Sweep.{name} has no effect without Sweep.published')
    return None
  for name in values:
    if name not in variants:
      hint = did_you_mean(name, variants)
      raise UserError(f"Sweep.published contains '{name}', which is not in Sweep.variants{hint}")
  if len(values) < FEWEST:
    raise UserError(
      f'Sweep.published has {len(values)} of the {FEWEST} variants that a rank correlation needs'
    )
  if goal is None:
    raise UserError(
      "Sweep.published needs Sweep.published_goal: 'min' if a lower published number is better, or 'max'"
    )
  for text in (label, *groups):
    if not is_printable(text):
      raise UserError(f'Sweep.published_label and Sweep.groups: {text!r} has control characters')
  for group, names in groups.items():
    _check_group(group, names, values)
  return Published(
    values={name: float(value) for name, value in values.items()},
    goal=goal,
    label=label or 'published result',
    groups={group: tuple(names) for group, names in groups.items()},
  )


def _check_group(group: str, names: Sequence[str], values: Mapping[str, float]) -> None:
  where = f"Sweep.groups['{group}']"
  for name in names:
    if name not in values:
      hint = did_you_mean(name, values)
      raise UserError(f"{where} contains '{name}', which is not in Sweep.published{hint}")
  if len(set(names)) < len(names):
    raise UserError(f'{where} contains a variant twice')
  if len(names) < FEWEST:
    raise UserError(
      f'{where} has {len(names)} of the {FEWEST} variants that a rank correlation needs'
    )
