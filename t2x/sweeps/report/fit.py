"""`t2x report --fit`: the scaling law of a sweep whose trials differ in parameters or training tokens."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2x.base.drawing import save_figure
from t2x.base.errors import UserError
from t2x.base.text_table import text_table
from t2x.statistics.laws import Estimate, SeedBootstrap, fit_law
from t2x.sweeps.report.results import Results, Row
from t2x.sweeps.report.summary import label

FEWEST_SEEDS = 3
# Number of sizes that a law needs, by its number of variables: one more than it has constants.
_FEWEST_SIZES = {1: 4, 2: 6}
_NAMES = ('parameters', 'tokens')
_SYMBOLS = {'parameters': ('N', 'A', 'alpha'), 'tokens': ('D', 'B', 'beta')}
_CURVE_POINTS = 40


@dataclasses.dataclass(frozen=True)
class Size:
  """Trials with equal parameters and training tokens.

  Attributes:
    label: label of the row; '' for a size that was not measured.
    parameters: number of parameters, embeddings included.
    tokens: number of training tokens, padding included.
    losses: metric of each seed.
    used: whether the law is fitted to it.
  """

  label: str
  parameters: float
  tokens: float
  losses: tuple[float, ...] = ()
  used: bool = True


@dataclasses.dataclass(frozen=True)
class Fit:
  """A law and the sizes that it was fitted to or predicts.

  Attributes:
    variant: name of the variant; '' for a law of all variants.
    variables: 'parameters', 'tokens' or both, if they vary.
    seeds: number of seeds.
    constants: E, then a factor and an exponent for each variable.
    sizes: sizes in the order of the report, then the requested ones.
    predictions: predicted loss of each size.
    curves: for plots, {'name', 'x', 'value', 'low', 'high'}: the law against the first variable.
  """

  variant: str
  variables: tuple[str, ...]
  seeds: int
  constants: Sequence[Estimate]
  sizes: Sequence[Size]
  predictions: Sequence[Estimate]
  curves: Sequence[dict[str, Any]]

  @property
  def formula(self) -> str:
    """The law as text: 'L = E + A N^-alpha + B D^-beta'."""
    terms = ['{1} {0}^-{2}'.format(*_SYMBOLS[name]) for name in self.variables]
    return f'L = {" + ".join(["E", *terms])}'

  @property
  def names(self) -> list[str]:
    """Names of the constants."""
    return ['E', *(symbol for name in self.variables for symbol in _SYMBOLS[name][1:])]

  @property
  def note(self) -> str:
    """Warns if the sizes do not determine the law; '' if they do."""
    exponents = zip(self.names[2::2], self.constants[2::2], strict=True)
    if not (unclear := [name for name, item in exponents if item.low <= 0]):
      return ''
    return (
      f'These sizes do not determine the law: the interval of {" and ".join(unclear)} includes 0.'
    )

  def text(self, metric: str) -> str:
    """Returns the law, its constants and its predictions as lines."""
    used = sum(size.used for size in self.sizes)
    what = f'{self.variant}: {self.formula}' if self.variant else self.formula
    legend = ', '.join(f'{_SYMBOLS[name][0]}: {name}' for name in self.variables)
    title = f'{what} (L: {metric}, {legend}), fitted to {used} sizes with {self.seeds} seeds each'
    rows = [['constant', 'value', '95 % interval']]
    rows += [
      [name, f'{item.value:.4g}', f'{item.low:.4g} to {item.high:.4g}']
      for name, item in zip(self.names, self.constants, strict=True)
    ]
    sizes = [['size', 'parameters', 'tokens', 'measured', 'predicted', '95 % interval', '']]
    for size, prediction in zip(self.sizes, self.predictions, strict=True):
      measured = f'{np.mean(size.losses):.4f}' if size.losses else ''
      interval = f'{prediction.low:.4f} to {prediction.high:.4f}'
      role = '' if size.used else 'not used for the fit' if size.losses else 'not measured'
      counts = [f'{size.parameters:.4g}', f'{size.tokens:.4g}']
      sizes.append([size.label, *counts, measured, f'{prediction.value:.4f}', interval, role])
    parts = [title, self.note, text_table(rows, '<>>'), text_table(sizes, '<>>>>><')]
    return '\n'.join(part for part in parts if part)

  def data(self) -> dict[str, Any]:
    """Returns the fit for report.html and JSON."""
    sizes = [
      dataclasses.asdict(size)
      | {'mean': float(np.mean(size.losses)) if size.losses else None}
      | {'prediction': dataclasses.asdict(prediction)}
      for size, prediction in zip(self.sizes, self.predictions, strict=True)
    ]
    constants = [
      {'name': name} | dataclasses.asdict(item)
      for name, item in zip(self.names, self.constants, strict=True)
    ]
    return {
      'variant': self.variant,
      'formula': self.formula,
      'note': self.note,
      'variables': list(self.variables),
      'seeds': self.seeds,
      'constants': constants,
      'sizes': sizes,
      'curves': [*self.curves],
    }


def fit_results(
  results: Results,
  *,
  by_variant: bool = False,
  hold_out: Sequence[str] = (),
  predict: Sequence[tuple[float, float | None]] = (),
) -> list[Fit]:
  """Fits a scaling law to all variants and points of the grid, or one law to each variant.

  Args:
    results: a sweep whose trials have all finished.
    by_variant: fits one law to each variant over the points of the grid.
    hold_out: names of variants, or values of the grid as AXIS=VALUE, that are predicted but not fitted.
    predict: parameters and tokens of sizes to predict; tokens None: those of all trials.

  Raises:
    UserError: a trial is not finished, sizes or seeds are too few, or a selection has no effect.
  """
  _check(results)
  unused = [
    name for name in hold_out if not any(_is_held_out(results, r, [name]) for r in results.rows)
  ]
  if unused:
    raise UserError(f"--hold-out '{unused[0]}' is neither a variant nor AXIS=VALUE of the grid")
  groups: dict[str, list[Row]] = {}
  for row in results.rows:
    groups.setdefault(row.variant if by_variant else '', []).append(row)
  return [_fit(results, name, rows, hold_out, predict) for name, rows in groups.items()]


def _check(results: Results) -> None:
  plan = results.plan
  unfinished = [entry for entry in results.entries if entry.status != 'finished']
  if unfinished:
    trial = unfinished[0].trial
    raise UserError(
      f'--fit requires that all trials are finished: {results.progress()}; the first other trial is '
      f"variant '{trial.variant}', seed {trial.seed}"
    )
  values = [value for entry in results.entries if (value := entry.value(plan.metric)) is not None]
  if plan.goal != 'min' or min(values, default=0.0) <= 0:
    raise UserError(f"--fit needs a positive metric for which lower is better, not '{plan.metric}'")
  seeds = {len({entry.trial.seed for entry in row.entries}) for row in results.rows}
  if len(seeds) > 1 or min(seeds) < FEWEST_SEEDS:
    raise UserError(
      f'--fit needs at least {FEWEST_SEEDS} seeds, the same for all sizes, for its intervals; the sweep '
      f'has {" and ".join(map(str, sorted(seeds)))}'
    )


def _fit(
  results: Results,
  variant: str,
  rows: Sequence[Row],
  hold_out: Sequence[str],
  predict: Sequence[tuple[float, float | None]],
) -> Fit:
  measured = [_size(results, row, not _is_held_out(results, row, hold_out)) for row in rows]
  used = [size for size in measured if size.used]
  where = f"variant '{variant}'" if variant else 'the sweep'
  variables = _variables(used, where)
  sizes = [*measured, *(_requested(item, used) for item in predict)]
  inputs = _array(sizes, variables)
  fitted = np.array([size.used and bool(size.losses) for size in sizes])
  losses = np.array([size.losses for size in used])
  law = fit_law(np.repeat(inputs[fitted], losses.shape[1], axis=0), losses.ravel())
  bootstrap = SeedBootstrap(law, inputs[fitted], losses)
  return Fit(
    variant,
    variables,
    losses.shape[1],
    bootstrap.constants(),
    sizes,
    bootstrap.predict(inputs),
    _curves(bootstrap, sizes, variables),
  )


def _size(results: Results, row: Row, used: bool) -> Size:
  trial = row.entries[0].trial
  entries = sorted(row.entries, key=lambda entry: entry.trial.seed)
  values = [entry.value(results.plan.metric) for entry in entries]
  losses = tuple(value for value in values if value is not None)
  steps = [entry.num_steps for entry in entries if entry.status == 'finished']
  if len({*steps}) > 1:
    raise UserError(
      f'--fit: the seeds of {label(results, row)} were stopped after different numbers of steps '
      f'({min(steps)} to {max(steps)}): a law needs sizes of equal tokens: train without Trainer.patience'
    )
  tokens = trial.tokens_per_step * (steps or [trial.num_steps])[0]
  return Size(label(results, row), trial.parameters, tokens, losses, used)


def _is_held_out(results: Results, row: Row, names: Sequence[str]) -> bool:
  point = results.points[row.point]
  values = {f'{axis}={value}'.replace(' ', '') for axis, value in point.items()}
  return any(name == row.variant or name.replace(' ', '') in values for name in names)


def _requested(request: tuple[float, float | None], used: Sequence[Size]) -> Size:
  parameters, tokens = request
  if tokens is None:
    if len({size.tokens for size in used}) > 1:
      raise UserError(
        '--predict needs PARAMETERS,TOKENS, as the trials differ in their training tokens'
      )
    tokens = used[0].tokens
  return Size('', parameters, tokens, used=False)


def _variables(sizes: Sequence[Size], where: str) -> tuple[str, ...]:
  """Returns the variables that vary; raises UserError if they do not determine a law."""
  by_place: dict[tuple[float, float], Size] = {}
  for size in sizes:
    other = by_place.setdefault((size.parameters, size.tokens), size)
    if other is not size:
      raise UserError(
        f'--fit: {where} has two results at {size.parameters:,} parameters and {size.tokens:,} tokens '
        f"('{other.label}', '{size.label}'); use --by-variant if variants are not sizes"
      )
  counts = {name: len({getattr(size, name) for size in sizes}) for name in _NAMES}
  variables = tuple(name for name in _NAMES if counts[name] > 1)
  fewest = _FEWEST_SIZES[max(1, len(variables))]
  if len(sizes) < fewest:
    raise UserError(f'--fit: {where} has {len(sizes)} of the {fewest} sizes that a law needs')
  if min(counts[name] for name in variables) < 3:
    raise UserError(
      f'--fit: {where} has {counts["parameters"]} numbers of parameters and {counts["tokens"]} of tokens; '
      'a variable that varies needs three'
    )
  if len(variables) == 2 and len(sizes) == max(counts.values()):
    raise UserError(
      f'--fit: {where} has one number of tokens for each number of parameters, which does not '
      'separate their effects: add sizes with equal parameters and other tokens'
    )
  return variables


def _array(sizes: Sequence[Size], variables: Sequence[str]) -> np.ndarray:
  return np.array([[getattr(size, name) for name in variables] for size in sizes], float)


def _curves(
  bootstrap: SeedBootstrap, sizes: Sequence[Size], variables: Sequence[str]
) -> list[dict[str, Any]]:
  """Returns the law against its first variable, for each value of the second."""
  ends = _array(sizes, variables)
  x = np.geomspace(ends[:, 0].min(), ends[:, 0].max(), _CURVE_POINTS)
  curves = []
  for other in sorted({*ends[:, 1]}) if len(variables) == 2 else [None]:
    inputs = np.column_stack([x] if other is None else [x, np.full(len(x), other)])
    estimates = bootstrap.predict(inputs)
    curves.append(
      {
        'name': '' if other is None else f'{other:,.0f} {variables[1]}',
        'x': [*map(float, x)],
        'value': [item.value for item in estimates],
        'low': [item.low for item in estimates],
        'high': [item.high for item in estimates],
      }
    )
  return curves


def write_png(path: Path, fits: Sequence[Fit], metric: str) -> bool:
  """Draws the laws, one panel for each; returns False if matplotlib is not installed."""
  try:
    from matplotlib.figure import Figure
  except ImportError:
    return False
  figure = Figure(figsize=(6 * len(fits), 4.5), layout='constrained')
  panels = figure.subplots(1, len(fits), squeeze=False)[0]
  for axes, fit in zip(panels, fits, strict=True):
    for curve in fit.curves:
      (line,) = axes.plot(curve['x'], curve['value'], label=curve['name'] or 'fit')
      axes.fill_between(curve['x'], curve['low'], curve['high'], alpha=0.15, color=line.get_color())
    for used, marker in ((True, 'o'), (False, 'D')):
      points = [(getattr(size, fit.variables[0]), loss) for size in fit.sizes if size.used is used
                for loss in size.losses]  # fmt: skip
      if points:
        text = 'measured' if used else 'measured, not used for the fit'
        axes.plot(*zip(*points, strict=True), marker, color='black', markersize=3, label=text)
    axes.set(xscale='log', yscale='log', xlabel=fit.variables[0])
    axes.set_ylabel(metric, parse_math=False)
    axes.set_title(f'{fit.variant} {fit.formula}'.strip(), parse_math=False)
    axes.yaxis.set_major_formatter('{x:.3g}')
    axes.yaxis.set_minor_formatter('{x:.3g}')
    axes.legend(fontsize=8)
  save_figure(figure, path, dpi=150)
  return True
