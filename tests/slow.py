"""Writes tests/slow.txt, the tests that `pytest -m "not slow"` leaves out, from the times of a whole run.

pytest -n 2 --junitxml=/tmp/junit.xml && python -m tests.slow /tmp/junit.xml
"""

import sys
import xml.etree.ElementTree
from pathlib import Path

FILE = Path(__file__).with_suffix('.txt')
# A test is slow if one of its cases takes longer, its fixtures included.
SECONDS = 0.5


def name_of(path: str, function: str) -> str:
  """The name of a test in the list: its file in tests/, without the parameters."""
  return f'{path.removeprefix("tests/")}::{function.partition("[")[0]}'


def listed() -> frozenset[str]:
  """The names in the list."""
  return frozenset(FILE.read_text().split())


def main(report: str) -> None:
  """Writes the list."""
  slow = set()
  for case in xml.etree.ElementTree.parse(report).iter('testcase'):
    if float(case.get('time', 0)) > SECONDS:
      slow.add(name_of(case.get('classname', '').replace('.', '/') + '.py', case.get('name', '')))
  FILE.write_text('\n'.join(sorted(slow)) + '\n')
  print(f'{len(slow)} slow tests')


if __name__ == '__main__':
  if len(sys.argv) != 2:
    sys.exit(__doc__)
  main(sys.argv[1])
