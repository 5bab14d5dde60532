"""What the local runner hands to its workers."""

import os
import sys
import types

import jax
import pytest

from t2x.errors import UserError
from t2x.sweeps.run import Local, _local_counts
from t2x.sweeps.runners import Pool, _share, gpus

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
def test_without_a_gpu_workers_get_what_the_parent_has(machine, visible):
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


def test_workers_have_the_environment_but_for_what_is_the_parents_own(tmp_path, monkeypatch):
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
