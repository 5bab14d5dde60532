"""t2x.launch.processes: several processes on one machine."""

import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, '-m', 't2x.launch.processes', '-n', '3', '--', sys.executable, '-c']


@pytest.mark.parametrize('codes, expected', [((0, 0, 0), 0), ((75, 75, 75), 75), ((0, 3, 0), 3)])
def test_the_exit_code_matches_the_first_failure(codes, expected):
  code = f'import sys; print("here"); sys.exit({codes}[int(sys.argv[-1])])'
  done = subprocess.run([*COMMAND, code], capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == expected
  assert sorted(done.stdout.splitlines()) == ['[0] here', '[1] here', '[2] here']


SHOW = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'


@pytest.mark.parametrize(
  ('visible', 'expected'),
  [(None, ['0,1', '2,3', '4,5']), ('7,GPU-a,5,4,3,2,1', ['7,GPU-a', '5,4', '3,2'])],
)
def test_processes_share_the_visible_gpus(monkeypatch, visible, expected):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  if visible is not None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  command = [*COMMAND[:5], '--gpus', '2', *COMMAND[5:], SHOW]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
  assert sorted(done.stdout.splitlines()) == [f'[{i}] {gpus}' for i, gpus in enumerate(expected)]


@pytest.mark.parametrize('visible', ['0,1,2,3,4', ''])
def test_more_gpus_than_the_visible_ones_are_refused(monkeypatch, visible):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  command = [*COMMAND[:5], '--gpus', '2', *COMMAND[5:], SHOW]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
  assert (done.returncode, done.stdout) == (2, '')
  assert f'need more than the {len(visible.split(",")) if visible else 0} of CUDA' in done.stderr


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded(number):
  code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print('ready', flush=True)
time.sleep(60)
"""
  # These tests may run under nohup.
  reset = (
    'import os, signal, sys; signal.signal(1, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])'
  )
  command = [sys.executable, '-c', reset, *COMMAND, code]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  assert process.stdout is not None
  for _ in range(3):
    assert process.stdout.readline().endswith('ready\n')
  process.send_signal(number)
  assert process.wait(timeout=30) == 75
  process.stdout.close()
