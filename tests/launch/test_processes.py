"""t2x.launch.processes: several processes on one machine."""

import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, '-m', 't2x.launch.processes', '-n', '3', '--', sys.executable, '-c']


@pytest.mark.parametrize('codes, expected', [((0, 0, 0), 0), ((75, 75, 75), 75), ((0, 3, 0), 3)])
def test_the_exit_code_is_that_of_the_first_failure(codes, expected):
  code = f'import sys; print("here"); sys.exit({codes}[int(sys.argv[-1])])'
  done = subprocess.run([*COMMAND, code], capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == expected
  assert sorted(done.stdout.splitlines()) == ['[0] here', '[1] here', '[2] here']


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
