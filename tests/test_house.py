"""The rules of the source tree: imports follow one order without circles; files and functions have maximum lengths."""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FILE, MAX_FUNCTION, MAX_TOP_LEVEL_FILES = 600, 100, 5
# Lengths above which a file or function is listed, never a reason to shorten it.
GUIDE_FILE, GUIDE_FUNCTION = 400, 60
# Tables of data have no maximum.
TABLES = {ROOT / 'tests' / 'mutations' / 'entries.py'}

# What each package and top-level file of t2x/ may import. `base` and `process` may be imported by all.
LAYERS = {'layers'}
MODELS = {'models', 'parallel'} | LAYERS
DECODE = {'decode'} | MODELS
TASKS = {'tasks', 'data'} | DECODE
TRAIN = {'train', 'run_folder'} | TASKS
EXPERIMENTS = {'experiments', 'config'} | TRAIN
INTEROP = {'interop'} | EXPERIMENTS
LOADED = {'loaded'} | INTEROP
API = {'api'} | LOADED
TOOLS = {'statistics', 'sweeps', 'plan', 'look', 'prune', 'testing'} | API
MAY_IMPORT = {
  'base': set(),
  'config': set(),
  'launch': set(),
  'process': set(),
  'run_folder': set(),
  'layers': set(),
  'data': set(),
  'models': LAYERS,
  'parallel': LAYERS,
  'decode': MODELS,
  'tasks': TASKS,
  'train': TRAIN,
  'experiments': EXPERIMENTS,
  'interop': INTEROP,
  'loaded': LOADED,
  'api': API,
  'statistics': set(),
  'sweeps': {'statistics'} | API,
  'plan': API,
  'look': API,
  'prune': API,
  'testing': API,
  'runs': TOOLS,
  'cli': {'runs', 'launch'} | TOOLS,
  '__init__': {'api', 'loaded', 'config', 'experiments'},
  '__main__': {'cli'},
}

# A unit per domain, which imports the core, and a unit for its files that connect it with the lab.
DOMAINS = sorted(path.name for path in (ROOT / 't2x' / 'domains').glob('[!_.]*'))
LAB_FILES = ('interop', 'look')
MAY_IMPORT |= {'domains': set(), 'samples': TASKS | {f'domains.{name}' for name in DOMAINS}}
MAY_IMPORT |= {f'domains.{name}': TRAIN for name in DOMAINS}
MAY_IMPORT |= {f'domains.{name} and the lab': TOOLS | {f'domains.{name}'} for name in DOMAINS}

FILES = sorted([*ROOT.glob('t2x/**/*.py'), *ROOT.glob('tests/**/*.py')])


@functools.cache
def tree_of(path: Path) -> ast.Module:
  return ast.parse(path.read_text())


def name_of(path: Path) -> str:
  """The dotted name of a module; that of a package for its `__init__.py`."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


PATHS = {name_of(path): path for path in ROOT.glob('t2x/**/*.py')}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
  """All nodes, those of lazy imports included, without blocks of `if TYPE_CHECKING`."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.unparse(node.test):
      continue
    yield node
    yield from nodes(node)


def imports(path: Path) -> Iterator[str]:
  """The dotted names that a file imports."""
  for node in nodes(tree_of(path)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: imports are absolute'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def module_of(name: str) -> str | None:
  """The module of t2x that holds an imported name."""
  while name and name not in PATHS:
    name = name.rpartition('.')[0]
  return name or None


def unit_of(module: str) -> str:
  """The package or top-level file of a module; a domain, with or without the lab."""
  _, unit, *rest = *module.split('.'), '__init__'
  if unit == 'domains' and len(rest) > 1:
    return f'domains.{rest[0]}' + (' and the lab' if rest[1] in LAB_FILES else '')
  return unit


def test_every_package_and_top_level_file_has_a_row():
  assert {unit_of(module) for module in PATHS} <= set(MAY_IMPORT)


@pytest.mark.parametrize('unit', MAY_IMPORT)
def test_imports_follow_the_order_of_packages(unit):
  allowed = MAY_IMPORT[unit] | {unit, 'base', 'process'}
  for module, path in PATHS.items():
    if unit_of(module) == unit:
      used = {unit_of(found) for name in imports(path) if (found := module_of(name))}
      used -= {'__init__'}  # The version.
      assert used <= allowed, f'{path}: {used - allowed}'


def test_no_circle_of_files():
  """A file imports a package's names from the modules that define them; `__init__.py` only re-exports."""
  graph = {
    module: {found for name in imports(path) if (found := module_of(name)) and found != module}
    for module, path in PATHS.items()
  }
  # Raises CycleError, which names the circle.
  assert set(graphlib.TopologicalSorter(graph).static_order()) == set(graph)


def exports(path: Path) -> set[str]:
  """The names in `__all__`; without it, the objects that a module imports, star imports included."""
  names: set[str] = set()
  for node in tree_of(path).body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '__all__':
      return set(ast.literal_eval(node.value))
    if isinstance(node, ast.ImportFrom) and node.names[0].name == '*':
      names |= exports(PATHS[node.module])
    elif isinstance(node, ast.ImportFrom):
      objects = (a for a in node.names if f'{node.module}.{a.name}' not in PATHS)
      names |= {alias.asname or alias.name for alias in objects}
  return names


def test_no_module_has_the_name_of_something_that_its_package_exports():
  packages = {name: path for name, path in PATHS.items() if path.name == '__init__.py'}
  clashes = {f'{package}.{name}' for package, path in packages.items() for name in exports(path)}
  clashes &= PATHS.keys()
  assert not clashes, clashes


def test_few_files_are_at_the_top():
  assert len(list(ROOT.glob('t2x/*.py'))) <= MAX_TOP_LEVEL_FILES


@pytest.mark.parametrize('module', ['jax', 'flax', 'tensorflow'])
def test_data_is_numpy_only(module):
  for path in (ROOT / 't2x' / 'data').rglob('*.py'):
    for name in imports(path):
      assert name.split('.')[0] != module, f'{path}: {name}'


def lengths() -> Iterator[tuple[str, int, int, int]]:
  """Yields the name, lines, guide and maximum of each file and function that is no table of data."""
  for path in FILES:
    if path in TABLES:
      continue
    name = str(path.relative_to(ROOT))
    yield name, path.read_text().count('\n'), GUIDE_FILE, MAX_FILE
    for node in ast.walk(tree_of(path)):
      if isinstance(node, ast.FunctionDef):
        lines = node.end_lineno - node.lineno + 1
        yield f'{name}:{node.lineno} {node.name}', lines, GUIDE_FUNCTION, MAX_FUNCTION


def test_files_and_functions_are_short():
  """Lists what is longer than the guides, and fails above the maxima."""
  long = [row for row in lengths() if row[1] > row[2]]
  for name, lines, guide, _ in long:
    print(f'{name}: {lines} lines (guide: {guide})')
  assert not [row for row in long if row[1] > row[3]]


def test_tests_that_run_at_night_exist():
  for line in (ROOT / 'tests' / 'nightly.txt').read_text().splitlines():
    file, name = line.split('::')
    text = (ROOT / 'tests' / file).read_text()
    assert not name or f'def {name.partition("[")[0]}(' in text, line
