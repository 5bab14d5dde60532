"""Loads gin files into a checked config, which builds the object that they describe."""

import dataclasses
import functools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from t2x.base.errors import UserError
from t2x.config.bindings import Bindings
from t2x.config.check import (
  binds_parts,
  check_unused,
  check_values,
  inherited_positions,
  used_before,
)
from t2x.config.moved import current
from t2x.config.parse import GinText, Import, Statement, macros_in, parse_files, parse_value
from t2x.config.registries import Registry
from t2x.config.resolve import PartCall, Resolver, build, calls
from t2x.config.signature import Part
from t2x.config.used_modules import Used, used_modules
from t2x.config.values import COMMAND_LINE, Finding, Macro, Place, Reference, leaves, raise_findings

__all__ = ['Config', 'load', 'registry']


@dataclasses.dataclass(frozen=True, eq=False)
class Config:
  """A resolved and checked config. Nothing is built yet.

  Attributes:
    root: the resolved tree (a `PartCall`, or the value of a macro root).
    statements: all statements in reading order, including overridden ones.
    imports: import statements of the user's modules.
    files: real paths of the gin files and their includes.
    folders: search folders of the user's modules.
    bindings: the table of bindings.
    replaced: bindings of parts that a later file or the command line replaces.
    used: the user's modules on which the config depends.
  """

  root: PartCall
  statements: Sequence[Statement]
  imports: Sequence[Import]
  files: Sequence[str]
  folders: Sequence[str]
  bindings: Bindings
  replaced: Sequence[Statement] = ()
  used: Used = Used()

  @property
  def bindings_used(self) -> list[Statement]:
    """The statements that set a used value, including macros, in reading order."""
    used = {statement for call in calls(self.root) for statement in call.bound.values()}
    used |= set(macros_in([statement.value for statement in used], self.bindings.macros).values())
    return [statement for statement in self.statements if statement in used]

  def name_of(self, part: Part) -> str:
    """Returns the shortest unambiguous name of a part."""
    return self.bindings.registry.name_of(part)

  def _parts(self) -> list[Part]:
    return [*{id(call.part): call.part for call in calls(self.root)}.values()]

  def packages(self) -> dict[str, list[str]]:
    """Returns the optional packages that parts declare, each with the names of these parts."""
    users: dict[str, list[str]] = {}
    for part in self._parts():
      for package in getattr(part.obj, 'packages', ()):
        users.setdefault(package, []).append(part.name)
    return users

  def notes(self) -> list[str]:
    """Returns remarks on a valid config, such as replaced bindings."""
    names = [f'{statement.target} ({statement.place})' for statement in self.replaced]
    notes = [f'not used, because their parts were replaced: {", ".join(names)}'] if names else []
    for part in self._parts():
      if hidden := self.bindings.registry.hidden_by(part):
        notes.append(f'{part.name} is that of {part.obj.__module__}, not {" or ".join(hidden)}')
    return [*notes, *inherited_positions(self.root)]

  def build(self, hyperparameters: Collection[str] = ()) -> Any:
    """Builds a new object from the config.

    Args:
      hyperparameters: parameters that get a `Hyperparameter` instead of their value, as
        'scope/Name.param' (see `t2x.config.hyperparameters`).
    """
    return build(self.root, hyperparameters)


def load(
  files: Iterable[str | os.PathLike | GinText] | str | os.PathLike | GinText,
  overrides: Iterable[str] = (),
  registry_modules: Iterable[str] = (),
  root: str = 'Experiment',
  base: Config | None = None,
  without: Collection[str] = (),
  folders: Sequence[str] | None = None,
  overriding: Collection[str] = (),
) -> Config:
  """Reads, checks and resolves a config; builds nothing.

  Args:
    files: one or several gin files or generated gin texts, read in order.
    overrides: `NAME=VALUE` each, as after `--gin.`; they override files, including scoped bindings.
    registry_modules: modules whose `__all__` configs may use.
    root: the part to build (`Experiment`), or any gin value (`@LanguageModel`, `%model`).
    base: a complete config of some of these files, with parts that the remaining files and the overrides may
      replace; bindings that only the base uses are then not an error.
    without: exported names of these modules that configs must not use.
    folders: search folders of today's versions of the user's modules, besides the working directory; None: the folders
      of the files and the folders that they name, for modules with the digests in the files.
    overriding: files whose bindings override scoped bindings of other files, as `overrides` do.

  Raises:
    UserError: one line per error, sorted by file and line.
  """
  files = [files] if isinstance(files, (str, os.PathLike, GinText)) else list(files)
  parsed = parse_files(files, overrides)
  registry = Registry.of(registry_modules, without)
  pins = parsed.pins if folders is None else ()
  folders = parsed.folders if folders is None else folders
  import_findings = registry.load(parsed.imports, folders, pins)
  complete = parsed.complete and not import_findings
  if import_findings and not parsed.findings:
    # Every name of the module is missing: report only the cause.
    raise_findings(import_findings)
  parsed.statements = [*current(parsed.statements, registry, parsed.findings)]
  bindings = Bindings(registry, parsed.statements, complete=complete, overriding=overriding)
  bindings.findings += parsed.findings + import_findings
  place = _root_place(root, parsed.statements, files)
  value = _root_value(root, bindings, place)
  refused = check_values(bindings)
  resolver = Resolver(bindings, refused)
  tree = resolver.value(value, (), place, 'the root')
  replaced: list[Statement] = []
  # Parts in an invalid value cannot be resolved: their bindings would be reported as unused.
  if complete and not any(binds_parts(bindings, statement) for statement in refused):
    in_base = {(s.place, s.target) for s in base.statements} if base else set()
    earlier = functools.cache(lambda: set(used_before(registry, parsed.statements, value)))

    def is_exempt(statement: Statement) -> bool:
      if statement in refused or (statement.place, statement.target) in in_base:
        return True
      if statement in earlier():
        replaced.append(statement)
        return True
      return False

    # `t2x.sweeps` reports overridden bindings of variants, with their places.
    allow = base is not None
    check_unused(bindings, resolver, value, root.strip('@%()'), is_exempt, allow)
  raise_findings(bindings.findings)
  used = used_modules(tree, parsed.imports, registry)
  return Config(
    tree, parsed.statements, parsed.imports, parsed.files, folders, bindings, replaced, used
  )


def registry(
  packages: Sequence[str], without: Collection[str] = (), modules: Sequence[str] = ()
) -> Registry:
  """Returns the parts of packages and of the user's modules in the working directory.

  Args:
    packages: packages whose exports configs may use.
    without: exported names that configs must not use.
    modules: the user's modules.

  Raises:
    UserError: a module cannot be imported.
  """
  known = Registry.of(packages, without)
  imports = [Import(name, None, False, f'import {name}', COMMAND_LINE) for name in modules]
  raise_findings(known.load(imports, ()))
  return known


def _root_value(root: str, bindings: Bindings, place: Place) -> Any:
  value = parse_value(root) if root[:1] in ('@', '%') else Reference('', root, True)
  for leaf in leaves(value):
    if isinstance(leaf, Reference) and (message := bindings.reference_problem(leaf.name, place)):
      raise UserError(str(Finding(place, message)))
    if isinstance(leaf, Macro) and leaf.name not in bindings.macros:
      raise UserError(str(Finding(place, f'macro %{leaf.name} is not defined')))
  return value


def _root_place(root: str, statements: Sequence[Statement], files: Sequence[Any]) -> Place:
  """Returns the first binding of the root, else the first line of the first file."""
  name = root.strip('@%()')
  for statement in statements:
    if statement.name == name:
      return statement.place
  if files and isinstance(files[0], GinText):
    return Place(files[0].source, 0)
  return Place(os.fspath(files[0]), 1) if files else COMMAND_LINE
