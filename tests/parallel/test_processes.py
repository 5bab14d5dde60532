"""Finding the processes of a run, their rows, their agreement; without starting any."""

import io

import jax
import pytest

from t2x.base.errors import UserError
from t2x.parallel import Mesh, Processes, batch_sharding, find_cluster, process_part
from t2x.parallel.native_output import translate
from t2x.parallel.processes import Cluster, _part

SLURM = {
  'SLURM_JOB_ID': '4099',
  'SLURM_STEP_NODELIST': 'node[003-004,007]',
  'SLURM_NTASKS': '4',
  'SLURM_PROCID': '3',
  'SLURM_LOCALID': '1',
  'SLURM_STEP_TASKS_PER_NODE': '2(x2)',
}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
  for name in (*SLURM, 'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX', 'OMPI_MCA_orte_hnp_uri'):
    monkeypatch.delenv(name, raising=False)


def slurm(monkeypatch, **changes):
  for name, value in (SLURM | changes).items():
    monkeypatch.setenv(name, value)


def test_a_single_machine_does_not_connect():
  assert find_cluster(None, None, None, wait=1.0) is None
  assert find_cluster('anywhere:1', 1, 0, wait=1.0) is None


def test_explicit_settings_are_used():
  assert find_cluster('here:80', 2, 1, wait=1.0) == Cluster('here:80', 2, 1)


@pytest.mark.parametrize(
  'told, words',
  [
    (('here:80', 2, None), '--process-id: required'),
    ((None, 2, 1), '--coordinator: required'),
    (
      ('here:80', 2, 2),
      '--process-id 2: must be at least 0 and less than --num-processes 2',
    ),
    (('here:80', 0, 0), 'less than'),
    (('here', 2, 0), "'here': must be host:port"),
  ],
)
def test_incomplete_and_invalid_settings_are_errors(told, words):
  with pytest.raises(UserError, match=words):
    find_cluster(*told, wait=1.0)


def test_processes_are_read_from_slurm(monkeypatch):
  slurm(monkeypatch)
  assert find_cluster(None, None, None, wait=1.0) == Cluster('node003:61443', 4, 3, (1,))
  # What is told wins.
  assert find_cluster('here:80', None, None, wait=1.0) == Cluster('here:80', 4, 3, (1,))
  assert find_cluster(None, 1, None, wait=1.0) is None


def test_one_process_a_node_has_all_its_devices(monkeypatch):
  slurm(monkeypatch, SLURM_LOCALID='0', SLURM_STEP_TASKS_PER_NODE='1(x4)')
  assert find_cluster(None, None, None, wait=1.0).local_devices is None


def test_one_slurm_task_is_a_single_process(monkeypatch):
  slurm(monkeypatch, SLURM_NTASKS='1', SLURM_PROCID='0')
  assert find_cluster(None, None, None, wait=1.0) is None


def test_a_pod_of_an_indexed_job_is_not_a_single_process(monkeypatch):
  monkeypatch.setenv('KUBERNETES_SERVICE_HOST', 'somewhere')
  assert find_cluster(None, None, None, wait=1.0) is None
  monkeypatch.setenv('JOB_COMPLETION_INDEX', '1')
  monkeypatch.setattr('t2x.parallel.processes._has_kubernetes', lambda: False)
  with pytest.raises(UserError, match='--num-processes 1 for a separate run'):
    find_cluster(None, None, None, wait=1.0)
  assert find_cluster('t2x-0:80', 2, 1, wait=1.0) == Cluster('t2x-0:80', 2, 1)


@pytest.mark.parametrize(
  'slices, expected',
  [
    ({(0, 8)}, (0, 1)),
    ({(4, 6), (6, 8)}, (1, 2)),
    # Two devices along `tensor` hold the same rows.
    ({(4, 8)}, (1, 2)),
    ({(6, 8)}, (3, 4)),
  ],
)
def test_the_rows_of_devices_are_a_part_of_the_batch(slices, expected):
  assert _part(slices, 8) == expected


@pytest.mark.parametrize('slices', [{(0, 2), (4, 6)}, {(0, 2), (2, 4), (4, 6)}, {(2, 6)}, set()])
def test_rows_that_are_no_equal_part_are_an_error(slices):
  with pytest.raises(UserError, match='process 0'):
    _part(slices, 8)


def test_one_process_reads_all_rows():
  mesh = Mesh(num_devices=1).build()
  assert process_part(batch_sharding(mesh), 8) == (0, 1)


def test_a_single_process_has_no_barrier_and_no_watch():
  one = Processes()
  assert one.first
  assert one.count == jax.process_count() == 1
  one.barrier()
  with one.process_zero_first():
    pass
  one.ask_to_stop()
  assert not one.reached_stop(3)
  one.finish()
  one.fail('nothing', 1)


def test_native_chatter_is_left_out_and_the_abort_is_one_line():
  lines = [
    '[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n',
    'W1121 coordination_service.cc:185] something\n',
    'from a library\n',
    'F1121 client.h:80] Terminating process because the JAX distributed service detected fatal '
    'errors. This most likely ... absl::Status: UNAVAILABLE: Failed to send RPC. Either this\n',
    '*** Check failure stack trace: ***\n',
    '    @     0x7f1157240634  absl::lts\n',
  ]
  out = io.StringIO()
  translate(io.StringIO(''.join(lines)), out)
  first, second = out.getvalue().splitlines()
  assert first == 'from a library'
  assert second.startswith('t2x: lost the connection to process 0, the coordinator')
  assert '(UNAVAILABLE: Failed to send RPC)' in second
