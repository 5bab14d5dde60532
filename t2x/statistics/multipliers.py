"""Compute and wall-clock multipliers of variants, from laws of the loss fitted to several sizes or horizons.

The law of a variant is L = E + A C^-a in the compute C of training (Hoffmann et al. 2022,
https://arxiv.org/abs/2203.15556). E and a are shared by all variants unless a lack-of-fit test against the noise of the
runs rejects that; each variant then has a law of its own. The compute multiplier Sc of a variant at a compute C is C
divided by the compute at which its law has the loss that the baseline has at C: with Sc = 2 it needs half the compute.
The wall-clock multiplier is Sc times the ratio of the speeds (compute per second). Intervals are those of the delta
method for their logarithms, with the t distribution.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t2x.statistics.distributions import f_sf, t_isf
from t2x.statistics.laws import Estimate
from t2x.statistics.summaries import ALPHA
from t2x.statistics.table import Table

# An interval that is wider than this factor determines nothing.
WIDEST = 3.0
# The predicted size, relative to the largest one.
AHEAD = 10.0
FEWEST_SIZES = 3
_EXPONENTS = np.geomspace(3e-3, 6, 60)
_ROUNDS, _HALVINGS = 12, 6
_LARGEST_LOG = 300.0
_Function = Callable[[np.ndarray], np.ndarray]
# A crossing is searched up to this multiple of the largest and this part of the smallest size.
_REACH = 100.0


@dataclasses.dataclass(frozen=True)
class Laws:
  """Laws of several variants, L = E + exp(b - a x) for x = log(C / C0), for arrays of experiments at once.

  Attributes:
    vector: all constants [..., constants].
    places: indices into the vector of E, a and b for each variant [variants, 3].
    covariance: covariance of the constants [..., constants, constants].
    freedom: degrees of freedom of the residuals.
    center: log C0.
    squares: sum of squared residuals [...]; infinite where the runs do not determine the laws.
  """

  vector: np.ndarray
  places: np.ndarray
  covariance: np.ndarray
  freedom: int
  center: float
  squares: np.ndarray

  @property
  def is_shared(self) -> bool:
    """Whether all variants share E and a."""
    return bool((self.places[:, 0] == self.places[0, 0]).all())

  def constants(self, variant: int) -> tuple[float, float, float]:
    """Returns E, A and a of a variant."""
    offset, exponent, log_factor = self.vector[self.places[variant]]
    return float(offset), float(np.exp(log_factor + exponent * self.center)), float(exponent)

  def interval(self, function: _Function, extra: float = 0.0) -> np.ndarray:
    """Returns a function of the constants and the ends of its 95 % interval [3, ...]; NaN where it is not defined.

    Args:
      function: function of vectors [..., constants].
      extra: a further variance of its value.
    """
    value = function(self.vector)
    steps = 1e-5 * np.maximum(np.abs(self.vector), 1e-3)
    gradient = []
    for column, unit in enumerate(np.eye(self.vector.shape[-1])):
      step = steps[..., column]
      above, below = (function(self.vector + side * step[..., None] * unit) for side in (1, -1))
      gradient.append((above - below) / (2 * step))
    slope = np.stack(gradient, -1)[..., None]
    variance = (np.swapaxes(slope, -1, -2) @ self.covariance @ slope)[..., 0, 0] + extra
    half = t_isf(ALPHA / 2, self.freedom) * np.sqrt(np.maximum(variance, 0))
    return np.where(
      np.isfinite(self.squares), np.stack([value, value - half, value + half]), math.nan
    )

  def estimate(self, function: _Function, extra: float = 0.0) -> Estimate | None:
    """Returns exp of a function of the constants, and its interval; None if undefined or wider than `WIDEST`."""
    value, low, high = self.interval(function, extra)
    if not (abs(value) < _LARGEST_LOG and high - low <= math.log(WIDEST)):
      return None
    return Estimate(*map(math.exp, (value, low, high)))


def fit_laws(
  compute: np.ndarray, losses: np.ndarray, variants: np.ndarray, shared: bool
) -> Laws | None:
  """Fits the laws of all variants by least squares; None if there are fewer runs than constants.

  For a given exponent the law is linear in E and A: a grid of exponents gives the start of Gauss and Newton's method.

  Args:
    compute: compute of each run [runs].
    losses: loss of each run [..., runs].
    variants: number of its variant, from 0 [runs].
    shared: whether the variants share E and a.
  """
  count = int(variants.max()) + 1
  center = float(np.log(compute).mean())
  x = np.log(compute) - center
  if shared:
    places = np.column_stack([np.zeros(count, int), np.ones(count, int), 2 + np.arange(count)])
    groups = [np.ones(len(x), bool)]
  else:
    places = np.arange(3 * count).reshape(count, 3)
    groups = [variants == variant for variant in range(count)]
  freedom = len(x) - int(places.max()) - 1
  if freedom < 1:
    return None
  vector = np.empty((*losses.shape[:-1], places.max() + 1))
  for variant, members in enumerate(groups):
    columns = [0, 1, *places[:, 2]] if shared else places[variant]
    vector[..., columns] = _start(x[members], losses[..., members], variants[members])
  of_run, rows = places[variants], np.arange(len(x))

  def residuals_and_slopes(vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    offset, exponent, log_factor = np.moveaxis(vector[..., of_run], -1, 0)
    term = np.exp(np.clip(log_factor - exponent * x, -50, 50))
    slopes = np.zeros((*losses.shape, vector.shape[-1]))
    for column, values in enumerate((np.ones_like(term), -x * term, term)):
      slopes[..., rows, of_run[:, column]] = values
    return losses - offset - term, slopes

  residuals, slopes = residuals_and_slopes(vector)
  squares = (residuals**2).sum(-1)
  for _ in range(_ROUNDS):
    step = _solved(slopes, residuals)
    # A step that increases the squares is halved.
    scale = np.ones(squares.shape)
    for _ in range(_HALVINGS):
      trial = residuals_and_slopes(vector + scale[..., None] * step)[0]
      scale = np.where((trial**2).sum(-1) <= squares * (1 + 1e-12), scale, scale / 2)
    vector = vector + scale[..., None] * step
    residuals, slopes = residuals_and_slopes(vector)
    squares = (residuals**2).sum(-1)
  exponents = vector[..., places[:, 1]]
  determined = ((exponents > _EXPONENTS[0]) & (exponents < _EXPONENTS[-1])).all(-1) & np.isfinite(
    squares
  )
  size = np.linalg.norm(slopes, axis=-2)
  normal = np.swapaxes(slopes, -1, -2) @ slopes / (size[..., None] * size[..., None, :])
  inverse = np.linalg.pinv(normal, rcond=1e-13) / (size[..., None] * size[..., None, :])
  covariance = inverse * (squares / freedom)[..., None, None]
  return Laws(vector, places, covariance, freedom, center, np.where(determined, squares, math.inf))


def _solved(slopes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
  """Returns the least-squares solution of slopes @ step = residuals, with columns of equal size."""
  size = np.linalg.norm(slopes, axis=-2, keepdims=True)
  step = np.linalg.pinv(slopes / size, rcond=1e-9) @ residuals[..., None]
  return step[..., 0] / size[..., 0, :]


def _start(x: np.ndarray, losses: np.ndarray, variants: np.ndarray) -> np.ndarray:
  """Returns E, a and the b of each variant with the best exponent of a grid [..., 2 + variants]."""
  names = np.unique(variants)
  best = np.full(losses.shape[:-1], np.inf)
  result = np.zeros((*losses.shape[:-1], 2 + len(names)))
  for exponent in _EXPONENTS:
    terms = np.exp(-exponent * x)[:, None] * (variants[:, None] == names)
    design = np.column_stack([np.ones_like(x), terms])
    solution = losses @ np.linalg.pinv(design).T
    squares = ((losses - solution @ design.T) ** 2).sum(-1)
    # Losses that grow with compute are no law.
    better = (squares < best) & (solution[..., 1:] > 0).all(-1)
    vector = np.concatenate(
      [
        solution[..., :1],
        np.full_like(solution[..., :1], exponent),
        np.log(np.maximum(solution[..., 1:], 1e-300)),
      ],
      -1,
    )
    result = np.where(better[..., None], vector, result)
    best = np.where(better, squares, best)
  return result


def lack_of_fit(
  laws: Laws, compute: np.ndarray, losses: np.ndarray, variants: np.ndarray
) -> np.ndarray:
  """Returns the p-value [...] of a test of the laws against the noise of runs of one variant and size; 1 without noise.

  Args:
    laws: the laws.
    compute: compute of each run [runs].
    losses: loss of each run [..., runs].
    variants: number of its variant [runs].
  """
  _, cells = np.unique(np.stack([compute, variants]), axis=1, return_inverse=True)
  members = cells.ravel() == np.arange(cells.max() + 1)[:, None]
  means = losses @ (members / members.sum(-1, keepdims=True)).T
  pure = ((losses - means[..., cells.ravel()]) ** 2).sum(-1)
  freedom = len(compute) - len(members), len(members) - laws.vector.shape[-1]
  if freedom[0] < 1 or freedom[1] < 1:
    return np.where(np.isfinite(laws.squares), 1.0, 0.0)
  with np.errstate(divide='ignore', invalid='ignore'):
    ratio = (laws.squares - pure) / freedom[1] / (pure / freedom[0])
  return np.where(
    np.isfinite(laws.squares),
    f_sf(np.maximum(np.nan_to_num(ratio), 0), freedom[1], freedom[0]),
    0.0,
  )


def log_multiplier(
  vector: np.ndarray, places: np.ndarray, variant: int, baseline: int, x: float
) -> np.ndarray:
  """Returns log Sc of a variant at x [...]; NaN if its law does not reach the loss of the baseline there."""
  offset, exponent, log_factor = np.moveaxis(vector[..., places[baseline]], -1, 0)
  own_offset, own_exponent, own_log_factor = np.moveaxis(vector[..., places[variant]], -1, 0)
  with np.errstate(invalid='ignore', divide='ignore'):
    above = np.log(offset + np.exp(log_factor - exponent * x) - own_offset)
    return x - (own_log_factor - above) / own_exponent


@dataclasses.dataclass(frozen=True)
class Multiplier:
  """Multipliers of a variant at a compute; None where they are not determined.

  Attributes:
    at: 'largest' or 'predicted'.
    compute: the compute.
    of_compute: Sc.
    of_time: Sw; also None without the column of seconds.
  """

  variant: str
  at: str
  compute: float
  of_compute: Estimate | None
  of_time: Estimate | None


@dataclasses.dataclass(frozen=True)
class Multipliers:
  """Multipliers of all variants.

  Attributes:
    count: how compute was counted.
    note: why there are none, or which laws were fitted.
    rows: the multipliers.
    laws: E, A and a by variant.
    crossings: compute at which a variant's law crosses that of the baseline, by variant; empty for shared laws.
  """

  count: str
  note: str
  rows: Sequence[Multiplier] = ()
  laws: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
  crossings: dict[str, Estimate | None] = dataclasses.field(default_factory=dict)

  def lines(self) -> list[str]:
    """Returns the multipliers as lines of text."""
    lines = [f'Multipliers by {self.count}: {self.note}.']
    for row in self.rows:
      time = '' if row.of_time is None else f'; wall-clock Sw = {_text(row.of_time)}'
      lines.append(
        f'{row.variant} at {row.compute:.2g} ({row.at}): Sc = {_text(row.of_compute)}{time}.'
      )
    for variant, crossing in self.crossings.items():
      lines.append(
        f'{variant}: its law crosses that of the baseline at {_text(crossing)}.'
        if crossing
        else f'{variant}: no single crossing with the law of the baseline is determined near the sizes.'
      )
    return lines

  def data(self) -> dict[str, Any]:
    """Returns the multipliers as values that JSON can represent."""
    return {
      'count': self.count,
      'note': self.note,
      'rows': [dataclasses.asdict(row) for row in self.rows],
      'laws': {name: dict(zip('EAa', values, strict=True)) for name, values in self.laws.items()},
      'crossings': {
        name: item and dataclasses.asdict(item) for name, item in self.crossings.items()
      },
    }


def _text(item: Estimate | None) -> str:
  if item is None:
    return f'undetermined (an interval wider than a factor of {WIDEST:g})'
  return f'{item.value:.3g} (95 % interval {item.low:.3g} to {item.high:.3g})'


def multipliers(table: Table, metric: str, baseline: str) -> list[Multipliers]:
  """Returns the multipliers of a table with sizes, for each way to count its compute; [] without sizes or compute.

  Args:
    table: a table without failed runs; the metric is a loss. A run with items counts once, with their mean.
    metric: name of the loss.
    baseline: name of the baseline.
  """
  if len(table.sizes) < 2:
    return []
  table = table.by_run(metric)
  numbers = table.numbers
  counts: dict[str, np.ndarray] = {}
  if 'flops' in numbers:
    counts['FLOPs'] = numbers['flops']
  elif 'parameters' in numbers and 'tokens' in numbers:
    counts['6 N D with all parameters'] = 6 * numbers['parameters'] * numbers['tokens']
    if 'embeddings' in numbers:
      others = numbers['parameters'] - numbers['embeddings']
      counts['6 N D without embeddings'] = 6 * others * numbers['tokens']
  else:
    counts |= {name: numbers[name] for name in ('tokens', 'parameters') if name in numbers}
  return [
    _of_count(table, metric, baseline, name, compute)
    for name, compute in counts.items()
    if len(np.unique(compute)) > 1
  ]


def _of_count(
  table: Table, metric: str, baseline: str, name: str, compute: np.ndarray
) -> Multipliers:
  losses, variants = table.metrics[metric], table.variants
  if not np.isfinite(compute).all() or compute.min() <= 0 or losses.min() <= 0:
    return Multipliers(name, 'none: a law needs a positive loss and compute of each run')
  sizes = [len(np.unique(compute[variants == v])) for v in range(len(table.names))]
  if min(sizes) < FEWEST_SIZES:
    return Multipliers(
      name, f'none: a law needs {FEWEST_SIZES} sizes of each variant, not {min(sizes)}'
    )
  laws = fit_laws(compute, losses, variants, shared=True)
  p = 0.0 if laws is None else float(lack_of_fit(laws, compute, losses, variants))
  kind = 'shared E and a'
  if p < ALPHA and min(sizes) > FEWEST_SIZES:
    laws = fit_laws(compute, losses, variants, shared=False)
    before, p = p, 0.0 if laws is None else float(lack_of_fit(laws, compute, losses, variants))
    kind = f'a law for each variant (shared E and a do not fit: p {before:.2g})'
  if laws is None or p < ALPHA:
    return Multipliers(name, f'none: the law L = E + A C^-a does not fit (p {p:.2g})')
  note = f'L = E + A C^-a with {kind}; lack of fit: p {p:.2g}; intervals of single multipliers, not corrected'
  base = table.names.index(baseline)
  largest = float(compute[variants == base].max())
  rows, crossings = [], {}
  for variant, label in enumerate(table.names):
    if variant == base:
      continue
    for at, size in (('largest', largest), ('predicted', AHEAD * largest)):
      rows.append(_multiplier(table, laws, (variant, base), (at, size), compute))
    if not laws.is_shared:
      crossings[label] = _crossing(laws, variant, base, compute)
  constants = {label: laws.constants(v) for v, label in enumerate(table.names)}
  return Multipliers(name, note, rows, constants, crossings)


def _multiplier(
  table: Table, laws: Laws, pair: tuple[int, int], place: tuple[str, float], compute: np.ndarray
) -> Multiplier:
  (variant, base), (at, size) = pair, place
  x = math.log(size) - laws.center

  def log_of_compute(vector: np.ndarray) -> np.ndarray:
    return log_multiplier(vector, laws.places, variant, base, x)

  of_time = None
  if 'seconds' in table.numbers and (table.numbers['seconds'] > 0).all():
    speed = np.log(compute / table.numbers['seconds'])
    sides = [_speed(table, np.log(compute), speed, v, at, math.log(size)) for v in pair]
    ratio, noise = sides[0][0] - sides[1][0], sides[0][1] + sides[1][1]
    of_time = laws.estimate(lambda vector: log_of_compute(vector) + ratio, noise)
  return Multiplier(table.names[variant], at, size, laws.estimate(log_of_compute), of_time)


def _speed(
  table: Table, x: np.ndarray, speed: np.ndarray, variant: int, at: str, size: float
) -> tuple[float, float]:
  """Returns the log speed of a variant and its variance: the mean at its largest size, or by a line in log compute."""
  x, speed = x[table.variants == variant], speed[table.variants == variant]
  if at == 'largest' or len(np.unique(x)) < FEWEST_SIZES:
    speed = speed[x == x.max()]
    return float(speed.mean()), float(speed.var(ddof=1) / len(speed)) if len(speed) > 1 else 0.0
  design = np.column_stack([np.ones_like(x), x - size])
  inverse = np.linalg.inv(design.T @ design)
  line = inverse @ design.T @ speed
  noise = float(((speed - design @ line) ** 2).sum()) / (len(speed) - 2)
  return float(line[0]), noise * float(inverse[0, 0])


def _crossing(laws: Laws, variant: int, base: int, compute: np.ndarray) -> Estimate | None:
  """Returns the compute at which two laws cross; None if they do not cross exactly once near the sizes, or the
  place is undetermined."""
  ends = np.log([compute.min() / _REACH, compute.max() * _REACH]) - laws.center

  def log_crossing(vector: np.ndarray) -> np.ndarray:
    (e, a, b), (e0, a0, b0) = vector[laws.places[variant]], vector[laws.places[base]]

    def gap(x: np.ndarray) -> np.ndarray:
      return e + np.exp(b - a * x) - e0 - np.exp(b0 - a0 * x)

    low, high = ends
    for points in (2001, *[3] * 50):
      grid = np.linspace(low, high, points)
      changes = np.flatnonzero(np.diff(np.sign(gap(grid))))
      if len(changes) != 1:
        return np.array(math.nan)
      low, high = grid[changes[0]], grid[changes[0] + 1]
    return np.array(low + laws.center)

  return laws.estimate(log_crossing)
