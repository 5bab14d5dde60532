"""Types of config values with their valid ranges: `decay: Rate = 0.9`.

`t2x.config` checks every bound value against its range.
"""

import dataclasses
import math
import re
from typing import Annotated, Any

from t2x.base.hyperparameters import Tunable

_FORM = re.compile(r'(?:(\S+) (<=?) )?(x)(?: (<=?) (\S+))?|1 <= (len\(x\))')


@dataclasses.dataclass(frozen=True)
class Range:
  """A condition on a finite number, such as `0 <= x < 1`, or on the length (`NonEmpty`)."""

  condition: str

  def __post_init__(self):
    if _FORM.fullmatch(self.condition) is None:
      raise ValueError(f"'{self.condition}' is not a range such as '0 <= x < 1'")

  def holds(self, value: Any) -> bool:
    """Returns whether a number, string or container satisfies the condition."""
    if self == NonEmpty:
      return len(value) > 0
    lower, after, _, before, upper = self._parts()
    # An integer is always finite, but may be too large for math.isfinite.
    if isinstance(value, float) and not math.isfinite(value):
      return False
    if lower is not None and not (
      float(lower) < value or (after == '<=' and float(lower) == value)
    ):
      return False
    return upper is None or value < float(upper) or (before == '<=' and value == float(upper))

  def __str__(self) -> str:
    """Returns the condition in words: 'must be at least 0 and below 1'."""
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


@dataclasses.dataclass(frozen=True)
class Role:
  """Marks parameters that a sweep sets or leaves out of comparisons, whatever their part and name.

  `t2x.config.parameters_with` finds them in a config.
  """

  name: str


# For strings and containers: Annotated[Sequence[str], NonEmpty].
NonEmpty = Range('1 <= len(x)')

# Probabilities, decays of moving averages.
Rate = Annotated[float, Range('0 <= x < 1')]
Fraction = Annotated[float, Range('0 <= x <= 1')]
# A probability that is neither 0 nor 1.
InnerFraction = Annotated[float, Range('0 < x < 1')]
Positive = Annotated[float, Range('0 < x')]
NonNegative = Annotated[float, Range('0 <= x')]
# Factors and divisors of scores, whose products remain finite and positive in float32.
ScoreScale = Annotated[float, Range('1e-6 <= x <= 1e6')]
Finite = Annotated[float, Range('x')]
# Numbers that may vary between trials that share a compiled program: read them with
# `t2x.base.hyperparameters.scalar`.
LearningRate = Annotated[Tunable, Range('0 < x <= 1000')]
TunableNonNegative = Annotated[Tunable, Range('0 <= x')]
TunableRate = Annotated[Tunable, Range('0 <= x < 1')]
# Small constants for numerical stability.
Epsilon = Annotated[float, Range('0 < x <= 1')]
# Sizes of array dimensions.
Size = Annotated[int, Range('1 <= x <= 16777216')]
# Numbers of steps, batches, layers, examples.
Count = Annotated[int, Range('1 <= x <= 2147483647')]
Natural = Annotated[int, Range('0 <= x <= 2147483647')]
Seed = Annotated[int, Range('0 <= x <= 4294967295')]
# The seed of a training, in which the trials of a variant differ.
TRIAL_SEED = Role('seed of a trial')
TrialSeed = Annotated[Seed, TRIAL_SEED]
# The length of a training, on which the time of a step does not depend.
TRAINING_STEPS = Role('training steps')
TrainingSteps = Annotated[Count, TRAINING_STEPS]
# A name, path or pattern.
Text = Annotated[str, NonEmpty]


def make_tuples(settings: object, *names: str) -> None:
  """Converts fields of a frozen dataclass to tuples, so that equal settings compare and hash equal.

  Args:
    settings: the dataclass, in its `__post_init__`: configs give lists.
    names: names of the fields.
  """
  for name in names:
    object.__setattr__(settings, name, tuple(getattr(settings, name)))
