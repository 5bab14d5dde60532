"""Search for the value of an integer parameter at which a variant has the budget of the baseline."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from t2x import config as config_lib
from t2x.base.errors import UserError

# Largest number of values that the search tries.
_MAX_EVALUATIONS = 40


@dataclasses.dataclass(frozen=True)
class Match:
  """Result of the search.

  Attributes:
    value: value of the adjusted parameter.
    deviation: relative deviation of the variant's quantity from the target.
  """

  value: int
  deviation: float


def adjusted_parameter(config: config_lib.Config, names: Sequence[str]) -> tuple[str, int]:
  """Returns the first of the named parameters that a config has, and its value.

  Raises:
    UserError: the config has no such parameter, it has several values, or its value is not an integer.
  """
  name, value = first_parameter(config, names) or ('', None)
  if value is None:
    raise UserError(f'it has no parameter {" or ".join(names)} to adjust')
  if not isinstance(value, int) or isinstance(value, bool):
    raise UserError(f'{name} = {value!r} must be an integer to be adjusted')
  return name, value


def first_parameter(config: config_lib.Config, names: Sequence[str]) -> tuple[str, object] | None:
  """Returns the first of the named parameters and macros that a config has, and its value; None without any.

  Raises:
    UserError: the parameter has different values in several scopes.
  """
  values = ((name, _value(config, name)) for name in names)
  return next(((name, value) for name, value in values if value is not None), None)


def is_bindable(config: config_lib.Config, name: str) -> bool:
  """Returns True for a macro of a config, or a parameter of any part that the config can name."""
  part, _, param = name.rpartition('/')[2].rpartition('.')
  if not part:
    return name in config.bindings.macros
  spec = config.bindings.exact_part(part)
  return spec is not None and param in spec.parameters


def parameters_of(config: config_lib.Config, kinds: Sequence[type]) -> set[str]:
  """Returns the names of all macros and parameters of a config whose values have such types, without scopes."""
  arguments = (
    (call.part.name, *item)
    for call in config_lib.calls(config.root)
    for item in call.values.items()
  )
  names = {f'{part}.{name}' for part, name, value in arguments if type(value) in kinds}
  return names | {s.macro_name for s in config.bindings_used if type(s.value) in kinds}


def _value(config: config_lib.Config, name: str) -> object:
  scope, _, target = name.rpartition('/')
  part, _, param = target.rpartition('.')
  if not part:
    macros = {s.macro_name for s in config.bindings_used if s.is_macro}
    statement = config.bindings.macros.get(name)
    return statement.value if statement is not None and name in macros else None
  inner, spec = config_lib.split_scope(scope), config.bindings.exact_part(part)
  # `part` may be qualified by its module.
  calls = [call for call in config_lib.calls(config.root) if call.part is spec]
  values = {
    config_lib.key_of(call, param): call.values[param]
    for call in calls
    if call.scope[: len(inner)] == inner and call.values.get(param) is not None
  }
  if any(value != other for value, other in itertools.pairwise(values.values())):
    found = ', '.join(f'{key} = {config_lib.to_gin(value)}' for key, value in values.items())
    raise UserError(f'{name} has several values: {found}: add a scope to the name')
  return next(iter(values.values()), None)


def solve(
  measure: Callable[[int], float], start: int, target: float, tolerance: float, least: int = 1
) -> Match:
  """Finds the integer at which an increasing function is nearest to a target.

  Args:
    measure: the function. Values for which it raises UserError (layers that do not divide) are skipped.
    start: the first value. It is returned if its deviation is within the tolerance, so that a variant
      of almost equal cost keeps its shapes.
    target: the target of `measure`.
    tolerance: the largest acceptable relative deviation.
    least: the smallest value to try.

  Raises:
    UserError: `measure` fails for all values that are tried.
  """
  deviations: dict[int, float | None] = {}

  def deviation(value: int) -> float | None:
    if value not in deviations:
      try:
        deviations[value] = measure(value) / target - 1
      except UserError:
        deviations[value] = None
    return deviations[value]

  first = deviation(start)
  if first is not None and abs(first) <= tolerance:
    return Match(start, first)
  value = start
  for _ in range(_MAX_EVALUATIONS):
    following = _next(deviations, value, least, 10_000 * (start + 1))
    if following is None:
      break
    value = following
    deviation(value)
  _, best = min(((abs(d), v) for v, d in deviations.items() if d is not None), default=(0.0, None))
  if best is None:
    raise UserError(f'it cannot be built with {start} or a nearby value')
  return Match(best, deviations[best] or 0.0)


def _next(deviations: dict[int, float | None], last: int, least: int, most: int) -> int | None:
  """Returns the next value to try; None if the nearest has been evaluated."""
  valid = sorted((v, d) for v, d in deviations.items() if d is not None)
  below = max((pair for pair in valid if pair[1] <= 0), default=None)
  above = min((pair for pair in valid if pair[1] > 0), default=None)
  if below is None and above is None:
    return None
  if below is None or above is None:
    value, deviation = below or above or (last, 0.0)
    guess = _extrapolate(valid)
    guess = guess if guess != value else value + (1 if deviation < 0 else -1)
    guess = min(max(guess, least), most)
    # Skip evaluated values, in the direction of the target.
    step = 1 if deviation <= 0 else -1
    while guess in deviations:
      guess += step
    return guess if least <= guess <= most else None
  inside = [v for v in range(below[0] + 1, above[0]) if v not in deviations]
  if not inside:
    return None
  line = below[0] + (above[0] - below[0]) * -below[1] / (above[1] - below[1])
  return min(inside, key=lambda v: abs(v - line))


def _extrapolate(valid: Sequence[tuple[int, float]]) -> int:
  """Estimates the value at the target from values that are all below or all above it.

  Two values are extrapolated linearly, a single one in proportion. The estimate is at most 16 times
  the nearest value, as larger ones may not fit in memory.
  """
  (value, deviation), *others = sorted(valid, key=lambda pair: abs(pair[1]))
  guess = value / max(1 + deviation, 1 / 16)
  if others and others[0][1] != deviation:
    guess = value - deviation * (others[0][0] - value) / (others[0][1] - deviation)
  return round(min(max(guess, value / 16), 16 * value))
