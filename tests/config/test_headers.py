"""Systems in the headers of configs, and `t2x systems`."""

import json
import re
from pathlib import Path

import pytest

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.config.headers import systems

ROOT = Path(__file__).parents[2]
LINE = '# System: positions: rotary (https://arxiv.org/abs/2104.09864)\n'
DIFFERENCES = {
  'rotary': {'torch 2.14.1': {'test': 'tests/test_a.py::test_b', 'outputs': 2e-6}},
  'GPT-2': {
    'transformers 5.24.0 GPT2LMHeadModel': {'test': 'c', 'outputs': 1e-6, 'gradients': 3e-6}
  },
}


@pytest.fixture
def checkout(tmp_path):
  """A folder with one config and the differences of two systems."""
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'experiments' / 'study').mkdir(parents=True)
  (tmp_path / 'tests').mkdir()
  (tmp_path / 'tests' / 'differences.json').write_text(json.dumps(DIFFERENCES))
  text = f'# A model.\n#\n{LINE}#\n# Measured 2026-11-26: loss 1.0\n# after 9 steps.\n\nx = 1\n# System: no header\n'
  (tmp_path / 'configs' / 'a.gin').write_text(text)
  return tmp_path


def test_systems_are_read_from_headers_and_from_recorded_differences(checkout):
  imported, rotary = systems(checkout)
  assert (rotary.group, rotary.name, rotary.config) == ('positions', 'rotary', 'configs/a.gin')
  assert rotary.paper == 'https://arxiv.org/abs/2104.09864'
  assert rotary.result == 'Measured 2026-11-26: loss 1.0 after 9 steps.'
  assert rotary.references == DIFFERENCES['rotary']
  assert (imported.group, imported.name, imported.references) == (
    'imported',
    'GPT-2',
    DIFFERENCES['GPT-2'],
  )


def test_a_config_of_a_study_refers_to_its_page(checkout):
  (checkout / 'configs' / 'a.gin').rename(checkout / 'experiments' / 'study' / 'a.gin')
  text = (
    (checkout / 'experiments' / 'study' / 'a.gin').read_text().replace('Measured', 'Measurement')
  )
  (checkout / 'experiments' / 'study' / 'a.gin').write_text(text)
  (checkout / 'experiments' / 'study' / 'README.md').write_text('# Study\n')
  assert systems(checkout)[1].result == 'experiments/study/README.md'


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    (
      '# System: rotary\n',
      r"configs/b.gin: expected 'System: GROUP: NAME \(PAPER\)', got 'System: rotary'",
    ),
    (LINE, "'rotary' is in configs/a.gin and in configs/b.gin"),
  ],
)
def test_wrong_lines_are_errors(checkout, line, message):
  (checkout / 'configs' / 'b.gin').write_text(line)
  with pytest.raises(UserError, match=message):
    systems(checkout)


def test_recorded_differences_are_of_listed_systems_and_of_tests_that_exist():
  recorded = json.loads((ROOT / 'tests' / 'differences.json').read_text())
  listed = {system.name for system in systems(ROOT) if system.group != 'imported'}
  table = (ROOT / 'docs' / 'pretrained.md').read_text().split('\n| family | parameters')[1]
  families = {
    row.split(' | ')[0].lstrip('| ') for row in table.splitlines() if row.startswith('| ')
  }
  assert recorded.keys() <= listed | families
  for name, rows in recorded.items():
    for reference, row in rows.items():
      path, test = row['test'].split('::')
      text = (ROOT / path).read_text()
      assert re.search(rf'^def {test}\(', text, re.MULTILINE), f'{name}, {reference}'
      assert row.keys() & {'outputs', 'gradients'}


def test_the_command_lists_systems_and_describes_one(capsys):
  found = systems(ROOT)
  assert main(['systems']) == 0
  printed = capsys.readouterr().out
  assert f'{len(found)} systems' in printed and all(system.name in printed for system in found)
  assert main(['systems', '--groups']) == 0
  assert capsys.readouterr().out.startswith('group')
  assert main(['systems', 'no such system']) == 2
  assert '`t2x systems` lists all' in capsys.readouterr().err
  first = found[0]
  assert main(['systems', first.name.upper()]) == 0
  assert first.config in capsys.readouterr().out
