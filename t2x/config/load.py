"""From gin files to a checked config, and from that to the object they describe."""

import dataclasses
import functools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from t2x.config.bindings import Bindings
from t2x.config.check import binds_parts, check_unused, check_values, used_before
from t2x.config.parse import GinText, Import, Statement, macros_in, parse_files, parse_value
from t2x.config.registry import Registry
from t2x.config.resolve import Resolver, build, calls
from t2x.config.signature import Part
from t2x.config.values import COMMAND_LINE, Finding, Macro, Place, Reference, leaves, raise_findings
from t2x.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Config:
  """A config that has been read, checked and resolved, of which nothing is built yet.

  Attributes:
    root: the resolved tree (a `Call`, or what a macro root holds).
    statements: every binding as it was read, overridden ones included.
    imports: the user's modules.
    folders: where those modules were looked for.
    bindings: the table of winning statements.
    replaced: bindings of parts that a later file or the command line has replaced.
  """

  root: Any
  statements: Sequence[Statement]
  imports: Sequence[Import]
  folders: Sequence[str]
  bindings: Bindings
  replaced: Sequence[Statement] = ()

  @property
  def bindings_used(self) -> list[Statement]:
    """The statements that gave a value, in the order they were read; macros among them."""
    used = {statement for call in calls(self.root) for statement in call.bound.values()}
    used |= set(macros_in([one.value for one in used], self.bindings.macros).values())
    return [statement for statement in self.statements if statement in used]

  def name_of(self, part: Part) -> str:
    """The shortest name that means a part."""
    return self.bindings.registry.name_of(part)

  def notes(self) -> list[str]:
    """What a user should know of a config that is right."""
    names = [f'{one.target} ({one.place})' for one in self.replaced]
    return [f'not used, as their parts were replaced: {", ".join(names)}'] if names else []

  def build(self, hyperparameters: Collection[str] = ()) -> Any:
    """The object that the config describes; a new one at each call.

    `hyperparameters`: parameters that get a `Hyperparameter` in place of their value, as
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
) -> Config:
  """Reads, checks and resolves a config; builds nothing.

  Args:
    files: one gin file or several, read in order; also text that a program has written.
    overrides: `NAME=VALUE` each, as after `--gin.`; they win over files, also over scoped bindings.
    registry_modules: modules whose `__all__` may be named.
    root: the part to build (`Experiment`), or any gin value (`@LanguageModel`, `%model`).
    base: a config of some of these files, complete in itself, whose parts the other files and the
      overrides may replace: what only the base used is then no error.
    without: names that these modules export and no config may use.
    folders: where the user's modules are looked for, beside the working directory; None: where the
      files are, and the folders that they name.

  Raises:
    UserError: everything that is wrong, a line each, sorted by file and line.
  """
  files = [files] if isinstance(files, (str, os.PathLike, GinText)) else list(files)
  parsed = parse_files(files, overrides)
  registry = Registry.of(registry_modules, without)
  folders = parsed.folders if folders is None else folders
  import_findings = registry.load(parsed.imports, folders)
  complete = parsed.complete and not import_findings
  if import_findings and not parsed.findings:
    # What the module would have brought is missing everywhere: tell the cause alone.
    raise_findings(import_findings)
  bindings = Bindings(registry, parsed.statements, complete=complete)
  bindings.findings += parsed.findings + import_findings
  place = _root_place(root, parsed.statements, files)
  value = _root_value(root, bindings, place)
  refused = check_values(bindings)
  resolver = Resolver(bindings, refused)
  tree = resolver.value(value, (), place, 'the root')
  replaced: list[Statement] = []
  # Where a refused value should have held parts, what they would use is no second error.
  if complete and not any(binds_parts(bindings, statement) for statement in refused):
    known = {(s.place, s.target) for s in base.statements} if base else set()
    earlier = functools.cache(lambda: set(used_before(registry, parsed.statements, value)))

    def excused(statement: Statement) -> bool:
      if statement in refused or (statement.place, statement.target) in known:
        return True
      if statement in earlier():
        replaced.append(statement)
        return True
      return False

    check_unused(bindings, resolver, value, root.strip('@%()'), excused)
  raise_findings(bindings.findings)
  return Config(tree, parsed.statements, parsed.imports, folders, bindings, tuple(replaced))


def _root_value(root: str, bindings: Bindings, place: Place) -> Any:
  value = parse_value(root) if root[:1] in ('@', '%') else Reference('', root, True)
  for leaf in leaves(value):
    if isinstance(leaf, Reference) and (message := bindings.reference_problem(leaf.name)):
      raise UserError(str(Finding(place, message)))
    if isinstance(leaf, Macro) and leaf.name not in bindings.macros:
      raise UserError(str(Finding(place, f'macro %{leaf.name} is not defined')))
  return value


def _root_place(root: str, statements: Sequence[Statement], files: Sequence[Any]) -> Place:
  """Where the root is first bound; the first line of the first file when it is not."""
  name = root.strip('@%()')
  for statement in statements:
    if statement.name == name:
      return statement.place
  if files and isinstance(files[0], GinText):
    return Place(files[0].source, 0)
  return Place(os.fspath(files[0]), 1) if files else COMMAND_LINE
