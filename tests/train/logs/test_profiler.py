"""Traces of training steps: which steps are in them, what their operations cost, what remains the same."""

import gzip
import json
import shutil
import types

import jax
import jax.numpy as jnp
import pytest
from points import points

from t2x.base.errors import Interrupted, UserError
from t2x.sweeps.vmapped_trials import VmappedStepper
from t2x.train import train
from t2x.train.logs.profiler import Operation, Profiler, operation_table, operations, read_trace


def traced_steps(folder):
  """Numbers of the steps in the traces of a run, a list for each trace."""
  found = []
  for path in sorted((folder / 'profile').glob('plugins/profile/*/*.trace.json.gz')):
    events = json.loads(gzip.decompress(path.read_bytes()))['traceEvents']
    steps = [e['args']['step_num'] for e in events if 'step_num' in e.get('args', {})]
    found.append(sorted(map(int, steps)))
  return found


def test_a_profiled_run_traces_its_steps_and_trains_the_same(tmp_path, metrics, capsys):
  train(points(num_steps=12), tmp_path / 'plain', '')
  train(points(num_steps=12, profile_steps=(6, 8)), tmp_path / 'profiled', '')
  assert traced_steps(tmp_path / 'profiled') == [[6, 7, 8]]
  assert metrics(tmp_path / 'profiled') == metrics(tmp_path / 'plain')
  printed = capsys.readouterr().err
  assert 'profile of steps 6 to 8, per step and device' in printed
  assert not (tmp_path / 'plain' / 'profile').exists()


def test_a_resumed_run_traces_only_the_steps_that_it_takes(tmp_path):
  experiment = points(num_steps=9, profile_steps=(2, 3), max_minutes=1e-6)
  for step, expected in ((1, []), (2, [[2]]), (3, [[3]]), (4, [])):
    with pytest.raises(Interrupted, match=f'saved at step {step};'):
      train(experiment, tmp_path, '')
    assert traced_steps(tmp_path) == expected
    shutil.rmtree(tmp_path / 'profile', ignore_errors=True)


def test_a_failed_step_ends_the_trace(tmp_path):
  with pytest.raises(UserError, match='not finite at step 4'):
    train(points({4: float('nan')}, log_every=1, profile_steps=(3, 9)), tmp_path, '')
  jax.profiler.start_trace(tmp_path / 'another')  # Fails while a trace is active.
  jax.profiler.stop_trace()


def test_only_the_first_process_profiles(tmp_path):
  def profiler(index):
    run = types.SimpleNamespace(
      trainer=types.SimpleNamespace(profile_steps=(1, 2)),
      processes=types.SimpleNamespace(first=index == 0),
      mesh=types.SimpleNamespace(local_devices=[None]),
      folder=tmp_path,
    )
    return Profiler(run, 0, None)

  assert list(profiler(0).steps) == [1, 2]
  assert list(profiler(1).steps) == []


@pytest.mark.parametrize('steps', [(3, 2), (0, 2), (2, 31)])
def test_ranges_without_steps_of_the_run_are_refused(steps):
  with pytest.raises(
    UserError, match=r'first and the last step of a range of steps from 1 to .*30'
  ):
    points(profile_steps=steps)


def test_trials_are_not_profiled_together():
  program = types.SimpleNamespace(
    mesh=types.SimpleNamespace(size=1), trainer=types.SimpleNamespace(profile_steps=(1, 2))
  )
  with pytest.raises(UserError, match='trained together cannot be profiled'):
    VmappedStepper(program, [{}])


def test_operations_of_a_program_are_read_from_its_trace(tmp_path):
  @jax.jit
  def product(x):
    return jnp.sin(x @ x)

  x = jnp.ones((64, 64))
  product(x).block_until_ready()
  with jax.profiler.trace(tmp_path):
    for _ in range(3):
      product(x).block_until_ready()
  found = read_trace(tmp_path)
  text = product.lower(x).compile().as_text()
  assert {operation.calls for operation in found.values()} == {3}
  assert all(operation.milliseconds > 0 and name in text for name, operation in found.items())


def event(name, start, duration, thread=1, process=1, **arguments):
  place = {'pid': process, 'tid': thread}
  return {'ph': 'X', **place, 'name': name, 'ts': start, 'dur': duration, 'args': arguments}


def name_of(kind, name, process=1, thread=None):
  place = {'pid': process} | ({} if thread is None else {'tid': thread})
  return {'ph': 'M', 'name': f'{kind}_name', 'args': {'name': name}, **place}


HOST = [
  name_of('process', '/host:CPU', process=9),
  event('sin.1', 0.0, 500.0, process=9, hlo_op='sin.1'),
  event('python', 0.0, 9000.0, process=9),
  {},
]


def test_time_inside_other_operations_is_counted_once():
  events = [
    event('dot.1', 1000.0, 2000.0, hlo_op='dot.1'),
    event('while.1', 0.0, 9000.0, hlo_op='while.1'),
    event('dot.1', 4000.0, 3000.0, hlo_op='dot.1'),
    event('copy.1', 4000.0, 1000.0, hlo_op='copy.1'),
    event('dot.1', 9000.0, 500.0, hlo_op='dot.1'),
    event('dot.1', 0.0, 250.0, thread=2, hlo_op='dot.1'),
  ]
  assert operations([*HOST[2:], *events]) == {
    'while.1': Operation(1, 4.0),
    'dot.1': Operation(4, 4.75),
    'copy.1': Operation(1, 1.0),
  }


def test_only_kernels_of_the_gpu_are_counted_by_operation():
  streams = [
    name_of('process', '/device:GPU:0'),
    name_of('thread', 'Stream #20(Compute)', thread=20),
    event('gemm_kernel_x', 0.0, 2000.0, 20, hlo_op='dot.1'),
    event('splitk_kernel', 2000.0, 1000.0, 20, hlo_op='dot.1'),
    event('MemcpyD2D', 3000.0, 1000.0, 20),
  ]
  assert operations([*HOST, *streams]) == {'dot.1': Operation(2, 3.0)}
  lines = [name_of('thread', 'XLA Ops', thread=7), event('dot.1', 0.0, 3000.0, 7)]
  assert operations([*HOST, *streams, *lines]) == {'dot.1': Operation(1, 3.0)}


def test_the_table_has_the_largest_operations_per_step_and_the_total():
  found = {f'op.{i}': Operation(4, 2.0 * i) for i in range(1, 13)}
  lines = operation_table(found, 2).splitlines()
  assert lines[0].split() == ['operation', 'calls', 'ms', 'share']
  assert lines[1].split() == ['op.12', '2', '12.000', '15.4%']
  assert [line.split()[0] for line in lines[2:11]] == [f'op.{i}' for i in range(11, 2, -1)]
  assert lines[11].split() == ['all', '12', '24', '78.000', '100.0%']
  assert operation_table({}, 1).splitlines()[1].split() == ['all', '0', '0', '0.000', '0.0%']
