"""A sweep file: what is varied, over which seeds, and what is kept equal."""

import dataclasses
import itertools
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Literal

from t2x import config as config_lib
from t2x.errors import UserError, is_printable
from t2x.ranges import Count, NonEmpty, Rate, Seed, Text


def shown(binding: str) -> str:
  """`NAME=VALUE` as a gin file has it: `NAME = VALUE`."""
  return binding.replace('=', ' = ', 1)


def plain(value: Any) -> Any:
  """A value of the grid as plans and reports have it: gin text where it is no plain scalar."""
  if isinstance(value, str):
    return value if is_printable(value) else config_lib.to_gin(value)
  return (
    value if value is None or isinstance(value, bool | int | float) else config_lib.to_gin(value)
  )


@dataclasses.dataclass(frozen=True)
class Arm:
  """A variant at a point of the grid: what trials that differ in the seed alone share.

  Attributes:
    variant: its name.
    point: the grid's values, by axis.
    files: gin files, in order.
    bindings: `NAME=VALUE` each, which win over the files; later ones win over earlier ones.
    own_files: the gin files that the variant lays over the base.
    own_bindings: those of the variant and the point, the last ones of `bindings`.
  """

  variant: str
  point: Mapping[str, Any]
  files: tuple[str, ...]
  bindings: tuple[str, ...]
  own_files: tuple[str, ...]
  own_bindings: tuple[str, ...]

  @property
  def changes(self) -> tuple[str, ...]:
    """What sets it apart from the base, a file or a binding each."""
    return (*self.own_files, *map(shown, self.own_bindings))

  @property
  def title(self) -> str:
    """'geglu', or 'geglu, Stack.num_layers=4' on a grid."""
    axes = [f'{name}={config_lib.to_gin(value)}' for name, value in self.point.items()]
    return ', '.join([self.variant, *axes])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
  """The bindings `Sweep.NAME = ...` of a sweep file. Its other bindings and macros hold for all trials.

  Attributes:
    base: gin files that are the experiment, relative to the sweep file or to the working directory.
    variants: name -> bindings ({'MLP.activation': @gelu}: any name and value of a config, scopes
      included), or a gin file laid over the base. They win over the base, scoped bindings included.
    baseline: the variant that the others are compared with.
    only: names of variants that are to be run alone, beside the baseline; (): all.
    seeds: their number, or the seeds themselves.
    grid: name -> values; every variant is run at every point, and compared with the baseline there.
    metric: which of the evaluation's metrics decides.
    goal: 'min' or 'max': the better way; None: as the task has it for the metric that chooses its
      best checkpoint, 'min' for a loss; for others it is needed.
    match: what every variant has in common with the baseline: 'steps' (nothing moves), 'parameters',
      'flops_per_token', 'flops' (per token times tokens), 'seconds' (measured); None: not looked at.
    knob: the binding or macro, an integer, that moves until it matches ('MLP.hidden_dim',
      'Stack.num_layers', 'Trainer.num_steps', 'd_ff'); of several, the first that a variant has.
    tolerance: how far off a match may be, as a part of the baseline's.
  """

  base: Text | Annotated[Sequence[Text], NonEmpty]
  variants: Annotated[Mapping[str, Any], NonEmpty]
  baseline: Text
  only: Sequence[str] = ()
  seeds: Count | Annotated[Sequence[Seed], NonEmpty] = 5
  grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  metric: Text = 'loss'
  goal: Literal['min', 'max'] | None = None
  match: Literal['steps', 'parameters', 'flops_per_token', 'flops', 'seconds'] | None = 'steps'
  knob: str | Sequence[Text] = ()
  tolerance: Rate = 0.01
  # Where it was read, and what its file binds beside it.
  file: Path = Path('sweep.gin')
  shared: tuple[str, ...] = ()

  def __post_init__(self):
    self._check_names()
    if self.baseline not in self.variants:
      raise UserError(f"Sweep.baseline = '{self.baseline}' is none of {', '.join(self.variants)}")
    for name in self.only:
      if name not in self.variants:
        hint = config_lib.did_you_mean(name, self.variants)
        raise UserError(f"Sweep.only holds '{name}', which is none of Sweep.variants{hint}")
    self._check_seeds()
    moves = self.match not in (None, 'steps')
    if moves and not self.knobs:
      raise UserError(f"Sweep.match = '{self.match}' needs Sweep.knob, the number that may move")
    if self.knobs and not moves:
      raise UserError(f'Sweep.knob = {self.knob!r} moves nothing: Sweep.match = {self.match!r}')
    self._check_grid()
    for name, given in self.variants.items():
      if not isinstance(given, (dict, str)):
        raise UserError(f"Sweep.variants['{name}'] is neither a dict of bindings nor a gin file")
      if isinstance(given, dict):
        self._check_bound(name, given)

  def _check_names(self) -> None:
    """Refuses names that are empty or that would not be printed as they are."""
    files = [one for one in self.variants.values() if isinstance(one, str)]
    names = {
      'file': [self.file.name],
      'base': [self.base] if isinstance(self.base, str) else self.base,
      'variants': [*self.variants, *files],
      'baseline': [self.baseline],
      'only': self.only,
      'grid': [*self.grid],
      'metric': [self.metric],
      'knob': self.knobs,
    }
    for what, found in names.items():
      for name in found:
        if not name or name != name.strip() or not is_printable(name):
          where = 'the name of the sweep file' if what == 'file' else f'Sweep.{what}'
          raise UserError(
            f'{where}: {name!r} cannot be used as a name: it is empty, begins or ends with a space, '
            'or holds control characters'
          )

  def _check_seeds(self) -> None:
    if len(set(self.seed_list)) < len(self.seed_list):
      raise UserError(f'Sweep.seeds = {list(self.seed_list)} holds a seed twice')

  def _check_grid(self) -> None:
    for name, values in self.grid.items():
      where = f"Sweep.grid['{name}']"
      if not isinstance(values, (list, tuple)) or not values:
        raise UserError(f'{where} wants a list of values, got {values!r}')
      # As reports tell the points apart; 1 and 1.0 are one number.
      texts = [
        str(plain(one)) if isinstance(one, str) else config_lib.to_gin(one) for one in values
      ]
      numbers = [one for one in values if type(one) in (int, float)]
      twice = [one for one in (*texts, *numbers) if (*texts, *numbers).count(one) > 1]
      if twice:
        raise UserError(f'{where} holds {twice[0]} twice')
      _refuse_seed(name, where)
      if name in self.knobs:
        raise UserError(f'{where} is Sweep.knob too: the match would move it away from its points')

  @property
  def seed_list(self) -> tuple[int, ...]:
    """The seeds themselves."""
    return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

  @property
  def knobs(self) -> tuple[str, ...]:
    """The bindings that may move, in order of preference."""
    return (self.knob,) if isinstance(self.knob, str) else tuple(self.knob)

  @property
  def name(self) -> str:
    """The stem of its file."""
    return self.file.stem

  @property
  def base_files(self) -> tuple[str, ...]:
    """The base, found."""
    names = [self.base] if isinstance(self.base, str) else self.base
    return tuple(self._find(name, 'Sweep.base') for name in names)

  def points(self) -> Iterator[dict[str, Any]]:
    """Every point of the grid: a value for each axis; one empty one without a grid."""
    for values in itertools.product(*self.grid.values()):
      yield dict(zip(self.grid, values, strict=True))

  def arms(self) -> Iterator[Arm]:
    """Every variant at every point of the grid; at each point the baseline comes first."""
    chosen = [one for one in self.variants if one in (self.baseline, *(self.only or self.variants))]
    order = sorted(chosen, key=lambda name: name != self.baseline)
    for point in self.points():
      for name in order:
        given, files = self.variants[name], self.base_files
        own: tuple[str, ...] = ()
        if isinstance(given, str):
          own, given = (self._find(given, f"Sweep.variants['{name}']"),), {}
          # What it includes may be the base once more.
          read = config_lib.parse_files(own).statements
          self._check_bound(name, (one.target for one in read if one.place.file == own[0]))
        bindings = tuple(f'{k}={config_lib.to_gin(v)}' for k, v in (point | dict(given)).items())
        yield Arm(name, point, (*files, *own), (*self.shared, *bindings), own, bindings)

  def _check_bound(self, variant: str, names: Iterable[Any]) -> None:
    """Refuses what the grid or the seeds bind."""
    where = f"Sweep.variants['{variant}']"
    for name in names:
      if not isinstance(name, str):
        raise UserError(f'{where} binds {name!r}, which is no name')
      _refuse_seed(name, where)
      if name in self.grid:
        raise UserError(f'{where} binds {name}, an axis of Sweep.grid: leave it to one of them')

  def _find(self, name: str, what: str) -> str:
    for path in (self.file.parent / name, Path(name)):
      if path.is_file():
        return str(path)
    raise UserError(f"{self.file}: {what}: there is no file '{name}'")


def _is_seed(name: str) -> bool:
  return re.fullmatch(r'(.*[/.])?Trainer\.seed', name) is not None


def _refuse_seed(name: str, where: str) -> None:
  if _is_seed(name):
    raise UserError(f'{where} binds {name}: seeds are those of Sweep.seeds')


def binds_sweep(file: str | Path) -> bool:
  """Whether a gin file is a sweep file."""
  return any(map(_is_of_sweep, config_lib.parse_files([file]).statements))


def _is_of_sweep(statement: config_lib.Statement) -> bool:
  return statement.name == 'Sweep' and not statement.is_macro


def read_sweep(file: str | Path, overrides: Sequence[str] = ()) -> Sweep:
  """Reads a sweep file; `--gin.Sweep.NAME=VALUE` wins over it, other overrides hold for all trials.

  Raises:
    UserError: it cannot be read, or its bindings do not fit, a line each.
  """
  parsed = config_lib.parse_files([file], overrides)
  config_lib.raise_findings(parsed.findings)
  if not any(map(_is_of_sweep, parsed.statements)):
    raise UserError(
      f'{file} is no sweep file: it does not bind Sweep; an experiment is run by `t2x train {file}`'
    )
  macros = {s.macro_name: s for s in parsed.statements if s.is_macro}
  _refuse_loops(macros)
  hints = typing.get_type_hints(Sweep, include_extras=True)
  known = {f.name for f in dataclasses.fields(Sweep)} - {'file', 'shared'}
  given: dict[str, Any] = {}
  message = 'what a sweep file imports reaches no trial: import it in a file of Sweep.base'
  findings = [config_lib.Finding(one.place, f'{one.text}: {message}') for one in parsed.imports]
  shared, own = [], []
  for statement in parsed.statements:
    if not _is_of_sweep(statement):
      shared.append(statement)
      if _is_seed(statement.target):
        message = f'{statement.target}: seeds are those of Sweep.seeds'
        findings.append(config_lib.Finding(statement.place, message))
      continue
    name, value = statement.param, statement.value
    if statement.scope:
      message = f'{statement.target}: Sweep has no scopes'
      findings.append(config_lib.Finding(statement.place, message))
      continue
    if name not in known:
      hint = config_lib.did_you_mean(name, known) or f'; it has {", ".join(sorted(known))}'
      message = f"Sweep has no parameter '{name}'{hint}"
      findings.append(config_lib.Finding(statement.place, message))
      continue
    own.append(value)
    value = config_lib.expanded(value, macros)
    if problem := config_lib.problem(value, hints[name], lambda _: None):
      findings.append(config_lib.Finding(statement.place, f'Sweep.{name} {problem}'))
    given[name] = value
  config_lib.raise_findings(findings)
  missing = {'base', 'variants', 'baseline'} - given.keys()
  if missing:
    needs = ', '.join(f'Sweep.{name}' for name in sorted(missing))
    raise UserError(f'{file}: a sweep needs {needs}')
  try:
    sweep = Sweep(**given, file=Path(file))
  except UserError as error:
    raise UserError(f'{file}: {error}') from error
  mine = config_lib.macros_in(own, macros).keys()
  dropped = mine - _of_trials(sweep, shared, mine, macros)
  kept = [one for one in shared if not (one.is_macro and one.macro_name in dropped)]
  lines = tuple(f'{one.target}={config_lib.to_gin(one.value)}' for one in kept)
  return dataclasses.replace(sweep, shared=lines)


_Macros = Mapping[str, config_lib.Statement]


def _of_trials(
  sweep: Sweep, shared: Sequence[config_lib.Statement], own: Set[str], macros: _Macros
) -> Set[str]:
  """The macros that the base, or what the sweep file binds beside `Sweep`, defines or uses.

  `own`: the macros that `Sweep` uses, which tell nothing of those that they use themselves.
  """
  base = config_lib.parse_files(sweep.base_files).statements
  values = [one.value for one in (*base, *shared) if not (one.is_macro and one.macro_name in own)]
  values += [config_lib.Macro(one.macro_name) for one in base if one.is_macro]
  return config_lib.macros_in(values, macros).keys()


def _refuse_loops(macros: _Macros) -> None:
  for name, statement in macros.items():
    if name in config_lib.macros_in([statement.value], macros):
      raise UserError(f'{statement.place}: macro %{name} holds itself')
