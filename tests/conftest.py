"""Every test runs on the CPU, with the jaxtyping annotations of t2x checked at run time.

Compiling is nearly all that the tests do: it is done without optimisation, and kept.
"""

import collections
import contextlib
import gc
import importlib.metadata
import json
import os
import resource
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

os.environ.update(
  {
    'JAX_PLATFORMS': 'cpu',
    'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true',
    # The older compiler's fusion emitters take most of its time; the newer one has nothing else. Programs are small:
    # to compile their parts in parallel takes longer than to compile them.
    'XLA_FLAGS': '--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
    if importlib.metadata.version('jax').startswith('0.10.')
    else '',
    'JAX_COMPILATION_CACHE_DIR': str(Path(__file__).parents[1] / '.pytest_cache' / 'xla'),
    # Small programs too: the other worker, and processes that tests start, read them in half of the time.
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    # Only dumps of programs show the calls that led to an operation; writing them takes a tenth of the time.
    'JAX_TRACEBACK_IN_LOCATIONS_LIMIT': '0',
  }
  | os.environ
)

import array_annotations
import hypothesis
import jax
import jaxtyping
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
# Modules that annotate arrays: checking all others too takes seven tenths of the time of all tests.
ANNOTATED = [
  '.'.join(path.relative_to(ROOT).with_suffix('').parts)
  for path in (ROOT / 't2x').rglob('*.py')
  if 'from jaxtyping import' in path.read_text()
]
array_annotations.install(ANNOTATED)

# No time limit per example. (Where CI is set, examples are the same each time.)
hypothesis.settings.register_profile(
  't2x', deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile('t2x')


# Before the fast lane is chosen by its mark.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Tests in slow.txt and those that need more packages than the extra `test` are slow; those that begin with a line
  of nightly.txt run at night. Files whose tests are marked as slow come first, so that of several workers none is left
  alone with one."""
  from optional_packages import may_skip

  from tests.slow import listed, name_of

  slow = {item.path for item in items if item.get_closest_marker('slow')}
  names, nightly = listed(), tuple((ROOT / 'tests' / 'nightly.txt').read_text().split('\n')[:-1])
  for item in items:
    path = str(item.path.relative_to(ROOT))
    name = name_of(path, item.name)
    if f'{path.removeprefix("tests/")}::{item.name}'.startswith(nightly):
      item.add_marker('nightly')
    function = getattr(item, 'originalname', item.name)
    if name in names or item.get_closest_marker('nightly') or may_skip(item.path, function):
      item.add_marker('slow')
  items.sort(key=lambda item: item.path not in slow)


def pytest_addoption(parser):
  parser.addoption(
    '--record-differences',
    action='store_true',
    help='write the largest differences from references of the tests that ran to tests/differences.json',
  )


def pytest_terminal_summary(terminalreporter):
  """Prints the tables of `add_row`, and writes the differences of `compared` if asked."""
  if terminalreporter.config.getoption('--record-differences'):
    reports = [report for some in terminalreporter.stats.values() for report in some]
    record_differences(report for report in reports if getattr(report, 'passed', False))
  tables: dict = collections.defaultdict(lambda: collections.defaultdict(dict))
  for reports in terminalreporter.stats.values():
    for report in reports:
      for name, value in getattr(report, 'user_properties', ()):
        if name == 'row':
          title, row, cells = value
          row = tables[title][row]
          row |= {column: text for column, text in cells.items() if text or column not in row}
  for title, rows in tables.items():
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    terminalreporter.section(title)
    terminalreporter.write_line('| | ' + ' | '.join(columns) + ' |')
    terminalreporter.write_line('|---' * (len(columns) + 1) + '|')
    for name, row in sorted(rows.items()):
      cells = ' | '.join(row.get(column, '') for column in columns)
      terminalreporter.write_line(f'| {name} | {cells} |')


def record_differences(reports):
  """Puts the largest differences of `compared` in these reports in place of the recorded ones."""
  found: dict = collections.defaultdict(dict)
  for report in reports:
    for name, value in report.user_properties:
      if name == 'difference':
        system, reference, of, difference = value
        package, _, rest = reference.partition(' ')
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
          package += f' {importlib.metadata.version(package)}'
        row = found[system].setdefault(
          f'{package} {rest}'.strip(), {'test': report.nodeid.split('[')[0]}
        )
        row[of] = max(difference, row.get(of, 0.0))
  path = ROOT / 'tests' / 'differences.json'
  recorded = json.loads(path.read_text()) if path.exists() else {}
  for system, rows in found.items():
    rounded = {
      reference: {
        key: value if key == 'test' else float(f'{value:.1e}') for key, value in row.items()
      }
      for reference, row in rows.items()
    }
    # Other versions of a package make way; other references, whose tests did not run, stay.
    names = {reference.split()[0] for reference in rounded}
    kept = {k: v for k, v in recorded.get(system, {}).items() if k.split()[0] not in names}
    recorded[system] = kept | rounded
  text = json.dumps(dict(sorted(recorded.items())), indent=1, ensure_ascii=False)
  path.write_text(text + '\n')


def pytest_collection_finish():
  """What was imported is never garbage; a full collection, which reads all of it, is rare."""
  gc.freeze()
  gc.set_threshold(100_000, 20, 50)


MAX_RESIDENT = 3 * 2**30
resident = {'limit': MAX_RESIDENT}


def resident_bytes():
  """Memory of this process."""
  return int(Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')


@pytest.fixture(scope='module', autouse=True)
def few_programs():
  """Drops compiled programs after a module, if they have too many memory maps or too much memory.

  Linux allows a process 65,530 maps; one more ends it with a segmentation fault. Three workers share the memory of the
  machine. The allocator may keep memory of dropped programs, so the limit is then 1 GiB above what is left. Dropping
  takes four seconds, and compiling again takes more.
  """
  yield
  maps = len(Path('/proc/self/maps').read_bytes().splitlines())
  if maps > 30_000 or resident_bytes() > resident['limit']:
    jax.clear_caches()
    gc.collect()
    resident['limit'] = max(MAX_RESIDENT, resident_bytes() + 2**30)


@pytest.fixture(autouse=True)
def explicit_broadcasting(request):
  """In tests of layers and models, arrays of different ranks are broadcast on purpose or not at all."""
  folders = request.path.relative_to(ROOT / 'tests').parts
  level = 'raise' if folders[0] in ('layers', 'models') else 'allow'
  with jax.numpy_rank_promotion(level):
    yield


@pytest.fixture(autouse=True)
def trusted_folders(tmp_path_factory, monkeypatch):
  """The list of trusted folders is this test's own and empty; nothing is trusted by inheritance."""
  folder = tmp_path_factory.getbasetemp() / f'state-{uuid.uuid4().hex}'
  monkeypatch.setenv('XDG_STATE_HOME', str(folder))
  monkeypatch.delenv('T2X_TRUST', raising=False)


@pytest.fixture
def add_row(request):
  """`add_row(title, row, {column: text})` puts cells into a table that the run ends with."""

  def put(title: str, row: str, cells: dict[str, str]) -> None:
    request.node.user_properties.append(('row', (title, row, cells)))

  return put


@pytest.fixture
def compared(request):
  """`compared(system, reference, got, wanted, rtol=0, atol=1e-5, of='outputs')`: requires that arrays are equal.

  `t2x systems` lists the largest difference, relative to the largest element, which
  `pytest --record-differences` writes.

  Args:
    system: name of the system in the headers of configs; None for variants that are not listed.
    reference: what computed `wanted`: a package, and the class in it, or 'NumPy, float64'.
    got: array of t2x.
    wanted: array of the reference.
    rtol, atol: tolerances of `np.testing.assert_allclose`.
    of: 'outputs' or 'gradients'.
  """

  def check(system, reference, got, wanted, *, rtol=0.0, atol=1e-5, of='outputs'):
    got, wanted = np.asarray(got), np.asarray(wanted)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=f'{of} of {system}')
    largest = np.abs(wanted).max()
    # An array that is zero up to the tolerance, such as the gradient of a bias of keys, has no relative difference.
    if system is not None and largest > atol:
      difference = float(np.abs(got - wanted).max() / largest)
      request.node.user_properties.append(('difference', (system, reference, of, difference)))

  return check


@pytest.fixture
def unchecked():
  """Annotations are not checked at run time."""
  jaxtyping.config.update('jaxtyping_disable', True)
  yield
  jaxtyping.config.update('jaxtyping_disable', False)


@pytest.fixture
def metrics():
  """`metrics(folder)` reads metrics.jsonl without what depends on the clock."""

  def read(folder: Path) -> list[dict]:
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    return [
      {
        name: value
        for name, value in json.loads(line).items()
        if name != 'mfu' and not name.endswith('_per_second')
      }
      for line in lines
    ]

  return read


@pytest.fixture
def in_terminal():
  """`with in_terminal(command, ...) as terminal:`; see `PseudoTerminal`."""
  from pseudo_terminal import PseudoTerminal

  return PseudoTerminal


@pytest.fixture
def full_disk():
  """`with full_disk(size)`: no file grows beyond `size` bytes."""

  @contextlib.contextmanager
  def full(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
      # Modules that Python compiles meanwhile would be cut off too, and stay so.
      with mock.patch.object(sys, 'dont_write_bytecode', True):
        yield
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, before)

  return full
