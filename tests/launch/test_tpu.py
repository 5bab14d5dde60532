"""Rendered scripts for TPUs, run by bash with stubs of gcloud and xpk."""

import os
import shlex
import subprocess

import pytest

from t2x.cli import parser

QUICK = 'configs/runs/quickstart.gin'
TPU = ('tpu', QUICK, '--zone', 'us-east5-a', '--accelerator', 'v5litepod-64')
XPK = (
  'xpk',
  QUICK,
  '--cluster',
  'big',
  '--accelerator',
  'v5litepod-16',
  '--image',
  'example.com/t2x',
)

# States that `describe` returns one after another, then ACTIVE; exit codes of the runs, then 0.
GCLOUD = """
case "$*" in
  *describe*) line=$(head -n 1 {folder}/states); sed -i 1d {folder}/states; echo "${{line-ACTIVE}}" ;;
  *'exec t2x'*) code=$(head -n 1 {folder}/codes); sed -i 1d {folder}/codes; exit "${{code:-0}}" ;;
esac
"""


@pytest.fixture
def run(launch, stubs, tmp_path):
  """`run(options, verb, states, codes)` runs a script; returns its exit code and the calls of gcloud."""

  def start(*options, verb='start', states=(), codes=()):
    path = tmp_path / 'tpu.sh'
    code, output = launch(*TPU, *options, '--out', path)
    assert code == 0, output.err
    (tmp_path / 'states').write_text(''.join(f'{state}\n' for state in (*states, *['ACTIVE'] * 9)))
    (tmp_path / 'codes').write_text(''.join(f'{code}\n' for code in codes))
    stubs(gcloud=GCLOUD.format(folder=tmp_path), git='', sleep='')
    done = subprocess.run(
      ['bash', path, verb], env=os.environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, [call for call in stubs.calls() if call.startswith('gcloud')]

  return start


def verbs(calls):
  """The steps of a script, without its questions for the state."""
  names = {'queued-resources create': 'create', 'scp': 'copy', 'pip install': 'install'}
  names |= {'exec t2x': 'train', 'queued-resources delete': 'delete'}
  return [name for call in calls for text, name in names.items() if text in call]


def test_a_resource_is_created_and_trains(run):
  code, calls = run(states=['', 'WAITING_FOR_RESOURCES', 'ACTIVE'])
  assert code == 0
  assert verbs(calls) == ['create', 'copy', 'install', 'train']
  create = next(call for call in calls if ' create ' in call)
  assert '--node-id=quickstart --accelerator-type=v5litepod-64' in create
  assert '--runtime-version=v2-alpha-tpuv5-lite' in create


def test_an_active_resource_is_used_again(run):
  assert verbs(run(states=['ACTIVE'])[1]) == ['copy', 'install', 'train']


def test_a_preempted_resource_is_requested_again_and_the_run_resumes(run):
  code, calls = run('--spot', states=['ACTIVE', 'ACTIVE', 'SUSPENDED', 'SUSPENDED'], codes=[255])
  assert code == 0
  assert verbs(calls) == [
    'copy',
    'install',
    'train',
    'delete',
    'create',
    'copy',
    'install',
    'train',
  ]
  assert any(call.endswith('--spot') for call in calls)


def test_an_interrupted_run_on_an_active_resource_ends_with_its_code(run):
  code, calls = run(states=['ACTIVE'], codes=[75])
  assert code == 75
  assert verbs(calls) == ['copy', 'install', 'train']


def test_all_slices_run_the_same_command(run):
  code, calls = run('--slices', '2', '--env', 'A=b c', '--setup', 'mount /shared', verb='train')
  assert code == 0
  assert {shlex.split(call)[5] for call in calls} == {'quickstart-0', 'quickstart-1'}
  (command,) = {call.partition('--command=')[2] for call in calls}
  assert "export A='b c'" in command and 'mount /shared' in command


def test_an_unknown_verb_is_an_error(run):
  assert run(verb='begin') == (2, [])


def test_xpk_gets_one_command_that_restarts_after_code_75(launch, stubs, tmp_path):
  path = tmp_path / 'xpk.sh'
  code, output = launch(*XPK, '--env', 'A=b c', '--setup', 'df', '--slices', '2', '--out', path)
  assert code == 0, output.err
  stubs(xpk='for word; do [[ $word = --command=* ]] && echo "${word#--command=}"; done; true')
  done = subprocess.run(['bash', path, '--dry-run'], capture_output=True, text=True, check=True)
  (call,) = stubs.calls()
  for option in (
    '--tpu-type=v5litepod-16',
    '--num-slices=2',
    '--restart-on-exit-codes=75',
    '--dry-run',
  ):
    assert option in call.split()
  export, setup, train = done.stdout.strip().split('; ')
  assert (export, setup) == ("export A='b c'", 'df')
  args = parser().parse_args(train.removeprefix('exec t2x ').split())
  assert (args.command, args.files, args.out) == ('train', [QUICK], '/shared/runs/quickstart')


@pytest.mark.parametrize(
  'accelerator, devices', [('v4-8', 4), ('v5litepod-64', 64), ('v5p-128', 64), ('v6e-16', 16)]
)
def test_devices_of_accelerator_types(accelerator, devices):
  from t2x.launch import QueuedResource

  target = QueuedResource(resource='a', zone='b', accelerator=accelerator, slices=2)
  assert target.num_devices == 2 * devices
