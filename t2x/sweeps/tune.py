"""`Sweep.tune`, a hyperparameter that is tuned for each variant before they are compared, and OUT/NAME/tuning.json."""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from t2x.base.errors import UserError
from t2x.base.json_files import Damaged, dataclass_from_json, is_number, read_json, write_json
from t2x.base.ranges import Count, Finite, NonEmpty, Positive, Range, Text

# Far above the seeds of the comparison, so that more of them can be added.
FIRST_SEED = 1_000_000
# With fewer tuning seeds the noise of the choice cannot be estimated.
FEWEST_SEEDS = 3
_FILE = 'tuning.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune:
  """Settings of the tuning: the bindings `Tune.NAME = ...` of a sweep file with `Sweep.tune = @Tune()`.

  Every variant is trained with each value and the tuning seeds. Tuning seed i chooses the value that seed i of the
  comparison runs at (matched tuning), so that the noise of the choice is part of the noise between seeds: a verdict is
  about the expected result of tuning and training together. If the value with the best mean over all tuning seeds
  is the smallest or the largest of any variant's grid, the grids of all variants are extended at this end, by one value
  at a time, as long as the budget permits. The verdict on a variant that remains at an edge is withheld.

  Attributes:
    parameter: name of the tuned number, a parameter or a macro ('Cosine.peak', 'peak'). If there are
      several names, the first that a variant has.
    values: values to try.
    factors: multiples of the variant's own value to try, instead of `values`.
    metric: metric of the choice, such as one of validation examples where `Sweep.metric` is of test examples; None:
      that of the sweep.
    seeds: number of tuning seeds, which the comparison does not use. None: those of the comparison (`Sweep.seeds`, for
      the baseline `Sweep.baseline_seeds`). With fewer, each chooses the value of several seeds, and the test compares
      the means of these blocks; with fewer than three, verdicts are withheld.
    keep: must be 1: every value is trained with all seeds.
    max_trials: budget of the tuning with its extensions; a plan with more trials is an error. None: twice the
      trials of the given values.
    untuned: whether each variant is also trained at its own value with the seeds of the comparison, so that the report
      has the verdicts before tuning.
  """

  parameter: Text | Annotated[Sequence[Text], NonEmpty]
  values: Sequence[Finite] = ()
  factors: Sequence[Positive] = ()
  metric: Text | None = None
  seeds: Count | None = None
  keep: Annotated[float, Range('0 < x <= 1')] = 1.0
  max_trials: Count | None = None
  untuned: bool = True

  def __post_init__(self):
    if bool(self.values) == bool(self.factors):
      raise UserError('set exactly one of Tune.values and Tune.factors')
    numbers = self.values or self.factors
    name = 'Tune.values' if self.values else 'Tune.factors'
    if len(numbers) < 2:
      raise UserError(f'{name} = {[*numbers]} has a single value: there is nothing to tune')
    if twice := [number for number in numbers if numbers.count(number) > 1]:
      raise UserError(f'{name} contains {twice[0]} twice')
    if self.keep < 1:
      raise UserError(
        f'Tune.keep = {self.keep}: each tuning seed chooses from all values, and values that were dropped '
        'by other seeds would be missing: remove it'
      )

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the parameters that may be tuned, in order of preference."""
    return (self.parameter,) if isinstance(self.parameter, str) else tuple(self.parameter)

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
  """Results of a value of the tuned parameter.

  Attributes:
    value: the value.
    mean: mean metric of the tuning seeds that finished; None without any.
    n: number of these seeds.
    metrics: metric by seed.
    diverged: number of seeds that diverged or did not learn.
    failed: number of seeds that failed, or cannot run.
  """

  value: Any
  mean: float | None
  n: int
  metrics: Mapping[str, float]
  diverged: int = 0
  failed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """Tuned value of a variant at a point of the grid.

  Attributes:
    point: values of the grid by axis, as in `Trial`.
    parameter: the tuned parameter.
    own: value of the variant without tuning.
    chosen: the value with the best mean over all tuning seeds.
    edge: whether `chosen` is the smallest or the largest one that was tried; '' if neither, or if no value
      beyond it is valid (a rate of 0).
    tried: results of the values, in increasing order.
    values: the value that each tuning seed chose, by seed. {} in files of older versions, in which all seeds were
      compared at `chosen`.
  """

  variant: str
  point: Mapping[str, Any]
  parameter: str
  own: Any
  chosen: Any
  edge: Literal['', 'smallest', 'largest']
  tried: tuple[Tried, ...]
  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def text(self) -> str:
    """The tuned values with the numbers of tuning seeds that chose them: '0.01 (3), 0.03 (2)'."""
    counts = collections.Counter(self.values.values())
    if len(counts) < 2:
      return f'{next(iter(counts), self.chosen):g}'
    return ', '.join(f'{value:g} ({counts[value]})' for value in sorted(counts))

  @property
  def problem(self) -> str:
    """Why the variant is not tuned; '' if it is."""
    if self.lost:
      return 'no tuning trial finished'
    return f'the best {self.parameter} is the {self.edge} tried' if self.edge else ''

  @property
  def lost(self) -> bool:
    """Whether the value is the variant's own, as no tuning trial finished."""
    return not any(item.n for item in self.tried)

  @property
  def note(self) -> str:
    """Remarks on single trials without a result; '' without any."""
    if self.lost:
      return ''
    notes = []
    if lost := sum(all(seed not in item.metrics for item in self.tried) for seed in self.values):
      notes.append(f'no value finished with {lost} of {len(self.values)} tuning seeds: own value')
    if failed := [f'{item.value:g}' for item in self.tried if item.failed]:
      notes.append(f'ranks last, as trials failed: {", ".join(failed)}')
    return '; '.join(notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
  """Content of tuning.json, a function of the outcomes of the tuning trials.

  Attributes:
    metric: metric of the choice.
    goal: whether a lower ('min') or a higher ('max') metric is better.
    seeds: tuning seeds; those of the baseline, if it has more.
    keep: 1; files of older versions may have less: the share of the values that was kept for each further seed.
    trials: number of tuning trials.
    choices: tuned values, in the order of the plan.
  """

  metric: str
  goal: Literal['min', 'max']
  seeds: tuple[int, ...]
  keep: float = 1.0
  trials: int
  choices: tuple[Choice, ...]

  def of(self, variant: str, point: Mapping[str, Any]) -> Choice | None:
    """Returns the choice of a variant at a point of the grid; None if it was not tuned."""
    matches = (c for c in self.choices if (c.variant, dict(c.point)) == (variant, dict(point)))
    return next(matches, None)

  def problem_of(self, variant: str, baseline: str, point: Mapping[str, Any]) -> str:
    """Returns why there is no verdict on a variant: it or its baseline is not tuned; '' if both are."""
    own, other = self.of(variant, point), self.of(baseline, point)
    if own is not None and own.problem:
      return f'not tuned: {own.problem}'
    return (
      f'{baseline} is not tuned: {other.problem}' if other is not None and other.problem else ''
    )


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


def write_tuning(folder: Path, tuning: Tuning) -> None:
  """Writes OUT/NAME/tuning.json."""
  write_json(folder / _FILE, tuning)


def read_tuning(folder: Path) -> Tuning:
  """Reads OUT/NAME/tuning.json.

  Raises:
    UserError: the file does not exist or is damaged.
  """
  path = folder / _FILE
  try:
    tuning = dataclass_from_json(Tuning, read_json(path), path)
  except FileNotFoundError:
    raise UserError(f'there is no {path}: run `t2x sweep` to write it') from None
  for number, choice in enumerate(tuning.choices):
    values = [choice.own, choice.chosen, *choice.values.values()]
    values += [item.value for item in choice.tried]
    if not all(map(is_number, values)):
      raise Damaged(f'{path} is damaged: choices[{number}] has a value that is not a number')
  return tuning
