"""`t2x plan` on the command line."""

import json

import pytest

from t2x.cli import main
from tests.plan.tiny import FILES, LARGE, SETTINGS, mesh_file

GIN = [f'--gin.{setting}' for setting in SETTINGS]


def test_the_json_has_memory_time_and_cost(capsys):
  options = [
    '--devices',
    '8',
    '--kind',
    'v5e',
    '--tokens',
    '1e9',
    '--price',
    '2',
    '--dry',
    '--json',
  ]
  gin = [f'--gin.{setting}' for setting in LARGE]
  assert main(['plan', *FILES, mesh_file('fsdp'), *gin, *options]) == 0
  plan = json.loads(capsys.readouterr().out)
  experiment = plan['experiment']
  sizes = experiment['bytes_per_device']
  assert sum(sizes.values()) == 2 * sizes['total']
  assert experiment['fits'] is True
  assert experiment['compiled'] is None
  assert experiment['mesh']['fsdp'] == plan['devices'] == 8
  assert experiment['cost']['tokens'] == 1e9
  assert experiment['cost']['price'] == pytest.approx(experiment['cost']['days'] * 24 * 8 * 2)
  assert {one['kind'] for one in experiment['expected_collectives']} >= {
    'all-gather',
    'reduce-scatter',
  }
  assert 'Recorded is no step on a v5e' in ' '.join(plan['assumptions'])


@pytest.mark.nightly
def test_the_compiled_step_is_printed_beside_the_traced_step(capsys):
  assert main(['plan', *FILES, mesh_file('fsdp'), *GIN, '--devices', '4', '--kind', 'h100']) == 0
  text = capsys.readouterr().out
  assert 'fits into one h100' in text
  assert 'collectives, compiled' in text
  row = next(line for line in text.splitlines() if line.startswith('state and batch'))
  traced, compiled = row.removeprefix('state and batch').strip().split('  ')
  assert traced.strip() == compiled.strip()


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (['--price', '2'], '--price needs the rates of a device: add --kind'),
    (['--tokens', '1e9'], '--tokens needs the rates of a device: add --kind'),
    (['--search'], '--search needs the rates of a device: add --kind'),
    (['--kind', 'h101'], "--kind 'h101': must be one of v5e, v5p, v6e"),
  ],
)
def test_options_without_effect_and_unknown_devices_are_refused(options, message, capsys):
  assert main(['plan', FILES[0], *options]) == 2
  assert message in capsys.readouterr().err


def test_a_config_without_a_task_is_refused(capsys):
  assert main(['plan', FILES[0], '--dry']) == 2
  assert 'Experiment.task and Experiment.trainer not set' in capsys.readouterr().err
