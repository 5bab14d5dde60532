"""What the local runner hands to its workers, and what it does when they die."""

import dataclasses
import os
import sys
import types

import jax
import pytest

from t2x.base.errors import UserError
from t2x.sweeps.leases import Leases
from t2x.sweeps.records import Trial
from t2x.sweeps.run import Local, _local_counts
from t2x.sweeps.runners import InProcess, Pool, _share, gpus, groups_of

UUIDS = 'GPU-8932f937,GPU-40f1a2b3'


@pytest.fixture
def machine(monkeypatch):
  """`machine(count, visible)`: JAX sees GPUs with these numbers, given CUDA_VISIBLE_DEVICES."""

  def make(numbers, visible):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu' if numbers else 'cpu')
    devices = [
      types.SimpleNamespace(local_hardware_id=one, platform='gpu', device_kind='a GPU')
      for one in numbers
    ]
    monkeypatch.setattr(jax, 'local_devices', lambda: devices)
    monkeypatch.setattr(jax, 'devices', lambda: devices)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    if visible is not None:
      monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)

  return make


@pytest.mark.parametrize(
  ('numbers', 'visible', 'workers'),
  [
    ([0, 1], None, ['0', '1']),
    ([0, 1], '2,3', ['2', '3']),
    ([0, 1], ' 5 , 1 ', ['5', '1']),
    ([0, 1], UUIDS, UUIDS.split(',')),
    # What follows -1 is no device.
    ([0, 1], '6,7,-1,2', ['6', '7']),
    ([0, 1, 2, 3], '4,5,6,7', ['4,5', '6,7']),
    # A process sees one part of a divided GPU, whatever number it is given.
    ([0], 'MIG-a,MIG-b', ['MIG-a', 'MIG-b']),
  ],
)
def test_workers_get_entries_of_the_parents_devices(machine, numbers, visible, workers):
  machine(numbers, visible)
  assert [_share(i, 2)['CUDA_VISIBLE_DEVICES'] for i in range(2)] == workers
  assert _share(0, 2)['JAX_CUDA_VISIBLE_DEVICES'] == 'all'


def test_jax_may_use_one_of_the_visible_gpus(machine):
  machine([1], '2,3')
  assert _share(0, 1)['CUDA_VISIBLE_DEVICES'] == '3'


@pytest.mark.parametrize('visible', ['', '-1', None])
def test_without_a_gpu_workers_inherit_the_devices(machine, visible):
  machine([], visible)
  assert gpus() == [] and _share(0, 2) == {}


@pytest.mark.parametrize('visible', ['2,3', UUIDS])
def test_more_workers_than_gpus_are_refused(machine, visible):
  machine([0, 1], visible)
  with pytest.raises(UserError, match=rf'--processes 3: .* 2 GPUs \({visible}\)'):
    _local_counts(Local(processes=3))


def test_each_gpu_has_a_worker_by_default(machine):
  machine([0, 1], UUIDS)
  assert _local_counts(Local()) == (2, 8)
  assert _local_counts(Local(processes=1, together=3)) == (1, 3)


@pytest.mark.parametrize(
  ('local', 'text'),
  [
    (Local(processes=1, together=1), 'one process runs one trial at a time'),
    (Local(processes=2, together=1), '2 processes, each runs one trial at a time'),
    (
      Local(processes=1, together=8),
      'one process runs up to 8 trials of a program together (vmap)',
    ),
  ],
)
def test_the_status_line_says_what_each_process_runs(capsys, local, text):
  _local_counts(local)
  assert capsys.readouterr().out == f'on cpu: {text} (--processes, --together)\n'


def test_workers_inherit_the_environment_except_settings_of_the_parent(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_OF_THE_USER', 'yes')
  monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  script = 'import os; print(*sorted(os.environ))'
  pool = Pool(
    lambda *_: [sys.executable, '-c', script], 1, tmp_path, ['XLA_PYTHON_CLIENT_PREALLOCATE']
  )
  assert pool._start(0).wait() == 0
  names = (tmp_path / 'worker-0.log').read_text().split()
  assert 'T2X_OF_THE_USER' in names and 'XLA_PYTHON_CLIENT_PREALLOCATE' not in names
  assert os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] == 'false'


# A worker that runs trials in order, and is killed in the first two attempts of 'bad'.
WORKER = """
import json, os, pathlib, signal, sys
from t2x.sweeps.leases import Leases
for name in ('bad', 'good'):
  run = pathlib.Path(sys.argv[1]) / name
  if not (run / 'trial.json').exists():
    with Leases().hold(run) as deaths:
      if name == 'bad' and len(deaths) < 2:
        os.kill(os.getpid(), signal.SIGKILL)
      outcome = {'status': 'failed', 'reason': ', '.join(deaths)}
      (run / 'trial.json').write_text(json.dumps(outcome))
"""


def trial(name):
  return Trial(variant=name, point={}, seed=0, identity=name, folder=name, program='p')


def test_a_worker_that_is_killed_is_replaced_and_its_signal_recorded(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('T2X_LEASE_SECONDS', '600')
  trials = [trial('bad'), trial('good')]
  for one in trials:
    (tmp_path / one.folder).mkdir()
  pool = Pool(lambda *_: [sys.executable, '-c', WORKER, str(tmp_path)], 1, tmp_path)
  ended = {}
  pool.run(trials, tmp_path, lambda one, outcome: ended.update({one.folder: outcome.reason}))
  assert ended == {'bad': 'SIGKILL, SIGKILL', 'good': ''}
  assert capsys.readouterr().err.count('worker 0 died (SIGKILL) in bad, seed 0: restarted') == 2


def test_workers_that_die_before_any_trial_are_replaced_twice(tmp_path, capsys):
  (tmp_path / 'a').mkdir()
  pool = Pool(lambda *_: ['/bin/false'], 1, tmp_path)
  with pytest.raises(UserError, match='the workers ended early'):
    pool.run([trial('a')], tmp_path, lambda *_: None)
  assert capsys.readouterr().err.count('worker 0 died (exit code 1): restarted') == 2


def test_the_error_of_a_worker_is_printed_and_its_like_not_restarted(tmp_path, capsys):
  (tmp_path / 'a').mkdir()
  code = 'print("starting"); raise ValueError("no such folder")'
  pool = Pool(lambda *_: [sys.executable, '-c', code], 2, tmp_path)
  with pytest.raises(UserError, match='the workers ended early'):
    pool.run([trial('a'), trial('b')], tmp_path, lambda *_: None)
  lines = capsys.readouterr().err.splitlines()
  end = ' died (exit code 1): ValueError: no such folder'
  first = lines[0].split()[1]
  assert lines[0] == f'worker {first}{end}; restarted'
  assert sorted(lines[1:]) == [f'worker 0{end}', f'worker 1{end}']


def test_a_trial_whose_process_was_killed_is_not_trained_together_with_others(tmp_path):
  trials = [trial(name) for name in 'abcd']
  for one in trials:
    (tmp_path / one.folder).mkdir()

  def groups():
    runner = InProcess(together=3)
    return [[one.folder for one in group] for group in runner._groups(trials, tmp_path)]

  assert groups() == [['a', 'b', 'c'], ['d']]
  with Leases().hold(tmp_path / 'b'):
    assert groups() == [['a', 'c', 'd'], ['b']]
    attempt = (tmp_path / 'b' / '.attempt.json').read_bytes()
  assert groups() == [['a', 'b', 'c'], ['d']]
  (tmp_path / 'b' / '.attempt.json').write_bytes(attempt)
  assert groups() == [['a', 'c', 'd'], ['b']]


def test_groups_are_numbered_by_the_first_trial_of_their_program():
  trials = [
    dataclasses.replace(trial(name), program=program) for name, program in ('ay', 'bx', 'cy')
  ]
  assert [[one.folder for one in group] for group in groups_of(trials)] == [['a', 'c'], ['b']]
