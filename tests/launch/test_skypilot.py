"""Rendered tasks of SkyPilot, parsed as YAML and, where it is installed, by SkyPilot itself."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from t2x.cli import parser
from t2x.launch import SkyPilot

EXAMPLE = Path(__file__).parents[2] / 'launch/skypilot/spot.yaml'
QUICK = ('skypilot', 'configs/runs/quickstart.gin', '--accelerators', 'H100:8')
SKY = shutil.which('sky')


def test_several_nodes_find_each_other(launch, tmp_path):
  code, output = launch(*QUICK, '--nodes', '2', '--storage', 'disk')
  assert code == 0, output.err
  task = yaml.safe_load(output.out)
  assert (task['num_nodes'], task['volumes']) == (2, {'/shared': 'disk'})
  script = task['run'].replace('. ~/t2x/bin/activate\n', '').replace('exec t2x', 'echo')
  variables = {
    'SKYPILOT_NODE_IPS': '10.0.0.1\n10.0.0.2',
    'SKYPILOT_NUM_NODES': '2',
    'SKYPILOT_NODE_RANK': '1',
  }
  done = subprocess.run(
    ['bash', '-c', script], env=os.environ | variables, capture_output=True, text=True, check=True
  )
  args = parser().parse_args(done.stdout.split())
  assert (args.coordinator, args.num_processes, args.process_id) == ('10.0.0.1:8476', 2, 1)


@pytest.mark.parametrize(('accelerators', 'devices'), [('tpu-v6e-8:1', 8), ('tpu-v5p-8:1', 4)])
def test_hosts_of_a_tpu_slice_install_jax_for_tpus_and_find_each_other(
  accelerators, devices, launch
):
  code, output = launch(*QUICK[:2], '--accelerators', accelerators, '--storage', 's3://bucket')
  assert code == 0, output.err
  task = yaml.safe_load(output.out)
  assert task['resources']['accelerators'] == accelerators
  assert "-e '.[tpu]'" in task['setup'] and '--num-processes' not in task['run']
  target = SkyPilot(nodes=1, accelerators=accelerators, storage='s3://bucket')
  assert target.num_devices == devices


def test_spot_machines_recover_and_code_75_restarts():
  resources = yaml.safe_load(EXAMPLE.read_text())['resources']
  assert resources['use_spot'] is True
  assert resources['job_recovery']['recover_on_exit_codes'] == [75]


def test_secrets_are_only_named(launch):
  code, output = launch(*QUICK, '--storage', 's3://bucket', '--secret', 'WANDB_API_KEY')
  assert code == 0
  assert yaml.safe_load(output.out)['secrets'] == {'WANDB_API_KEY': None}
  assert 'sky jobs launch --yes --secret=WANDB_API_KEY FILE' in output.out


@pytest.mark.skipif(SKY is None, reason='SkyPilot is not installed (no `sky` on the path)')
@pytest.mark.parametrize('words', [None, (*QUICK, '--nodes', '2', '--storage', 'disk')])
def test_skypilot_loads_the_task(words, launch, tmp_path):
  path = EXAMPLE
  if words:
    path = tmp_path / 'task.yaml'
    assert launch(*words, '--out', path)[0] == 0
  assert SKY is not None
  # SkyPilot may be installed in an environment of its own.
  python = Path(SKY).read_text().splitlines()[0].removeprefix('#!')
  code = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(task.num_nodes, resources.use_spot, resources.job_recovery)
"""
  done = subprocess.run(
    [python, '-c', code, path], cwd=EXAMPLE.parents[2], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  assert "'recover_on_exit_codes': [75]" in done.stdout
