"""Changes one place of t2x at a time and reports the changes that no test notices.

  python -m tests.mutations [--part I/N] [NAME ...]

Each mutation is applied to a temporary copy of the tree, in which its tests are run. It is killed if a test fails, and
survives if all pass; without mutations, all must pass. The exit code is 1 if a mutation survives, and 2 if tests fail
without mutations or do not run, or the text of a mutation is not found exactly once.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutations.entries import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
# Seconds after which a mutation that makes a loop endless is killed.
TIMEOUT = 900
_IGNORED = shutil.ignore_patterns('.git', '.*_cache', '__pycache__', '_build')


def places(text: str, root: Path = ROOT) -> list[Path]:
  """Returns the files of t2x that contain a text, each as often as the text occurs."""
  return [
    path
    for path in sorted((root / 't2x').rglob('*.py'))
    for _ in range(path.read_text().count(text))
  ]


def outcome(mutation: Mutation, copy: Path) -> str:
  """Applies a mutation to a copy of the tree, runs its tests, and restores the copy.

  Returns:
    'killed', 'survived', or the reason for which neither is known.
  """
  found = places(mutation.find, copy)
  if len(found) != 1:
    return f'its text is in {len(found)} places: correct its entry'
  (path,) = found
  before = path.read_text()
  path.write_text(before.replace(mutation.find, mutation.replacement))
  try:
    code, last = run_tests(shlex.split(mutation.tests), copy)
  except subprocess.TimeoutExpired:
    return 'killed'
  finally:
    path.write_text(before)
  return {0: 'survived', 1: 'killed'}.get(code, f'its tests do not run: {last}')


def run_tests(
  arguments: Sequence[str], copy: Path, timeout: float | None = TIMEOUT
) -> tuple[int, str]:
  """Runs tests of a copy of the tree. Returns pytest's exit code and the line of the failure, or the last one."""
  cache = os.environ.get('JAX_COMPILATION_CACHE_DIR', str(ROOT / '.pytest_cache' / 'xla'))
  process = subprocess.run(
    [sys.executable, '-m', 'pytest', '-x', '-q', '-n', '0', '-p', 'no:cacheprovider', *arguments],
    cwd=copy,
    env=os.environ | {'PYTHONPATH': str(copy), 'JAX_COMPILATION_CACHE_DIR': cache},
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )
  lines = process.stdout.strip().splitlines() or ['']
  failures = [line for line in lines if line.startswith(('FAILED', 'ERROR'))]
  return process.returncode, (failures or lines)[-1]


def share(mutations: Sequence[Mutation], part: str) -> list[Mutation]:
  """Returns the mutations of part I of N, 'I/N', in their order."""
  number, of = map(int, part.split('/'))
  edges = [len(mutations) * i // of for i in (number - 1, number)]
  return list(mutations[edges[0] : edges[1]])


def main() -> int:
  """Runs the mutations. Returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  names = [mutation.name for mutation in MUTATIONS]
  parser.add_argument('names', nargs='*', metavar='NAME', choices=[[], *names], default=[])
  parser.add_argument('--part', default='1/1', metavar='I/N', help='the I-th of N parts')
  args = parser.parse_args()
  mutations = [one for one in MUTATIONS if one.name in (args.names or names)]
  mutations = share(mutations, args.part)
  outcomes = []
  with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder) / 'tree'
    shutil.copytree(ROOT, copy, ignore=_IGNORED)
    tests = dict.fromkeys(word for mutation in mutations for word in shlex.split(mutation.tests))
    code, last = run_tests([*tests], copy, timeout=None)
    if code:
      print(f'tests fail without mutations: {last}')
      return 2
    for mutation in mutations:
      start = time.monotonic()
      outcomes.append(outcome(mutation, copy))
      seconds = time.monotonic() - start
      print(f'{mutation.name}: {outcomes[-1]} ({seconds:.0f} s)', flush=True)
  survived = outcomes.count('survived')
  print(f'{len(outcomes)} mutations, {outcomes.count("killed")} killed, {survived} survived')
  return 2 if set(outcomes) - {'killed', 'survived'} else int(survived > 0)


if __name__ == '__main__':
  sys.exit(main())
