"""`Sweep.tune`: a hyperparameter that is tuned for each variant before the variants are compared."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Finite, NonEmpty, Positive, Range, Text

# Far above the seeds of the comparison, so that more of them can be added.
FIRST_SEED = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune:
  """Settings of the tuning: the bindings `Tune.NAME = ...` of a sweep file with `Sweep.tune = @Tune()`.

  Every variant is trained with each value and the tuning seeds. The value with the best mean is the tuned
  value of the variant, with which it is compared with the tuned baseline on the seeds of the sweep. If the tuned
  value of any variant is the smallest or the largest of its grid, the grids of all variants are extended at this end,
  by one value at a time, as long as the budget permits. The verdict on a variant that remains at an edge is withheld.

  Attributes:
    parameter: name of the tuned number, a parameter or a macro ('Cosine.peak', 'peak'). If there are
      several names, the first that a variant has.
    values: values to try.
    factors: multiples of the variant's own value to try, instead of `values`.
    metric: metric of the choice, such as one of validation examples where `Sweep.metric` is of test examples; None:
      that of the sweep.
    seeds: number of tuning seeds, which the comparison does not use.
    keep: 1.0: every value is trained with all seeds. Less than 1: successive halving (Jamieson and Talwalkar
      2016, https://arxiv.org/abs/1502.07943) whose resource is the number of seeds. Each round trains one more
      seed for this share of the values, rounded up but fewer than before, until one is left. All trials have the full
      number of steps, so that values with a fast start have no advantage, and nothing is compiled again.
    max_trials: budget of the tuning with its extensions; a plan with more trials is an error. None: twice the
      trials of the given values.
  """

  parameter: Text | Annotated[Sequence[Text], NonEmpty]
  values: Sequence[Finite] = ()
  factors: Sequence[Positive] = ()
  metric: Text | None = None
  seeds: Count = 2
  keep: Annotated[float, Range('0 < x <= 1')] = 1.0
  max_trials: Count | None = None

  def __post_init__(self):
    if bool(self.values) == bool(self.factors):
      raise UserError('set exactly one of Tune.values and Tune.factors')
    numbers = self.values or self.factors
    name = 'Tune.values' if self.values else 'Tune.factors'
    if len(numbers) < 2:
      raise UserError(f'{name} = {[*numbers]} has a single value: there is nothing to tune')
    if twice := [number for number in numbers if numbers.count(number) > 1]:
      raise UserError(f'{name} contains {twice[0]} twice')
    if self.keep < 1 and self.seeds == 1:
      raise UserError(
        f'Tune.keep = {self.keep} has no effect with Tune.seeds = 1: every round adds a seed'
      )

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the parameters that may be tuned, in order of preference."""
    return (self.parameter,) if isinstance(self.parameter, str) else tuple(self.parameter)

  @property
  def seed_list(self) -> tuple[int, ...]:
    """All tuning seeds."""
    return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds))

  def grid(self, own: int | float) -> list[int | float]:
    """Returns the values to try in increasing order, given the own value of a variant."""
    return sorted(self.values or {_multiple(own, factor) for factor in self.factors})

  def extended(self, ends: Collection[str]) -> 'Tune':
    """Returns the settings with another value beyond the 'smallest' or the 'largest' one, or beyond both."""
    numbers = sorted(self.values or self.factors)
    if 'smallest' in ends:
      numbers = [_beyond(numbers[1], numbers[0]), *numbers]
    if 'largest' in ends:
      numbers = [*numbers, _beyond(*numbers[-2:])]
    if self.values:
      return dataclasses.replace(self, values=tuple(numbers))
    return dataclasses.replace(self, factors=tuple(numbers))

  def sizes(self, count: int) -> Iterator[int]:
    """Yields the number of values in each round, of `count` values in the first one."""
    for _ in self.seed_list:
      yield count
      if self.keep < 1:
        # 30 * 0.1 is slightly more than 3.
        count = min(count - 1, math.ceil(round(count * self.keep, 9)))
      if count == 1:
        return


def _beyond(inner: int | float, outer: int | float) -> int | float:
  """Continues a geometric sequence, or an arithmetic one if it contains 0 or changes its sign."""
  if inner * outer > 0:
    return _multiple(outer, outer / inner)
  return 2 * outer - inner


def _multiple(own: int | float, factor: float) -> int | float:
  """Multiplies without the rounding errors of binary fractions: 3 times 0.1 is 0.3."""
  if factor == 1:
    return own
  product = float(f'{own * factor:.12g}')
  return int(product) if isinstance(own, int) and product.is_integer() else product
