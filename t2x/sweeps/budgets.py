"""Finds the value of one integer binding that gives a variant the baseline's budget."""

import dataclasses
from collections.abc import Callable, Sequence

from t2x import config as config_lib
from t2x.errors import UserError

# Values tried beyond those that a straight line through two of them gives.
_MOST = 40


@dataclasses.dataclass(frozen=True)
class Match:
  """Where a knob came to stand.

  Attributes:
    value: of the knob.
    gap: the variant's quantity less the target, as a part of the target.
  """

  value: int
  gap: float


def knob_of(config: config_lib.Config, knobs: Sequence[str]) -> tuple[str, int]:
  """The first of the knobs that a config has, and its value there.

  Raises:
    UserError: it has none of them, or its value is no integer.
  """
  for knob in knobs:
    value = _value(config, knob)
    if value is None:
      continue
    if not isinstance(value, int) or isinstance(value, bool):
      raise UserError(f'the knob {knob} = {value!r} is no integer')
    return knob, value
  raise UserError(f'it has no {" or ".join(knobs)} to move')


def is_known(config: config_lib.Config, knob: str) -> bool:
  """Whether a knob is a macro of a config, or a parameter of a part, which the config need not have."""
  part, _, param = knob.rpartition('/')[2].rpartition('.')
  if not part:
    return knob in config.bindings.macros
  known = config.bindings.known_part(part)
  return known is not None and param in known.parameters


def integers(config: config_lib.Config) -> set[str]:
  """What could be a knob of a config, scopes left out."""
  given = (
    (call.part.name, *one) for call in config_lib.calls(config.root) for one in call.values.items()
  )
  found = {f'{part}.{name}' for part, name, value in given if type(value) is int}
  return found | {one.macro_name for one in config.bindings_used if type(one.value) is int}


def _value(config: config_lib.Config, knob: str) -> object:
  scope, _, name = knob.rpartition('/')
  part, _, param = name.rpartition('.')
  if not part:
    macros = {s.macro_name for s in config.bindings_used if s.is_macro}
    statement = config.bindings.macros.get(knob)
    return statement.value if statement is not None and knob in macros else None
  inner = config_lib.split_scope(scope)
  for call in config_lib.calls(config.root):
    # Several modules may export a class of one name: any spelling of this one counts.
    if config.bindings.known_part(part) is call.part and call.scope[: len(inner)] == inner:
      return call.values.get(param)
  return None


def solve(
  measure: Callable[[int], float], start: int, target: float, tolerance: float, least: int = 1
) -> Match:
  """The integer whose `measure`, which grows with it, comes nearest to `target`.

  A start within the tolerance stays: a variant that hardly differs keeps its shapes. Values that
  `measure` refuses with a UserError (layers that do not divide) are passed over.
  """
  known: dict[int, float | None] = {}

  def gap(value: int) -> float | None:
    if value not in known:
      try:
        known[value] = measure(value) / target - 1
      except UserError:
        known[value] = None
    return known[value]

  first = gap(start)
  if first is not None and abs(first) <= tolerance:
    return Match(start, first)
  value = start
  for _ in range(_MOST):
    following = _next(known, value, least, 10_000 * (start + 1))
    if following is None:
      break
    value = following
    gap(value)
  _, best = min(((abs(g), v) for v, g in known.items() if g is not None), default=(0.0, None))
  if best is None:
    raise UserError(f'it cannot be built with {start} or a value near it')
  return Match(best, known[best] or 0.0)


def _next(known: dict[int, float | None], last: int, least: int, most: int) -> int | None:
  """The next value to try; None: the nearest is known."""
  valid = sorted((v, g) for v, g in known.items() if g is not None)
  below = max((pair for pair in valid if pair[1] <= 0), default=None)
  above = min((pair for pair in valid if pair[1] > 0), default=None)
  if below is None and above is None:
    return None
  if below is None or above is None:
    value, off = below or above or (last, 0.0)
    guess = _further(valid)
    guess = guess if guess != value else value + (1 if off < 0 else -1)
    guess = min(max(guess, least), most)
    # Past values that were refused, away from the known side.
    step = 1 if off <= 0 else -1
    while guess in known:
      guess += step
    return guess if least <= guess <= most else None
  inside = [v for v in range(below[0] + 1, above[0]) if v not in known]
  if not inside:
    return None
  line = below[0] + (above[0] - below[0]) * -below[1] / (above[1] - below[1])
  return min(inside, key=lambda v: abs(v - line))


def _further(valid: Sequence[tuple[int, float]]) -> int:
  """Where the target would be, all known values lying on one side of it.

  On the line through the two nearest, or in proportion to the only one; not beyond 16 times the
  nearest, which may be all that fits.
  """
  (value, off), *others = sorted(valid, key=lambda pair: abs(pair[1]))
  guess = value / max(1 + off, 1 / 16)
  if others and others[0][1] != off:
    guess = value - off * (others[0][0] - value) / (others[0][1] - off)
  return round(min(max(guess, value / 16), 16 * value))
