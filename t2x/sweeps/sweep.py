"""Reads a sweep file: variants, grid, seeds, metric and the quantity to match."""

import dataclasses
import itertools
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Literal

from t2x import config as config_lib
from t2x.base.errors import UserError, is_printable
from t2x.base.ranges import Count, Finite, NonEmpty, Positive, Rate, Seed, Text
from t2x.base.suggestions import did_you_mean
from t2x.experiments import is_sweep_binding
from t2x.statistics.two_way import FEWEST
from t2x.sweeps.arms import Arm, plain
from t2x.sweeps.published import Published, published_results
from t2x.sweeps.tune import FIRST_SEED, Tune


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
  """Settings of a sweep: the bindings `Sweep.NAME = ...` of a sweep file.

  Other bindings and macros of the sweep file apply to all trials.

  Attributes:
    base: gin files of the experiment, relative to the sweep file or to the working directory.
    variants: name -> bindings ({'MLP.activation': @gelu}; names may be scoped), or a gin file that is
      read after the base. They override the base, including its scoped bindings.
    baseline: name of the variant that all variants are compared with.
    only: names of the variants to run in addition to the baseline; (): all.
    seeds: number of seeds, or the seeds.
    grid: name -> values. Every variant is run at every point and compared with the baseline there.
    metric: name of the metric of the evaluation to compare.
    goal: 'min' if lower is better, 'max' if higher is better. None: the goal of the task for its best
      checkpoint, and 'min' for a loss; required for other metrics.
    match: quantity in which variants must equal the baseline: 'steps' (of equal batches; nothing is adjusted),
      'tokens' (of all steps, padding included), 'parameters', 'flops_per_token', 'flops' (per token times tokens),
      'seconds' (measured); None: no check.
    knob: name of the adjusted parameter, an integer binding or macro that is changed until the
      quantity matches ('MLP.hidden_dim', 'decoder/MLP.hidden_dim', 'Trainer.num_steps', 'd_ff'). If there
      are several names, the first that a variant has. A name with different values in several scopes is an error.
    tolerance: largest deviation of a match, relative to the baseline.
    one_budget: whether all points of the grid have the budget of the baseline at the first point, instead of that of
      the baseline at each point. A grid over `Trainer.batch_size` with `match = 'tokens'` and the knob
      `Trainer.num_steps` then has equal tokens.
    margin: largest difference of the metric that counts as none, for the verdict 'same'. None: 'same' is
      not tested.
    failed_above: a trial whose final metric is above this value did not learn, such as one at the loss of
      unigrams. It counts as diverged. None: no limit.
    failed_below: as `failed_above` for metrics that should be high: a trial below this value did not learn.
    max_seeds: number of seeds after which no seeds are added. If it is larger than the number of seeds,
      more seeds may be added after a report, and the verdicts of all reports are corrected together.
      None: verdicts after adding seeds are exploratory.
    published: published result of each variant, such as those of a paper; the report compares the rankings.
    published_goal: 'min' if a lower published result is better, or 'max'.
    published_label: label of the published results, with their unit and source.
    groups: name -> variants with published results, whose rankings are also compared.
    tune: settings of a hyperparameter that is tuned for each variant before they are compared; None: every
      variant is trained with its own value.
    baseline_seeds: number of seeds of the baseline, if it has more than the variants: they reduce the noise
      of the baseline, which is part of every comparison. None: those of the variants.
  """

  base: Text | Annotated[Sequence[Text], NonEmpty]
  variants: Annotated[Mapping[str, Any], NonEmpty]
  baseline: Text
  only: Sequence[str] = ()
  seeds: Count | Annotated[Sequence[Seed], NonEmpty] = 5
  grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  metric: Text = 'loss'
  goal: Literal['min', 'max'] | None = None
  match: Literal['steps', 'tokens', 'parameters', 'flops_per_token', 'flops', 'seconds'] | None = (
    'steps'
  )
  knob: str | Sequence[Text] = ()
  tolerance: Rate = 0.01
  one_budget: bool = False
  margin: Positive | None = None
  failed_above: Finite | None = None
  failed_below: Finite | None = None
  max_seeds: Count | None = None
  published: Mapping[str, Finite] = dataclasses.field(default_factory=dict)
  published_goal: Literal['min', 'max'] | None = None
  published_label: str = ''
  groups: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  tune: Tune | None = None
  baseline_seeds: Count | None = None
  # Path of the sweep file, and its bindings for all trials.
  file: Path = Path('sweep.gin')
  shared: tuple[str, ...] = ()
  # The folder of the trials, and whether trials count that ended with other code, data or defaults.
  trials: Path | None = None
  accept_changed: bool = False
  # What a confirmation repeats, variants at points of the grid (None: all), and its first tuning seed.
  cells: Sequence[tuple[str, Mapping[str, Any]]] | None = None
  first_tuning_seed: int = FIRST_SEED

  def __post_init__(self):
    self._check_names()
    if self.baseline not in self.variants:
      raise UserError(
        f"Sweep.baseline = '{self.baseline}' is not one of {', '.join(self.variants)}"
      )
    for name in self.only:
      if name not in self.variants:
        hint = did_you_mean(name, self.variants)
        raise UserError(f"Sweep.only contains '{name}', which is not in Sweep.variants{hint}")
    self._check_seeds()
    adjusts = self.match not in (None, 'steps')
    if adjusts and not self.knobs:
      raise UserError(f"Sweep.match = '{self.match}' needs Sweep.knob, the parameter to adjust")
    if self.knobs and not adjusts:
      raise UserError(f'Sweep.knob = {self.knob!r} has no effect: Sweep.match = {self.match!r}')
    self._check_grid()
    if self.one_budget and (self.match is None or not self.grid):
      missing = 'Sweep.match is None' if self.grid else 'there is no Sweep.grid'
      raise UserError(f'Sweep.one_budget has no effect: {missing}')
    self._check_tune()
    for name, changes in self.variants.items():
      if not isinstance(changes, (dict, str)):
        raise UserError(f"Sweep.variants['{name}'] must be a dict of bindings or a gin file")
      if isinstance(changes, dict):
        self._check_bound(name, changes)
    self.published_results()

  def _check_names(self) -> None:
    """Refuses names that are empty or contain characters that are not printable."""
    files = [item for item in self.variants.values() if isinstance(item, str)]
    names = {
      'file': [self.file.name],
      'base': [self.base] if isinstance(self.base, str) else self.base,
      'variants': [*self.variants, *files],
      'baseline': [self.baseline],
      'only': self.only,
      'grid': [*self.grid],
      'metric': [self.metric],
      'knob': self.knobs,
      'tune': self.tune.names if self.tune else (),
    }
    for setting, texts in names.items():
      for name in texts:
        if not name or name != name.strip() or not is_printable(name):
          where = _NAMES.get(setting, f'Sweep.{setting}')
          raise UserError(
            f'{where}: {name!r} cannot be used as a name: it is empty, starts or ends with a space, '
            'or contains control characters'
          )

  def _check_seeds(self) -> None:
    if len(set(self.seed_list)) < len(self.seed_list):
      raise UserError(f'Sweep.seeds = {list(self.seed_list)} contains a seed twice')
    if self.max_seeds is not None and self.max_seeds < len(self.seed_list):
      raise UserError(
        f'Sweep.max_seeds = {self.max_seeds} is smaller than the number of seeds, '
        f'{len(self.seed_list)}: increase it'
      )
    if self.baseline_seeds is not None:
      if self.baseline_seeds < len(self.seed_list):
        raise UserError(
          f'Sweep.baseline_seeds = {self.baseline_seeds} is smaller than the number of seeds, '
          f'{len(self.seed_list)}: increase it'
        )
      if len(self.names) <= FEWEST:
        raise UserError(
          f'Sweep.baseline_seeds = {self.baseline_seeds} has no effect: with fewer than {FEWEST} variants '
          'beside the baseline, the tests use the seeds that both have'
        )

  def _check_tune(self) -> None:
    if self.tune is None:
      return
    count, most = self.tune.seeds or len(self.seed_list), len(self.seed_list)
    if count > most:
      raise UserError(
        f'Tune.seeds = {count} is larger than the number of seeds, {most}, of which each has one tuning seed: reduce it'
      )
    if count < most and self.baseline_seeds is not None:
      raise UserError(
        f'Tune.seeds = {count} with Sweep.baseline_seeds: further seeds of the baseline need tuning seeds of their '
        'own: remove one of them'
      )
    tuning_seeds = {*self.tuning_seeds_of(self.baseline)}
    if shared := tuning_seeds & {*self.seed_list, *self.seeds_of(self.baseline)}:
      raise UserError(f'the seeds of the sweep contain the tuning seed {min(shared)}: change them')
    for name in self.tune.names:
      _refuse_seed(name, 'Tune.parameter')
      for setting, others in (('Sweep.grid', self.grid), ('Sweep.knob', self.knobs)):
        if name in others:
          raise UserError(
            f"Tune.parameter = '{name}' is also in {setting}: remove it from one of them"
          )

  def _check_grid(self) -> None:
    for name, values in self.grid.items():
      where = f"Sweep.grid['{name}']"
      if not isinstance(values, (list, tuple)) or not values:
        raise UserError(f'{where} must be a list of values, got {values!r}')
      # Equal texts are the same point in reports, and 1 and 1.0 are the same value.
      texts = [
        str(plain(value)) if isinstance(value, str) else config_lib.to_gin(value)
        for value in values
      ]
      numbers = [value for value in values if type(value) in (int, float)]
      twice = [value for value in (*texts, *numbers) if (*texts, *numbers).count(value) > 1]
      if twice:
        raise UserError(f'{where} contains {twice[0]} twice')
      _refuse_seed(name, where)
      if name in self.knobs:
        raise UserError(f'{where} is also in Sweep.knob: the match would change its values')

  @property
  def seed_list(self) -> tuple[int, ...]:
    """Seeds of the variants."""
    return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

  def seeds_of(self, variant: str) -> tuple[int, ...]:
    """Returns the seeds of a variant; the baseline may have more (`baseline_seeds`)."""
    seeds = self.seed_list
    if variant != self.baseline or self.baseline_seeds is None:
      return seeds
    first = max(seeds) + 1
    return (*seeds, *range(first, first + self.baseline_seeds - len(seeds)))

  def tuning_seeds_of(self, variant: str) -> tuple[int, ...]:
    """Returns the tuning seeds of a variant: one for each of its seeds, or fewer (`Tune.seeds`)."""
    count = self.tune.seeds if self.tune else None
    if count in (None, len(self.seed_list)):
      count = len(self.seeds_of(variant))
    return tuple(range(self.first_tuning_seed, self.first_tuning_seed + count))

  @property
  def names(self) -> list[str]:
    """Names of the variants to run, the baseline first."""
    others = [name for name in self.only or self.variants if name != self.baseline]
    return [self.baseline, *(name for name in self.variants if name in others)]

  @property
  def knobs(self) -> tuple[str, ...]:
    """Names of the parameters that may be adjusted, in order of preference."""
    return (self.knob,) if isinstance(self.knob, str) else tuple(self.knob)

  def published_results(self) -> Published | None:
    """Returns the published results of the variants; None without any."""
    return published_results(
      self.published, self.published_goal, self.published_label, self.groups, self.variants
    )

  @property
  def name(self) -> str:
    """Stem of the sweep file."""
    return self.file.stem

  @property
  def base_files(self) -> tuple[str, ...]:
    """Paths of the gin files of the base."""
    names = [self.base] if isinstance(self.base, str) else self.base
    return tuple(self._find(name, 'Sweep.base') for name in names)

  def points(self) -> Iterator[dict[str, Any]]:
    """Yields every point of the grid as values by axis; a single empty point without a grid."""
    for values in itertools.product(*self.grid.values()):
      yield dict(zip(self.grid, values, strict=True))

  def arms(self) -> Iterator[Arm]:
    """Yields every variant at every point of the grid, the baseline first at each point."""
    for point in self.points():
      for name in self.names:
        plain_point = {axis: plain(value) for axis, value in point.items()}
        if self.cells is not None and (name, plain_point) not in self.cells:
          continue
        changes, files = self.variants[name], self.base_files
        own: tuple[str, ...] = ()
        if isinstance(changes, str):
          own, changes = (self._find(changes, f"Sweep.variants['{name}']"),), {}
          # Files that it includes are not checked: they may be those of the base.
          read = config_lib.parse_files(own).statements
          self._check_bound(name, (s.target for s in read if s.place.file == own[0]))
        bindings = tuple(f'{k}={config_lib.to_gin(v)}' for k, v in (point | dict(changes)).items())
        yield Arm(name, point, (*files, *own), (*self.shared, *bindings), own, bindings)

  def _check_bound(self, variant: str, names: Iterable[Any]) -> None:
    """Refuses names that are bound by the grid or the seeds."""
    where = f"Sweep.variants['{variant}']"
    for name in names:
      if not isinstance(name, str):
        raise UserError(f'{where} binds {name!r}, which is not a name')
      _refuse_seed(name, where)
      if name in self.grid:
        raise UserError(f'{where} binds {name}, an axis of Sweep.grid: remove it from one of them')

  def _find(self, name: str, setting: str) -> str:
    for path in (self.file.parent / name, Path(config_lib.gin_path(name))):
      if path.is_file():
        return str(path)
    raise UserError(f"{self.file}: {setting}: there is no file '{name}'")


# Fields that are no settings of a sweep file.
_NO_BINDINGS = {'file', 'shared', 'trials', 'accept_changed', 'cells', 'first_tuning_seed'}
# Settings whose error messages do not name them as `Sweep.NAME`.
_NAMES = {'file': 'the name of the sweep file', 'tune': 'Tune.parameter'}


def _is_seed(name: str) -> bool:
  return re.fullmatch(r'(.*[/.])?Trainer\.seed', name) is not None


def _refuse_seed(name: str, where: str) -> None:
  if _is_seed(name):
    raise UserError(f'{where} binds {name}: set Sweep.seeds instead')


def read_sweep(file: str | Path, overrides: Sequence[str] = ()) -> Sweep:
  """Reads a sweep file.

  Args:
    file: the sweep file.
    overrides: bindings `NAME=VALUE`. Those of `Sweep` and `Tune` override the file, others apply to all trials.

  Raises:
    UserError: the file cannot be read, or has invalid bindings, with one line for each.
  """
  file = config_lib.gin_path(str(file))
  parsed = config_lib.parse_files([file], overrides)
  config_lib.raise_findings(parsed.findings)
  if not any(map(is_sweep_binding, parsed.statements)):
    raise UserError(
      f'{file} is not a sweep file: it does not bind Sweep; run an experiment with `t2x train {file}`'
    )
  macros = {s.macro_name: s for s in parsed.statements if s.is_macro}
  _refuse_loops(macros)
  message = 'imports of a sweep file have no effect on trials: move it to a file of Sweep.base'
  findings = [config_lib.Finding(line.place, f'{line.text}: {message}') for line in parsed.imports]
  shared: list[config_lib.Statement] = []
  own: dict[str, list[config_lib.Statement]] = {'Sweep': [], 'Tune': []}
  for statement in parsed.statements:
    if statement.name in own and not statement.is_macro:
      own[statement.name].append(statement)
      continue
    shared.append(statement)
    if _is_seed(statement.target):
      message = f'{statement.target}: set Sweep.seeds instead'
      findings.append(config_lib.Finding(statement.place, message))
  settings = _settings(Sweep, own['Sweep'], macros, findings)
  tune = _settings(Tune, own['Tune'], macros, findings)
  config_lib.raise_findings(findings)
  missing = {'base', 'variants', 'baseline'} - settings.keys()
  if missing:
    required = ', '.join(f'Sweep.{name}' for name in sorted(missing))
    raise UserError(f'{file}: {required} must be set')
  try:
    if tune or 'tune' in settings:
      settings['tune'] = _tune(settings, tune)
    sweep = Sweep(**settings, file=Path(file))
  except UserError as error:
    raise UserError(f'{file}: {error}') from error
  values = [statement.value for statement in (*own['Sweep'], *own['Tune'])]
  sweep_macros = config_lib.macros_in(values, macros).keys()
  dropped = sweep_macros - _trial_macros(sweep, shared, sweep_macros, macros)
  statements = [s for s in shared if not (s.is_macro and s.macro_name in dropped)]
  lines = tuple(f'{s.target}={config_lib.to_gin(s.value)}' for s in statements)
  return dataclasses.replace(sweep, shared=lines)


_Macros = Mapping[str, config_lib.Statement]


def _settings(
  cls: type, statements: Iterable[config_lib.Statement], macros: _Macros, findings: list
) -> dict[str, Any]:
  """Returns the values of the bindings of a dataclass; appends one finding for each invalid one."""
  hints = typing.get_type_hints(cls, include_extras=True)
  names = {f.name for f in dataclasses.fields(cls)} - _NO_BINDINGS
  settings: dict[str, Any] = {}
  for statement in statements:
    name, value = statement.param, config_lib.expanded(statement.value, macros)
    if statement.scope:
      message = f'{statement.target}: {cls.__name__} has no scopes'
    elif name not in names:
      hint = did_you_mean(name, names) or f'; it has {", ".join(sorted(names))}'
      message = f"{cls.__name__} has no parameter '{name}'{hint}"
    elif problem := config_lib.problem(value, hints[name], lambda _: None):
      message = f'{cls.__name__}.{name} {problem}'
    else:
      settings[name] = value
      continue
    findings.append(config_lib.Finding(statement.place, message))
  return settings


def _tune(settings: Mapping[str, Any], tune: Mapping[str, Any]) -> Tune | None:
  """Builds `Sweep.tune` from the bindings of Sweep and Tune. `Sweep.tune = None` switches it off."""
  if 'tune' not in settings:
    raise UserError(f'Tune.{next(iter(tune))} has no effect: set Sweep.tune = @Tune()')
  if settings['tune'] is None:
    return None
  if config_lib.to_gin(settings['tune']) != '@Tune()':
    text = config_lib.to_gin(settings['tune'])
    raise UserError(f'Sweep.tune must be @Tune() or None, got {text}')
  if 'parameter' not in tune:
    raise UserError('Tune.parameter must be set')
  return Tune(**tune)


def _trial_macros(
  sweep: Sweep, shared: Sequence[config_lib.Statement], own: Set[str], macros: _Macros
) -> Set[str]:
  """Returns the macros that the base, or the bindings of the sweep file for all trials, define or use.

  `own` are the macros that `Sweep` uses. Macros that occur only in their definitions do not count.
  """
  base = config_lib.parse_files(sweep.base_files).statements
  values = [s.value for s in (*base, *shared) if not (s.is_macro and s.macro_name in own)]
  values += [config_lib.Macro(s.macro_name) for s in base if s.is_macro]
  return config_lib.macros_in(values, macros).keys()


def _refuse_loops(macros: _Macros) -> None:
  for name, statement in macros.items():
    if name in config_lib.macros_in([statement.value], macros):
      raise UserError(f'{statement.place}: macro %{name} refers to itself')
