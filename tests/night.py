"""Runs the tests of the night in parts, meant to take an hour each on two quiet cores.

  python -m tests.night [--list] [--seed N] [PART ...]

Without a PART all run, in order. Each prints its tests, what was skipped and why, and its time; a table of all parts is
the last output. The exit code is 1 if a part failed.
"""

import argparse
import dataclasses
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Folders and files whose nightly tests are a part. `tests/test_night.py` checks that each is in one.
TESTS = {
  'devices': ('tests/contracts', 'tests/multi_device'),
  'parity': ('tests/parity', 'tests/interop'),
  'end_to_end': ('tests/end_to_end', 'tests/multi_process', 'tests/launch'),
  'sweeps': ('tests/sweeps', 'tests/statistics'),
  'pages': ('tests/docs', 'tests/test_contributing.py'),
  'golden': ('tests/golden',),
  'configs': ('tests/experiments', 'tests/test_configs.py', 'tests/plan'),
  'units': (
    'tests/base',
    'tests/config',
    'tests/data',
    'tests/decode',
    'tests/fuzz',
    'tests/layers',
    'tests/look',
    'tests/models',
    'tests/parallel',
    'tests/process',
    'tests/prune',
    'tests/run_folder',
    'tests/runs',
    'tests/tasks',
    'tests/train',
  ),
}
# `{seed}` is the argument --seed.
COMMANDS = {
  'fuzzer': (
    ('-m', 'tests.fuzz.mutate', 'tokens', '--count', '400', '--seed', '{seed}'),
    ('-m', 'tests.fuzz.mutate', 'values'),
  ),
  'mutations_1': (('-m', 'tests.mutations', '--part', '1/3'),),
  'mutations_2': (('-m', 'tests.mutations', '--part', '2/3'),),
  'mutations_3': (('-m', 'tests.mutations', '--part', '3/3'),),
}
# Newer Pythons, on which pip selects the newest jax and flax that the ranges in pyproject.toml allow.
VERSIONS = {'python_3_12': '3.12', 'python_3_13': '3.13'}
PARTS = (*TESTS, *COMMANDS, *VERSIONS)


@dataclasses.dataclass
class Outcome:
  """What a part did.

  Attributes:
    failed: whether a test or a command failed.
    counts: number of tests by outcome; empty for other commands.
    left_out: why the part did not run; '' if it ran.
  """

  failed: bool
  counts: dict[str, int] = dataclasses.field(default_factory=dict)
  left_out: str = ''


def run_tests(arguments: Sequence[str], python: str = sys.executable) -> Outcome:
  """Runs pytest on two workers."""
  with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / 'report.xml'
    options = ['-n', '2', '-rs', f'--junitxml={report}']
    code = subprocess.run(
      [python, '-m', 'pytest', *options, *arguments], cwd=ROOT, check=False
    ).returncode
    return Outcome(code != 0, counts(report) if report.exists() else {})


def counts(report: Path) -> dict[str, int]:
  """The numbers of tests in a JUnit report that passed, failed and were skipped; errors are failures."""
  [suite] = xml.etree.ElementTree.parse(report).iter('testsuite')
  total, failures, errors, skipped = (
    int(suite.get(key, 0)) for key in ('tests', 'failures', 'errors', 'skipped')
  )
  failed = failures + errors
  return {'passed': total - failed - skipped, 'failed': failed, 'skipped': skipped}


def run_commands(commands: Sequence[Sequence[str]], seed: int) -> Outcome:
  """Runs all commands, each to its end."""
  codes = [
    subprocess.run(
      [sys.executable, *(word.format(seed=seed) for word in command)], cwd=ROOT, check=False
    ).returncode
    for command in commands
  ]
  return Outcome(any(codes))


def run_version(version: str) -> Outcome:
  """Installs t2x and the packages of its tests for another Python in an empty environment, and runs the fast tests."""
  python = interpreter(version)
  if python is None:
    return Outcome(False, left_out=f'Python {version} is not installed')
  with tempfile.TemporaryDirectory() as folder:
    own = str(Path(folder) / 'bin' / 'python')
    subprocess.run([python, '-m', 'venv', folder], check=True)
    subprocess.run([own, '-m', 'pip', 'install', '-q', '-e', '.[test]'], cwd=ROOT, check=True)
    listed = subprocess.run(
      [own, '-m', 'pip', 'list', '--format=freeze'], capture_output=True, text=True, check=True
    ).stdout
    names = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
    print(*(line for line in listed.splitlines() if line.split('==')[0] in names), flush=True)
    return run_tests(['-m', 'not slow'], own)


def interpreter(version: str) -> str | None:
  """The path of a Python of a version; None without one."""
  pyenv = os.environ.get('PYENV_ROOT', str(Path.home() / '.pyenv'))
  found = [shutil.which(f'python{version}'), *glob.glob(f'{pyenv}/versions/{version}.*/bin/python')]
  for path in found:
    # A shim of pyenv fails if its version is not selected.
    if path and subprocess.run([path, '-c', ''], capture_output=True, check=False).returncode == 0:
      return path
  return None


def run(part: str, seed: int) -> Outcome:
  """Runs a part."""
  if part in TESTS:
    return run_tests(['-m', 'nightly', *TESTS[part]])
  if part in COMMANDS:
    return run_commands(COMMANDS[part], seed)
  return run_version(VERSIONS[part])


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the parts that the command line names, all without one; returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('parts', nargs='*', metavar='PART', choices=[[], *PARTS], default=[])
  parser.add_argument('--list', action='store_true', help='print the parts')
  parser.add_argument('--seed', type=int, default=0, help='seed of the fuzzer (default: 0)')
  args = parser.parse_args(arguments)
  if args.list:
    print('\n'.join(PARTS))
    return 0
  rows, failed = [], False
  for part in args.parts or PARTS:
    print(f'\n== {part}', flush=True)
    start = time.monotonic()
    outcome = run(part, args.seed)
    failed |= outcome.failed
    numbers = ', '.join(f'{number} {name}' for name, number in outcome.counts.items())
    result = outcome.left_out or f'{"failed" if outcome.failed else "passed"} {numbers}'.strip()
    rows.append(f'{part}: {result} ({(time.monotonic() - start) / 60:.1f} min)')
    print(rows[-1], flush=True)
  print('\n== all parts', *rows, sep='\n')
  return int(failed)


if __name__ == '__main__':
  sys.exit(main())
