"""A sweep file: what is varied, over which seeds, and what is kept equal."""

import dataclasses
import itertools
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal

from t2x import config as config_lib
from t2x.errors import UserError

__all__ = ['Arm', 'Sweep', 'read_sweep', 'shown']


def shown(binding: str) -> str:
  """`NAME=VALUE` as a gin file has it: `NAME = VALUE`."""
  return binding.replace('=', ' = ', 1)


@dataclasses.dataclass(frozen=True)
class Arm:
  """A variant at a point of the grid: what trials that differ in the seed alone share.

  Attributes:
    variant: its name.
    point: the grid's values, by axis.
    files: gin files, in order.
    bindings: `NAME=VALUE` each, which win over the files.
    changes: what sets it apart from the base, a file or a binding each.
  """

  variant: str
  point: Mapping[str, Any]
  files: tuple[str, ...]
  bindings: tuple[str, ...]
  changes: tuple[str, ...]

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

  base: str | Sequence[str]
  variants: Mapping[str, Any]
  baseline: str
  only: Sequence[str] = ()
  seeds: int | Sequence[int] = 5
  grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  metric: str = 'loss'
  goal: Literal['min', 'max'] | None = None
  match: Literal['steps', 'parameters', 'flops_per_token', 'flops', 'seconds'] | None = 'steps'
  knob: str | Sequence[str] = ()
  tolerance: float = 0.01
  # Where it was read, and what its file binds beside it.
  file: Path = Path('sweep.gin')
  shared: tuple[str, ...] = ()

  def __post_init__(self):
    if self.baseline not in self.variants:
      raise UserError(f"Sweep.baseline = '{self.baseline}' is none of {', '.join(self.variants)}")
    for name in self.only:
      if name not in self.variants:
        hint = config_lib.did_you_mean(name, self.variants)
        raise UserError(f"Sweep.only holds '{name}', which is none of Sweep.variants{hint}")
    if not self.seed_list:
      raise UserError('Sweep.seeds is empty: there is nothing to run')
    if len(set(self.seed_list)) < len(self.seed_list):
      raise UserError(f'Sweep.seeds = {list(self.seed_list)} holds a seed twice')
    moves = self.match not in (None, 'steps')
    if moves and not self.knobs:
      raise UserError(f"Sweep.match = '{self.match}' needs Sweep.knob, the number that may move")
    if self.knobs and not moves:
      raise UserError(f'Sweep.knob = {self.knob!r} moves nothing: Sweep.match = {self.match!r}')
    for name, values in self.grid.items():
      if not isinstance(values, (list, tuple)) or not values:
        raise UserError(f"Sweep.grid['{name}'] wants a list of values, got {values!r}")
      texts = [config_lib.to_gin(value) for value in values]
      if twice := [text for text in texts if texts.count(text) > 1]:
        raise UserError(f"Sweep.grid['{name}'] holds {twice[0]} twice")
      _refuse_seed(name, f"Sweep.grid['{name}']")
    for name, given in self.variants.items():
      if not isinstance(given, (dict, str)):
        raise UserError(f"Sweep.variants['{name}'] is neither a dict of bindings nor a gin file")
      if isinstance(given, dict):
        self._check_bound(name, given)

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

  def arms(self) -> Iterator[Arm]:
    """Every variant at every point of the grid; at each point the baseline comes first."""
    chosen = [one for one in self.variants if one in (self.baseline, *(self.only or self.variants))]
    order = sorted(chosen, key=lambda name: name != self.baseline)
    for values in itertools.product(*self.grid.values()):
      point = dict(zip(self.grid, values, strict=True))
      for name in order:
        given, files = self.variants[name], self.base_files
        own: tuple[str, ...] = ()
        if isinstance(given, str):
          own, given = (self._find(given, f"Sweep.variants['{name}']"),), {}
          # What it includes may be the base once more.
          read = config_lib.parse_files(own).statements
          self._check_bound(name, (one.target for one in read if one.place.file == own[0]))
        bindings = tuple(f'{k}={config_lib.to_gin(v)}' for k, v in (point | dict(given)).items())
        changes = (*own, *map(shown, bindings))
        yield Arm(name, point, (*files, *own), (*self.shared, *bindings), changes)

  def _check_bound(self, variant: str, names: Iterable[str]) -> None:
    """Refuses what the grid or the seeds bind."""
    where = f"Sweep.variants['{variant}']"
    for name in names:
      _refuse_seed(name, where)
      if name in self.grid:
        raise UserError(f'{where} binds {name}, an axis of Sweep.grid: leave it to one of them')

  def _find(self, name: str, what: str) -> str:
    for path in (self.file.parent / name, Path(name)):
      if path.is_file():
        return str(path)
    raise UserError(f"{self.file}: {what}: there is no file '{name}'")


def _refuse_seed(name: str, where: str) -> None:
  if re.fullmatch(r'(.*[/.])?Trainer\.seed', name):
    raise UserError(f'{where} binds {name}: seeds are those of Sweep.seeds')


def read_sweep(file: str | Path, overrides: Sequence[str] = ()) -> Sweep:
  """Reads a sweep file; `--gin.Sweep.NAME=VALUE` wins over it, other overrides hold for all trials.

  Raises:
    UserError: it cannot be read, or its bindings do not fit, a line each.
  """
  parsed = config_lib.parse_files([file], overrides)
  config_lib.raise_findings(parsed.findings)
  macros = {s.macro_name: s for s in parsed.statements if s.is_macro}
  _refuse_loops(macros)
  hints = typing.get_type_hints(Sweep)
  known = {f.name for f in dataclasses.fields(Sweep)} - {'file', 'shared'}
  given: dict[str, Any] = {}
  message = 'what a sweep file imports reaches no trial: import it in a file of Sweep.base'
  findings = [config_lib.Finding(one.place, f'{one.text}: {message}') for one in parsed.imports]
  shared, own = [], []
  for statement in parsed.statements:
    if statement.name != 'Sweep' or statement.is_macro:
      shared.append(statement)
      continue
    name, value = statement.param, statement.value
    if name not in known:
      hint = config_lib.did_you_mean(name, known) or f'; it has {", ".join(sorted(known))}'
      message = f"Sweep has no parameter '{name}'{hint}"
      findings.append(config_lib.Finding(statement.place, message))
      continue
    own.append(value)
    value = _expanded(value, macros)
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


def _expanded(value: Any, macros: _Macros) -> Any:
  """The value with the sweep file's own macros replaced."""

  def one(leaf):
    if isinstance(leaf, config_lib.Macro) and leaf.name in macros:
      return _expanded(macros[leaf.name].value, macros)
    return leaf

  return config_lib.map_leaves(one, value)
