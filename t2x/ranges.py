"""Types of config values together with the ranges that the values lie in: `decay: Rate = 0.9`.

`t2x.config` checks every bound value against them, with all other errors of a config.
"""

import dataclasses
import math
import re
from typing import Annotated, Any

from t2x.hyperparameters import Tunable

_FORM = re.compile(r'(?:(\S+) (<=?) )?(x)(?: (<=?) (\S+))?|1 <= (len\(x\))')


@dataclasses.dataclass(frozen=True)
class Range:
  """A condition on a finite number such as `0 <= x < 1`; `NonEmpty` is the one on texts and lists."""

  condition: str

  def __post_init__(self):
    if _FORM.fullmatch(self.condition) is None:
      raise ValueError(f"'{self.condition}' is no range such as '0 <= x < 1'")

  def holds(self, value: Any) -> bool:
    """Whether a number, text or container satisfies the condition."""
    if self == NonEmpty:
      return len(value) > 0
    lower, after, _, before, upper = self._parts()
    # An integer is finite, and may be too large for a float.
    if isinstance(value, float) and not math.isfinite(value):
      return False
    if lower is not None and not (
      float(lower) < value or (after == '<=' and float(lower) == value)
    ):
      return False
    return upper is None or value < float(upper) or (before == '<=' and value == float(upper))

  def __str__(self) -> str:
    """The condition in words: 'must be at least 0 and below 1'."""
    if self == NonEmpty:
      return 'must not be empty'
    lower, after, _, before, upper = self._parts()
    words = []
    if lower is not None:
      words.append(f'above {lower}' if after == '<' else f'at least {lower}')
    if upper is not None:
      words.append(f'below {upper}' if before == '<' else f'at most {upper}')
    return f'must be {" and ".join(words) or "a finite number"}'

  def _parts(self) -> tuple[str | None, ...]:
    match = _FORM.fullmatch(self.condition)
    return match.groups()[:5] if match else ()


# Of texts and containers: Annotated[Sequence[str], NonEmpty].
NonEmpty = Range('1 <= len(x)')

# Probabilities, decays of moving averages.
Rate = Annotated[float, Range('0 <= x < 1')]
Fraction = Annotated[float, Range('0 <= x <= 1')]
Positive = Annotated[float, Range('0 < x')]
NonNegative = Annotated[float, Range('0 <= x')]
Finite = Annotated[float, Range('x')]
# Numbers that the trials of a sweep may vary within one program: read them with
# `t2x.hyperparameters.scalar`.
LearningRate = Annotated[Tunable, Range('0 < x <= 1000')]
TunableNonNegative = Annotated[Tunable, Range('0 <= x')]
TunableRate = Annotated[Tunable, Range('0 <= x < 1')]
# Added to keep a quotient or a root finite.
Epsilon = Annotated[float, Range('0 < x <= 1')]
# The length of a dimension of an array.
Size = Annotated[int, Range('1 <= x <= 16777216')]
# Steps, batches, layers, examples.
Count = Annotated[int, Range('1 <= x <= 2147483647')]
Natural = Annotated[int, Range('0 <= x <= 2147483647')]
Seed = Annotated[int, Range('0 <= x <= 4294967295')]
# A name, path or pattern.
Text = Annotated[str, NonEmpty]
