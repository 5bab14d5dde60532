"""Parses gin files with gin-config's parser into a list of statements with file and line.

Include paths are relative to the including file, then to the working directory, or begin with 't2x:'; gin-config
supports neither. A file is read only once, at its first include, so that a second include never resets bindings
that were set in between.
"""

import dataclasses
import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gin import config_parser

from t2x.base.errors import UserError
from t2x.config.shipped import PREFIX, gin_path, unreadable
from t2x.config.values import (
  COMMAND_LINE,
  Finding,
  Macro,
  Place,
  Reference,
  leaves,
  map_leaves,
)

__all__ = ['GinText', 'Statement', 'expanded', 'macros_in', 'parse_files']

# Search folder in a rendered config, so that a run folder finds the user's modules.
SEARCH_COMMENT = '# modules in: '
# Digest of one of the user's modules in a rendered config.
PIN_COMMENT = '# module '


@dataclasses.dataclass(frozen=True)
class GinText:
  """Generated gin text, which is read like a file but must not import or include.

  Attributes:
    text: the gin text.
    source: the origin of the text, for error messages.
  """

  text: str
  source: str


@dataclasses.dataclass(frozen=True, eq=False)
class Statement:
  """`scope/name.param = value`, or the macro `name = value` if `param` is ''.

  Attributes:
    scope: the scope, '' without one.
    name: the name of a part or macro.
    param: the parameter, '' for a macro.
    value: literals, containers, References and Macros.
    place: file and line of the value.
    named_at: file and line of the name: the first line of a block, else `place`.
  """

  scope: str
  name: str
  param: str
  value: object
  place: Place
  named_at: Place

  @property
  def is_macro(self) -> bool:
    return not self.param

  @property
  def macro_name(self) -> str:
    return f'{self.scope}/{self.name}' if self.scope else self.name

  @property
  def target(self) -> str:
    """The left-hand side of the statement."""
    return f'{self.macro_name}.{self.param}' if self.param else self.macro_name


@dataclasses.dataclass(frozen=True)
class Import:
  """An import statement: `import module`, `import module as alias` or `from package import module`."""

  module: str
  alias: str | None
  is_from: bool
  text: str
  place: Place


@dataclasses.dataclass(frozen=True)
class Pin:
  """The digest of a user's module in a rendered config: `# module my_parts: 0123456789ab`.

  Attributes:
    folder: the folder of the gin file.
  """

  module: str
  digest: str
  place: Place
  folder: str


@dataclasses.dataclass
class Parsed:
  """The contents of all files, by real path. `complete` is False if some of them could not be read."""

  statements: list[Statement] = dataclasses.field(default_factory=list)
  imports: list[Import] = dataclasses.field(default_factory=list)
  files: list[str] = dataclasses.field(default_factory=list)
  folders: list[str] = dataclasses.field(default_factory=list)
  pins: list[Pin] = dataclasses.field(default_factory=list)
  findings: list[Finding] = dataclasses.field(default_factory=list)
  complete: bool = True

  def error(self, place: Place, message: str) -> None:
    self.findings.append(Finding(place, message))
    self.complete = False


def macros_in(values: Iterable[Any], macros: Mapping[str, Statement]) -> dict[str, Statement]:
  """Returns the macros that values refer to, directly or through other macros, by name."""
  used: dict[str, Statement] = {}
  pending = list(values)
  while pending:
    for leaf in leaves(pending.pop()):
      if isinstance(leaf, Macro) and leaf.name in macros and leaf.name not in used:
        used[leaf.name] = macros[leaf.name]
        pending.append(macros[leaf.name].value)
  return used


def expanded(value: object, macros: Mapping[str, Statement], around: tuple[str, ...] = ()) -> Any:
  """Replaces macros by their values, except undefined and circular ones.

  Args:
    value: a parsed value.
    macros: definitions by name.
    around: names of the macros that are being expanded.
  """

  def expand(leaf):
    if not isinstance(leaf, Macro) or leaf.name not in macros or leaf.name in around:
      return leaf
    return expanded(macros[leaf.name].value, macros, (*around, leaf.name))

  return map_leaves(expand, value)


class _Delegate(config_parser.ParserDelegate):
  """Represents references and macros as plain values."""

  def configurable_reference(self, scoped_configurable_name, evaluate):
    scope, _, name = scoped_configurable_name.rpartition('/')
    return Reference(scope, name, evaluate)

  def macro(self, macro_name):
    return Macro(macro_name)


class _Parser(config_parser.ConfigParser):
  """Rejects duplicate keys in a dict, of which gin silently uses the last."""

  def __init__(self, text: str):
    self._keys: list[list[Any]] = []
    super().__init__(text, _Delegate())

  def _maybe_parse_container(self):
    self._keys.append([])
    container = super()._maybe_parse_container()
    self._keys.pop()
    return container

  def _parse_dict_item(self):
    line = self.current_token.start[0]
    key, value = super()._parse_dict_item()
    if key in self._keys[-1]:
      raise SyntaxError(f'the dict has the key {key!r} twice', (None, line, None, None))
    self._keys[-1].append(key)
    return key, value


def parse_value(text: str) -> Any:
  """Parses one gin expression. Raises SyntaxError."""
  statements = list(_statements(f'x = {text}\n'))
  if len(statements) != 1 or not isinstance(statements[0], config_parser.BindingStatement):
    raise SyntaxError('expected one value', (None, 1, None, text))
  return statements[0].value


def _statements(text: str):
  """Yields gin's statements; every failure of its parser becomes a SyntaxError with a line."""
  line = 1
  parser = None
  try:
    parser = _Parser(text)
    while (statement := parser.parse_statement()) is not None:
      yield statement
  except SyntaxError as error:
    line = error.lineno or line
    raise SyntaxError(_clear_message(error.msg), (None, line, None, None)) from None
  except tokenize.TokenError as error:
    message, (line, _) = error.args
    if opened := _open_bracket(text):
      message, line = f"'{opened.string}' is never closed", opened.start[0]
    raise SyntaxError(_first_line(message), (None, line, None, None)) from None
  except (ValueError, TypeError, StopIteration, RecursionError) as error:
    token = parser.current_token if parser else None
    line = token.start[0] if token else line
    raise SyntaxError(_first_line(str(error)), (None, line, None, None)) from None


def _clear_message(message: str | None) -> str:
  word = re.search(r"Failed to parse token '([A-Za-z_]\w*)'", message or '')
  if word is None:
    return _first_line(message)
  return (
    f"{word[1]} is not a value: write @{word[1]} (part), %{word[1]} (macro) or '{word[1]}' (string)"
  )


def _first_line(message: str | None) -> str:
  return (message or 'invalid syntax').splitlines()[0].rstrip('. ')


def _open_bracket(text: str) -> tokenize.TokenInfo | None:
  """Returns the innermost bracket that is not closed at the end of the text."""
  stack: list[tokenize.TokenInfo] = []
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == tokenize.OP and token.string in '([{':
        stack.append(token)
      elif token.type == tokenize.OP and token.string in ')]}' and stack:
        stack.pop()
  except (tokenize.TokenError, SyntaxError):
    pass
  return stack[-1] if stack else None


def parse_files(
  files: Iterable[str | os.PathLike | GinText], overrides: Iterable[str] = ()
) -> Parsed:
  """Reads files in order, then `NAME=VALUE` overrides; errors become findings of the result."""
  parsed = Parsed()
  done: set[str] = set()
  for file in files:
    if isinstance(file, GinText):
      _read_text(file, parsed)
    else:
      _read(os.fspath(file), None, parsed, done, [])
  for override in overrides:
    _read_override(override, parsed)
  return parsed


def _read_text(generated: GinText, parsed: Parsed) -> None:
  place = Place(generated.source, 0)
  if any(line.startswith(SEARCH_COMMENT) for line in generated.text.splitlines()):
    parsed.error(place, 'the generated config must not name module folders')
  try:
    for statement in _statements(generated.text):
      if isinstance(statement, (config_parser.ImportStatement, config_parser.IncludeStatement)):
        parsed.error(place, 'the generated config must not import modules or include files')
      elif isinstance(statement, config_parser.BindingStatement):
        target = statement.scope, statement.selector, statement.arg_name
        parsed.statements.append(Statement(*target, statement.value, place, place))
  except SyntaxError as error:
    parsed.error(place, f'syntax error in the generated config: {error.msg}')


def _read(name: str, included_at: Place | None, parsed: Parsed, done: set[str], stack: list[str]):
  place = included_at or Place(name, 1)
  try:
    path = gin_path(name) if included_at is None else name
  except UserError as error:
    parsed.error(COMMAND_LINE, str(error))
    return
  real = os.path.realpath(path)
  if real in stack:
    chain = ' -> '.join(os.path.basename(p) for p in [*stack[stack.index(real) :], real])
    parsed.error(place, f'include loop: {chain}')
    return
  if real in done:
    return
  done.add(real)
  try:
    text = Path(path).read_text(encoding='utf-8')
  except UnicodeDecodeError:
    parsed.error(place, f"'{path}' is not a UTF-8 text file")
    return
  except OSError as error:
    if included_at is None:
      parsed.error(Place(path, 0), f'cannot read the config file: {unreadable(path, error)}')
    else:
      parsed.error(place, f"cannot read '{path}': {error.strerror or error}")
    return
  parsed.files.append(real)
  parsed.folders.append(os.path.dirname(real))
  for line in text.splitlines():
    if line.startswith(SEARCH_COMMENT):
      parsed.folders.append(line.removeprefix(SEARCH_COMMENT).strip())
  parsed.pins += pins_in(text, path)
  try:
    _read_statements(text, path, parsed, done, [*stack, real])
  except SyntaxError as error:
    parsed.error(Place(path, error.lineno or 1), f'syntax error: {error.msg}')


def pins_in(text: str, path: str) -> Iterator[Pin]:
  """Yields the digests of modules that a rendered config names."""
  for number, line in enumerate(text.splitlines(), 1):
    if match := re.fullmatch(rf'{PIN_COMMENT}((?:\w+\.)*\w+): ([0-9a-f]{{12}})', line):
      folder = os.path.dirname(os.path.realpath(path))
      yield Pin(match[1], match[2], Place(path, number), folder)


def _read_statements(text: str, path: str, parsed: Parsed, done: set[str], stack: list[str]):
  block: Place | None = None
  own: dict[str, Statement] = {}
  for statement in _statements(text):
    place = Place(path, statement.location.line_num)
    if isinstance(statement, config_parser.BlockDeclaration):
      block = place
    elif isinstance(statement, config_parser.IncludeStatement):
      try:
        included = _find_include(statement.filename, path)
      except UserError as error:
        parsed.error(place, str(error))
        continue
      if included is None:
        parsed.error(
          place,
          f"cannot include '{statement.filename}': it is neither in the folder of this file nor in the "
          'working directory',
        )
      else:
        before = len(parsed.statements)
        _read(included, place, parsed, done, stack)
        _check_lost(parsed, own, before, place)
    elif isinstance(statement, config_parser.ImportStatement):
      parsed.imports.append(
        Import(statement.module, statement.alias, statement.is_from, statement.format(), place)
      )
    else:
      # gin sets the column only for bindings in a block.
      named_at = (block or place) if statement.location.char_num is not None else place
      parsed.statements.append(
        Statement(
          statement.scope, statement.selector, statement.arg_name, statement.value, place, named_at
        )
      )
      own[parsed.statements[-1].target] = parsed.statements[-1]


def _check_lost(parsed: Parsed, own: dict[str, Statement], before: int, include: Place) -> None:
  """Reports bindings of a file that the file included below them, from statement `before` on, overrides."""
  for statement in parsed.statements[before:]:
    earlier = own.pop(statement.target, None)
    if earlier is not None and earlier.value != statement.value:
      parsed.error(
        earlier.place,
        f'{earlier.target} has no effect: {statement.place} binds it again, which line {include.line} includes; '
        f'move this binding below that line',
      )


def _find_include(name: str, path: str) -> str | None:
  if name.startswith(PREFIX):
    return gin_path(name)
  for folder in (os.path.dirname(path), ''):
    candidate = os.path.normpath(os.path.join(folder, os.path.expanduser(name)))
    if os.path.isfile(candidate):
      return candidate
  return None


def _read_override(override: str, parsed: Parsed) -> None:
  """Parses `NAME=VALUE`. A word that is not a gin value is a string."""
  name, equals, text = override.partition('=')
  name = name.strip().removeprefix('--gin.')
  if not equals or not text.strip():
    parsed.error(COMMAND_LINE, f"'--gin.{name}' has no value: write --gin.NAME=VALUE")
    return
  if not re.fullmatch(r'(\w+/)*\w+(\.\w+)*', name):
    parsed.error(COMMAND_LINE, f"'{name}' is not a valid name: write --gin.Name.param=VALUE")
    return
  try:
    value = parse_value(text.strip())
  except SyntaxError as error:
    if not re.fullmatch(r'[^\s@%\'"\[\](){},=#]+', text.strip()):
      parsed.error(COMMAND_LINE, f'syntax error in --gin.{override}: {error.msg}')
      return
    value = text.strip()
  scope, _, selector = name.rpartition('/')
  part, _, param = selector.rpartition('.')
  if not part:
    part, param = param, ''
  parsed.statements.append(Statement(scope, part, param, value, COMMAND_LINE, COMMAND_LINE))
