"""The rules of the source tree: imports follow one order without circles; files and functions have maximum lengths."""

import ast
import collections
import functools
import graphlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from t2x.base import names

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
# Sources, tokenizers and transforms.
DATA = ('data/**/*.py', 'samples/*.py', 'domains/*/transforms.py', 'domains/*/coco_images.py')
DATA += ('domains/*/*_folder.py', 'domains/*/recordings.py', 'domains/*/spectrograms.py')
DATA += ('domains/*/sources.py', 'domains/*/windows.py', 'domains/*/frames.py')
MAY_IMPORT |= {'domains': set(), 'samples': TASKS | {f'domains.{name}' for name in DOMAINS}}
MAY_IMPORT |= {f'domains.{name}': TRAIN for name in DOMAINS}
MAY_IMPORT |= {f'domains.{name} and the lab': TOOLS | {f'domains.{name}'} for name in DOMAINS}

# Nothing that trains a model imports these.
LAB = {'statistics', 'sweeps', 'plan', 'look', 'runs', 'prune', 'interop', 'testing', 'launch'}
# The largest numbers of files and lines that a reader of `t2x train` can reach through imported names.
MOST_REACHED = {'files': 195, 'lines': 35_000}

# Lines of each package and top-level file, with some room. Growth is decided here: a commit that exceeds a row raises
# it, and says why in its message.
PACKAGE_LINES = {
  'base': 2200,
  'config': 4600,
  'launch': 1000,
  'process': 200,
  'run_folder': 460,
  'layers': 22_200,
  'data': 12_100,
  'models': 5700,
  'parallel': 1300,
  'decode': 1700,
  'tasks': 7500,
  'train': 7500,
  'experiments': 200,
  'interop': 6400,
  'loaded': 300,
  'api': 60,
  'statistics': 3800,
  'sweeps': 8200,
  'plan': 3200,
  'look': 2000,
  'prune': 740,
  'testing': 780,
  'runs': 1300,
  'cli': 3900,
  '__init__': 20,
  '__main__': 20,
  'domains': 20,
  'samples': 2500,
  'domains.captions': 80,
  'domains.detection': 1040,
  'domains.pixels': 780,
  'domains.questions': 440,
  'domains.retrieval': 1020,
  'domains.segmentation': 580,
  'domains.series': 1900,
  'domains.speech': 820,
  'domains.video': 240,
  'domains.detection and the lab': 120,
  'domains.retrieval and the lab': 260,
  'domains.speech and the lab': 100,
}

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
  """A name that is imported from a package is one of the module that defines it."""
  graph = {module: {found for found in used_modules(module) if found != module} for module in PATHS}
  # Raises CycleError, which names the circle.
  assert set(graphlib.TopologicalSorter(graph).static_order()) == set(graph)


def test_a_module_imports_names_of_its_package_from_the_modules_that_define_them():
  for module, path in PATHS.items():
    for name in imports(path):
      package = module_of(name)
      assert package not in names.packages() or not module.startswith(f'{package}.'), (path, name)


def top_level(path: Path) -> Iterator[ast.stmt]:
  """The statements of a module, with those for type checkers only, such as the star imports of a package."""
  for node in tree_of(path).body:
    yield node
    if isinstance(node, ast.If):
      yield from node.body


def exports(path: Path) -> set[str]:
  """The names in `__all__`; without it, the objects that a module imports, star imports included."""
  names: set[str] = set()
  for node in top_level(path):
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '__all__':
      return set(ast.literal_eval(node.value))
    if isinstance(node, ast.ImportFrom) and node.names[0].name == '*':
      names |= exports(PATHS[node.module])
    elif isinstance(node, ast.ImportFrom):
      objects = (a for a in node.names if f'{node.module}.{a.name}' not in PATHS)
      names |= {alias.asname or alias.name for alias in objects}
  return names


@functools.cache
def definitions(module: str) -> dict[str, str | None]:
  """Name -> the module that defines it, of the names that a package re-exports."""
  found: dict[str, str | None] = {}
  for node in top_level(PATHS[module]):
    if isinstance(node, ast.ImportFrom) and node.names[0].name == '*':
      found |= dict.fromkeys(exports(PATHS[node.module]), node.module)
      if PATHS[node.module].name == '__init__.py':
        found |= definitions(node.module)
    elif isinstance(node, ast.ImportFrom):
      found |= {a.asname or a.name: defining(f'{node.module}.{a.name}') for a in node.names}
  return found


def defining(name: str) -> str | None:
  """The module of t2x that defines an imported name; None for names of other packages."""
  module = module_of(name)
  if module is None or PATHS[module].name != '__init__.py':
    return module
  last = name.removeprefix(f'{module}.').partition('.')[0]
  return definitions(module).get(last, module)


@functools.cache
def used_modules(module: str) -> frozenset[str]:
  """The modules whose names a module imports, in functions too."""
  return frozenset(found for name in imports(PATHS[module]) if (found := defining(name)))


def closure(modules: Collection[str]) -> set[str]:
  """The modules with all modules whose names they import, directly or through others."""
  reached, rest = set(), [*modules]
  while rest:
    module = rest.pop()
    if module not in reached:
      reached.add(module)
      rest += used_modules(module)
  return reached


def quickstart_modules() -> set[str]:
  """The modules of the parts that the quickstart's files name."""
  homes = {
    entry.name: entry.module for package in names.packages() for entry in names.names(package)
  }
  found, files = set(), [ROOT / 'configs' / 'runs' / 'quickstart.gin']
  for file in files:
    text = re.sub('#.*', '', file.read_text())
    files += [
      file.parent / include for include in re.findall(r"^include '(.+)'", text, re.MULTILINE)
    ]
    found |= {homes[name] for name in re.findall(r'@(?:\w+/)*(\w+)', text)}
  return found


def test_what_trains_a_model_can_be_read():
  modules = closure({'t2x.cli.train', *quickstart_modules()})
  lines = sum(PATHS[module].read_text().count('\n') for module in modules)
  print(f'{len(modules)} files, {lines} lines')
  assert not {module for module in modules if unit_of(module) in LAB}
  assert len(modules) <= MOST_REACHED['files'] and lines <= MOST_REACHED['lines']


def test_growth_of_packages_is_decided():
  lines: collections.Counter[str] = collections.Counter()
  for module, path in PATHS.items():
    lines[unit_of(module)] += path.read_text().count('\n')
  print(
    *(f'{unit} {count} of {PACKAGE_LINES.get(unit)}' for unit, count in lines.items()), sep='\n'
  )
  exceeded = {unit: count for unit, count in lines.items() if count > PACKAGE_LINES.get(unit, 0)}
  assert not exceeded, f'raise these rows of PACKAGE_LINES, and say why in the commit: {exceeded}'


def test_no_module_has_the_name_of_something_that_its_package_exports():
  packages = {name: path for name, path in PATHS.items() if path.name == '__init__.py'}
  clashes = {f'{package}.{name}' for package, path in packages.items() for name in exports(path)}
  clashes &= PATHS.keys()
  assert not clashes, clashes


def test_few_files_are_at_the_top():
  assert len(list(ROOT.glob('t2x/*.py'))) <= MAX_TOP_LEVEL_FILES


@pytest.mark.parametrize('module', ['jax', 'flax', 'tensorflow'])
def test_data_is_numpy_only(module):
  files = (file for pattern in DATA for file in (ROOT / 't2x').glob(pattern))
  for path in files:
    if path == ROOT / 't2x' / 'samples' / 'drawn_texts.py':
      continue  # An evaluator.
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
