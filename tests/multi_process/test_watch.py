"""Processes that do nothing but count steps stop at the same one, and end together when one is lost or fails."""

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name('steps.py')


@pytest.fixture
def join():
  """`join(*indices, lost_after=60)` starts these processes of a run and returns them.

  Heartbeats may be late on a loaded machine, so `lost_after` is short only in tests of silent processes.
  """
  with contextlib.ExitStack() as started, socket.socket() as one:
    one.bind(('', 0))
    address = f'localhost:{one.getsockname()[1]}'
    one.close()

    def start(*indices, lost_after=60):
      running = []
      for index in indices:
        process = subprocess.Popen(
          [sys.executable, str(SCRIPT), address, *map(str, (max(indices) + 1, index, lost_after))],
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
        )
        started.callback(process.communicate)
        started.callback(process.kill)
        running.append(process)
      return running

    yield start


def wait_until_joined(processes):
  for process in processes:
    assert process.stdout.readline() == 'joined\n', process.communicate()


def ended(process):
  """(exit code, stdout, lines of stderr that are an error of t2x)."""
  out, err = process.communicate(timeout=60)
  assert 'stack trace' not in err
  return process.returncode, out, [line for line in err.splitlines() if line.startswith('t2x: ')]


@pytest.mark.parametrize(
  'number',
  [
    signal.SIGINT,
    pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
    pytest.param(signal.SIGHUP, marks=pytest.mark.nightly),
  ],
)
def test_all_stop_at_one_step_however_far_each_is(number, join):
  processes = join(0, 1)
  wait_until_joined(processes)
  processes[1].send_signal(number)
  codes, steps, errors = zip(*map(ended, processes), strict=True)
  assert codes == (0, 0)
  assert len(set(steps)) == 1
  assert not any(errors)


@pytest.mark.parametrize('index', [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_failure_ends_all_processes(index, join):
  processes = join(0, 1)
  wait_until_joined(processes)
  processes[index].send_signal(signal.SIGUSR1)
  where = f'process {index} on {socket.gethostname()}: ' if index else ''
  ends = [(code, lines) for code, _, lines in map(ended, processes)]
  assert ends == [(2, [f't2x: {where}no such file'])] * 2


@pytest.mark.parametrize(
  'number', [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)]
)
def test_a_process_that_is_silent_is_noticed(number, join):
  processes = join(0, 1, 2, lost_after=3)
  wait_until_joined(processes)
  processes[1].send_signal(number)
  for process in (processes[0], processes[2]):
    code, _, (line,) = ended(process)
    assert code == 1
    assert f'no heartbeat from process 1 on {socket.gethostname()} for 3 seconds' in line


@pytest.mark.nightly
@pytest.mark.parametrize('number', [signal.SIGSTOP, signal.SIGKILL])
def test_a_silent_coordinator_is_noticed(number, join):
  processes = join(0, 1, lost_after=3)
  wait_until_joined(processes)
  processes[0].send_signal(number)
  code, _, (line,) = ended(processes[1])
  assert code not in (0, 75)
  assert 'process 0' in line


@pytest.mark.nightly
def test_a_process_that_is_started_twice_ends_all(join):
  first, second = join(0, 1, lost_after=3)
  wait_until_joined([first, second])
  for process in (*join(1, lost_after=3), first, second):
    code, _, (line,) = ended(process)
    assert code == 1
    assert 'process 1' in line or 'process/1 already exists' in line
