"""`t2x referee`, `t2x gate` and `python -m t2x.statistics` need NumPy and SciPy only, and import quickly."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = 'variant,seed,loss\n' + ''.join(
  f'{variant},{seed},{loss + 0.01 * (seed * power % 5)}\n'
  for variant, loss, power in (('a', 3.0, 2), ('b', 2.8, 3))
  for seed in range(5)
)
# Fails for each import of a package that `pip install --no-deps t2x` with NumPy and SciPy does not have.
BLOCKED = """
import sys

class Blocker:
  def find_spec(self, name, path=None, target=None):
    top = name.partition('.')[0]
    if top not in sys.stdlib_module_names and top not in ('t2x', 'numpy', 'scipy') and top[0] != '_':
      raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Blocker())
"""


def python(code, *args, cwd):
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  return subprocess.run(
    [sys.executable, '-c', code, *args],
    cwd=cwd,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.parametrize('main', ['t2x.cli', 't2x.statistics'])
def test_a_table_is_judged_with_numpy_and_scipy_only(main, tmp_path):
  (tmp_path / 'a.csv').write_text(TABLE)
  arguments = ['a.csv', '--baseline', 'a', '--html', 'a.html']
  arguments = arguments if main == 't2x.statistics' else ['referee', *arguments]
  module = 't2x.statistics.command' if main == 't2x.statistics' else main
  done = python(
    f'{BLOCKED}\nfrom {module} import main\nsys.exit(main(sys.argv[1:]))', *arguments, cwd=tmp_path
  )
  assert done.returncode == 0, done.stderr
  assert 'helps' in done.stdout and (tmp_path / 'a.html').exists()


def test_the_module_runs_as_a_command(tmp_path):
  (tmp_path / 'a.csv').write_text(TABLE)
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  command = [sys.executable, '-m', 't2x.statistics', 'a.csv', '--baseline', 'a']
  done = subprocess.run(
    command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
  )
  assert (done.returncode, 'helps' in done.stdout) == (0, True), done.stderr


def test_neither_jax_nor_scipy_is_imported_before_use(tmp_path):
  code = 'import sys, t2x.statistics.comparisons, t2x.statistics.referee, t2x.statistics.gate\nprint(*sys.modules)'
  names = {name.partition('.')[0] for name in python(code, cwd=tmp_path).stdout.split()}
  assert 'numpy' in names and not names & {'jax', 'flax', 'scipy', 'gin'}


def test_a_small_table_imports_no_jax_and_no_scipy_stats(tmp_path):
  (tmp_path / 'a.csv').write_text(TABLE)
  code = (
    'import sys\nfrom t2x.statistics.command import main\nmain(sys.argv[1:])\nprint(*sys.modules)'
  )
  names = {*python(code, 'a.csv', '--baseline', 'a', cwd=tmp_path).stdout.split()}
  assert 'scipy.special' in names
  assert not names & {'jax', 'flax', 'scipy.stats', 'scipy.optimize', 't2x.sweeps'}


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='peak memory is read from /proc')
@pytest.mark.parametrize(('rows', 'seconds', 'gigabytes'), [(100, 1.2, 0.5), (1_000_000, 10, 1)])
def test_tables_are_judged_in_limited_time_and_memory(tmp_path, rows, seconds, gigabytes):
  """CPU seconds, start of Python included; ten variants with five seeds, the rest are items."""
  items = rows // 50
  with (tmp_path / 'a.csv').open('w') as file:
    print('variant,seed,item,loss', file=file)
    for run in range(50):
      for item in range(items):
        print(
          f'v{run // 5},{run % 5},{item},{3 + (run * 7919 + item * 104729) % 1009 / 1009:.4f}',
          file=file,
        )
  code = 'import sys\nfrom t2x.statistics.command import main\nmain(sys.argv[1:])\n'
  # Not getrusage: its peak is inherited from the process that started this one.
  code += "import re\nprint(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)"
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  done = python(code, 'a.csv', '--baseline', 'v0', cwd=tmp_path)
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  assert 'Noise floor' in done.stdout, done.stderr
  used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  print(f'{rows} rows: {used:.2f} s of CPU, {int(done.stderr) / 2**20:.2f} GiB')
  assert used < seconds and int(done.stderr) < gigabytes * 2**20
