"""The parts of the night cover its tests, and report what they did."""

import re
from pathlib import Path

import pytest

from tests import night
from tests.mutations.__main__ import share
from tests.mutations.entries import MUTATIONS

ROOT = Path(__file__).parents[1]


def test_each_file_with_nightly_tests_is_in_one_part():
  listed = (ROOT / 'tests' / 'nightly.txt').read_text().splitlines()
  files = {f'tests/{line.split("::")[0]}' for line in listed}
  for path in (ROOT / 'tests').rglob('test_*.py'):
    if re.search(r'\bmark\.nightly\b', path.read_text()) and path != Path(__file__):
      files.add(str(path.relative_to(ROOT)))
  parts = {
    file: [
      part
      for part, paths in night.TESTS.items()
      for path in paths
      if file == path or file.startswith(f'{path}/')
    ]
    for file in files
  }
  assert len(files) > 80
  assert {file: names for file, names in parts.items() if len(names) != 1} == {}
  for path in (path for paths in night.TESTS.values() for path in paths):
    assert (ROOT / path).exists(), path


def test_each_mutation_is_in_one_part():
  assert [one for i in (1, 2, 3) for one in share(MUTATIONS, f'{i}/3')] == list(MUTATIONS)


def test_all_parts_run_and_a_failure_is_the_exit_code(monkeypatch, capsys):
  outcomes = {
    part: night.Outcome(False, {'passed': 2, 'failed': 0, 'skipped': 1}) for part in night.PARTS
  }
  outcomes['golden'] = night.Outcome(True, {'passed': 0, 'failed': 1, 'skipped': 0})
  outcomes['python_3_13'] = night.Outcome(False, left_out='Python 3.13 is not installed')
  monkeypatch.setattr(night, 'run', lambda part, seed: outcomes[part])
  assert night.main([]) == 1
  rows = capsys.readouterr().out.split('== all parts\n')[1].splitlines()
  assert [row.split(':')[0] for row in rows] == list(night.PARTS)
  assert 'golden: failed 0 passed, 1 failed, 0 skipped (0.0 min)' in rows
  assert 'parity: passed 2 passed, 0 failed, 1 skipped (0.0 min)' in rows
  assert 'python_3_13: Python 3.13 is not installed (0.0 min)' in rows
  assert night.main(['parity']) == 0
  assert night.main(['--list']) == 0
  assert capsys.readouterr().out.splitlines()[-len(night.PARTS) :] == list(night.PARTS)


def test_tests_are_counted_by_outcome(tmp_path):
  (tmp_path / 'test_some.py').write_text(
    'import pytest\n\n\ndef test_one():\n  pass\n\n\ndef test_two():\n  assert 0\n\n\n'
    "def test_three():\n  pytest.skip('no')\n"
  )
  report = tmp_path / 'report.xml'
  pytest.main(
    [
      '-q',
      '-n',
      '0',
      '-p',
      'no:cacheprovider',
      f'--rootdir={tmp_path}',
      '-c',
      '/dev/null',
      f'--junitxml={report}',
      str(tmp_path),
    ]
  )
  assert night.counts(report) == {'passed': 1, 'failed': 1, 'skipped': 1}
