"""Identifies the user's modules by the content of their files.

The user's modules are all modules outside installed packages, and the modules of installed packages that
require t2x. The digest of a module hashes its file as it was loaded, also from a zip archive. Installed
libraries have a version instead.
"""

import ast
import builtins
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from t2x.config.trusted import is_library

# Functions that change objects other than their result.
_CHANGES = {'setattr', 'delattr', 'exec', 'eval', '__import__'}


@dataclasses.dataclass(frozen=True)
class ModuleSource:
  """Content of a module's file.

  Attributes:
    digest: first 12 hexadecimal digits of the SHA-256 hash of the content.
    path: path of the file below a folder of modules ('pkg/part.py').
    imports: modules that it may import, also inside functions, with the packages that contain them.
    calls: modules whose functions its import calls; '' for calls of its own functions and statements that change other
      objects.
  """

  digest: str
  path: str
  content: bytes
  imports: tuple[str, ...]
  calls: frozenset[str]


def source_of(name: str) -> ModuleSource | None:
  """Returns the source of a module, loaded or not; None without a file and for other modules than the user's."""
  if not is_own(name):
    return None
  module, spec = sys.modules.get(name), spec_of(name)
  read = None if spec is None else getattr(spec.loader, 'get_data', None)
  if spec is None or spec.origin is None or read is None:
    return None
  # The file may change after it was loaded. A reload replaces the spec.
  cached = getattr(spec, 't2x_source', None)
  if cached is not None:
    return cached
  try:
    content = read(spec.origin)
  except OSError:
    return None
  source = _analysed(name, spec.origin, content, spec.submodule_search_locations is not None)
  if module is not None:
    spec.t2x_source = source  # type: ignore[attr-defined]
  return source


def digest_of(content: bytes) -> str:
  """Returns the digest of the content of a module's file."""
  return hashlib.sha256(content).hexdigest()[:12]


def only_moved_imports(before: bytes, after: bytes) -> bool:
  """Returns whether two versions of a module differ only in imports of names of t2x that have moved.

  A name has moved if the import of the first version fails today, and the second version imports the name from another
  module of t2x. Then the first version cannot run with this version of t2x, and the second is its code of today.
  Imports inside functions count as other code.

  Args:
    before: content of the file of the first version.
    after: that of the second version.
  """
  try:
    trees = ast.parse(before), ast.parse(after)
  except (SyntaxError, ValueError):
    return False
  (imports, code), (others, other_code) = map(_without_t2x, trees)
  removed, added = imports - others, others - imports
  return (
    code == other_code
    and len(removed) == len(added)
    and {names for _, names in removed} == {names for _, names in added}
    and all(_has_moved(module, name) for module, (name, _) in removed)
  )


def is_own(name: str) -> bool:
  """Returns whether a module is the user's: outside Python, t2x and installed libraries."""
  return not is_library(name.partition('.')[0])


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
  """Finds a module as an import would, without importing its parent packages."""
  spec: importlib.machinery.ModuleSpec | None = None
  path: Sequence[str] | None = None
  added: list[str] = []
  try:
    for module in reversed([*_with_parents(name)]):
      spec = _spec_in(module, path)
      if spec is None or module == name:
        return spec
      if spec.submodule_search_locations is None:
        return None
      path = [*spec.submodule_search_locations]
      if module not in sys.modules:
        # Finders look up the path of a package that contains a namespace package among the loaded modules.
        sys.modules[module] = package = types.ModuleType(module)
        package.__path__ = path
        added.append(module)
  finally:
    for module in added:
      del sys.modules[module]
  return spec


def _spec_in(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
  """Returns the spec of a module, loaded or in the folders of its parent package."""
  if name in sys.modules:
    return getattr(sys.modules[name], '__spec__', None)
  specs = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, 'find_spec'))
  return next((spec for spec in specs if spec is not None), None)


def module_defining(name: str, folders: Iterable[str]) -> str | None:
  """Returns the first module, not imported yet, whose file in one of the folders defines a class or function `name`."""
  definition = re.compile(rf'^(class|def) {re.escape(name)}\b', re.MULTILINE)
  for file in (file for folder in folders for file in sorted(Path(folder).glob('*.py'))):
    with contextlib.suppress(OSError):
      text = file.read_text(encoding='utf-8', errors='replace')
      if file.stem not in sys.modules and file.stem.isidentifier() and definition.search(text):
        return file.stem
  return None


def closure(names: Iterable[str]) -> dict[str, ModuleSource]:
  """Returns the sources of the user's modules among `names` and their imports, by module."""
  sources: dict[str, ModuleSource] = {}
  pending, visited = [*names], set[str]()
  while pending:
    name = pending.pop()
    if name in visited or not is_own(name):
      continue
    visited.add(name)
    pending += _with_parents(name)
    if (source := source_of(name)) is not None:
      sources[name] = source
      pending += source.imports
  return dict(sorted(sources.items()))


def has_effects(sources: dict[str, ModuleSource]) -> bool:
  """Returns whether importing the modules may change other objects, such as replace a part of t2x.

  Calls of the user's functions and statements for their effect count; definitions and calls of libraries do not.
  """
  return any(call == '' or is_own(call) for source in sources.values() for call in source.calls)


def version_of(name: str) -> str | None:
  """Returns the version of the installed library that contains a module; None without a version."""
  top = name.partition('.')[0]
  if top in sys.stdlib_module_names or top in ('t2x', '__main__'):
    return None
  for distribution in (top, *importlib.metadata.packages_distributions().get(top, ())):
    try:
      return f'version {importlib.metadata.version(distribution)}'
    except importlib.metadata.PackageNotFoundError:
      continue
  return None


@functools.lru_cache(maxsize=4096)
def _analysed(name: str, origin: str, content: bytes, is_package: bool) -> ModuleSource:
  file = Path(origin)
  path = name.replace('.', '/') + ('/__init__' if is_package else '') + ''.join(file.suffixes)
  digest, imports, calls = digest_of(content), set[str](), frozenset[str]()
  if file.suffix == '.py':
    try:
      tree = ast.parse(content)
    except (SyntaxError, ValueError):
      tree = ast.Module([], [])
    package = name if is_package else name.rpartition('.')[0]
    for node in ast.walk(tree):
      imports |= {part for module in _imported(node, package) for part in _with_parents(module)}
    calls = frozenset(_calls(tree, package))
  return ModuleSource(digest, path, content, tuple(sorted(imports)), calls)


def _without_t2x(tree: ast.Module) -> tuple[set[tuple[str, tuple[str, str]]], str]:
  """Returns the imports `from t2x... import name as alias` of a module as (module, (name, alias)), and the text of its
  other statements."""
  imports, others = set[tuple[str, tuple[str, str]]](), list[ast.stmt]()
  for node in tree.body:
    match node:
      case ast.ImportFrom(module=str(module), level=0) if module.partition('.')[0] == 't2x':
        imports |= {(module, (alias.name, alias.asname or alias.name)) for alias in node.names}
      case _:
        others.append(node)
  return imports, ast.dump(ast.Module(others, []))


def _has_moved(module: str, name: str) -> bool:
  """Returns whether a module of t2x, or its name, does not exist today."""
  if name == '*' or '__main__' in module:
    return False
  try:
    getattr(importlib.import_module(module), name)
  except (ImportError, AttributeError):
    return True
  return False


def _with_parents(name: str) -> Iterator[str]:
  """Yields a module and the packages that contain it."""
  while name:
    yield name
    name = name.rpartition('.')[0]


def _imported(node: ast.AST, package: str) -> Iterator[str]:
  """Yields the modules that a node may import; some names may be objects in a module."""
  if isinstance(node, ast.Import):
    yield from (alias.name for alias in node.names)
  elif isinstance(node, ast.ImportFrom):
    base = _absolute('.' * node.level + (node.module or ''), package)
    yield base
    yield from (f'{base}.{alias.name}' for alias in node.names if base)
  elif isinstance(node, ast.Call) and node.args:
    # A call of importlib with a constant.
    function, (first, *_) = ast.unparse(node.func).rpartition('.')[2], node.args
    if function in ('import_module', '__import__') and isinstance(first, ast.Constant):
      yield _absolute(str(first.value), package)


def _absolute(name: str, package: str) -> str:
  try:
    return importlib.util.resolve_name(name, package or None)
  except ImportError:
    return ''


def _calls(tree: ast.Module, package: str) -> Iterator[str]:
  """Yields the modules whose functions the import of a module calls; '' for effects on other objects."""
  homes: dict[str, str] = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      homes |= {alias.asname or alias.name.partition('.')[0]: alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = _absolute('.' * node.level + (node.module or ''), package)
      homes |= {alias.asname or alias.name: base for alias in node.names}
  for node in _executed(tree):
    if (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)) or (
      isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
    ):
      yield ''
    elif isinstance(node, ast.Call):
      root = _root(node.func)
      if root in homes:
        yield homes[root]
      elif root in _CHANGES or not hasattr(builtins, root or 'str'):
        # Any other name is defined by the module.
        yield ''


def _root(node: ast.expr) -> str:
  """Returns the first name of 'a.b(c).d'; '' if it starts with another expression."""
  while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
    node = node.func if isinstance(node, ast.Call) else node.value
  return node.id if isinstance(node, ast.Name) else ''


def _executed(node: ast.AST) -> Iterator[ast.AST]:
  """Yields the nodes that run when a module is imported, without the bodies of functions."""
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
    yield from (ast.Call(decorator, [], []) for decorator in node.decorator_list)
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
    inner: Iterable[ast.AST] = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
  elif isinstance(node, ast.If) and ast.unparse(node.test) in (
    "__name__ == '__main__'",
    'TYPE_CHECKING',
  ):
    inner = node.orelse
  else:
    inner = ast.iter_child_nodes(node)
  for child in inner:
    yield child
    yield from _executed(child)
