"""A lease has one holder at a time, on one host or several, and counts the deaths of its holders."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from t2x.base.errors import UserError
from t2x.sweeps.leases import Busy, Leases, deaths, lease_seconds, record_death

SECONDS = 1.5
HOLDER = """
import pathlib, socket, sys, time
if sys.argv[2] == 'far':
  socket.gethostname = lambda: 'far'
from t2x.sweeps.leases import Leases
with Leases().hold(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
  monkeypatch.setenv('T2X_LEASE_SECONDS', str(SECONDS))


@pytest.fixture
def holder(tmp_path):
  """`holder('near' | 'far')` starts a process that holds the lease of tmp_path, as one of this or another host."""
  started = []

  def start(host):
    process = subprocess.Popen(
      [sys.executable, '-c', HOLDER, str(tmp_path), host],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )
    started.append(process)
    assert process.stdout.readline() == b'held\n', process.stderr.read()
    return process

  yield start
  for process in started:
    process.kill()
    process.communicate()


def take(leases, run, timeout=10.0):
  """Waits until the lease is free; returns the seconds waited, and the deaths before."""
  begin = time.monotonic()
  while time.monotonic() < begin + timeout:
    try:
      with leases.hold(run) as before:
        return time.monotonic() - begin, before
    except Busy:
      time.sleep(0.01)
  raise TimeoutError


def write_attempt(run, **changes):
  """Writes the attempt of a process of another host, which is dead."""
  record = {'host': 'far', 'pid': 1, 'step': 0, 'deaths': [], 'end': ''}
  (run / '.attempt.json').write_text(json.dumps(record | changes))


def test_a_dead_process_of_the_same_host_is_replaced_at_once(holder, tmp_path):
  process = holder('near')
  with pytest.raises(Busy), Leases().hold(tmp_path):
    pass
  process.kill()
  process.wait()
  waited, before = take(Leases(), tmp_path)
  assert waited < 0.8 * SECONDS and len(before) == 1
  assert before[0].startswith('an unknown signal on ') and deaths(tmp_path) == ()


def test_a_living_process_of_another_host_holds_and_a_dead_one_is_replaced_after_a_while(
  holder, tmp_path
):
  process, leases = holder('far'), Leases()
  end = time.monotonic() + 2 * SECONDS
  while time.monotonic() < end:
    with pytest.raises(Busy), leases.hold(tmp_path):
      pass
    time.sleep(0.02)
  process.kill()
  process.wait()
  waited, before = take(leases, tmp_path)
  assert waited > 0.5 * SECONDS and before == ('an unknown signal on far',)


def test_a_suspended_process_loses_its_lease_and_exits(holder, tmp_path):
  process = holder('far')
  process.send_signal(signal.SIGSTOP)
  leases, begin = Leases(), time.monotonic()
  while time.monotonic() < begin + 10:
    try:
      with leases.hold(tmp_path):
        process.send_signal(signal.SIGCONT)
        assert process.wait(10) == 1
        break
    except Busy:
      time.sleep(0.01)
  assert b'another process has taken over this trial' in process.stderr.read()


def test_of_many_that_find_a_free_lease_one_gets_it(tmp_path):
  together, held, count = threading.Barrier(8), threading.Barrier(8), []

  def run():
    leases = Leases()
    together.wait()
    try:
      with leases.hold(tmp_path):
        count.append(1)
        held.wait()
    except Busy:
      held.wait()

  threads = [threading.Thread(target=run) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(count) == 1


def test_deaths_count_from_the_same_checkpoint_and_not_across_a_release(tmp_path):
  write_attempt(tmp_path, deaths=['SIGKILL'], end='SIGSEGV')
  assert deaths(tmp_path) == ('SIGKILL', 'SIGSEGV')
  (tmp_path / 'checkpoints' / '40').mkdir(parents=True)
  assert deaths(tmp_path) == ()
  write_attempt(tmp_path, end='SIGKILL', step=40)
  with Leases().hold(tmp_path) as before:
    assert before == ('SIGKILL',)
  assert deaths(tmp_path) == ()


def test_how_a_worker_died_is_recorded(holder, tmp_path):
  process = holder('near')
  process.kill()
  process.wait()
  assert not record_death(tmp_path, process.pid + 1, 'SIGKILL')
  assert record_death(tmp_path, process.pid, 'SIGKILL')
  assert not record_death(tmp_path, process.pid, 'SIGKILL')
  assert take(Leases(), tmp_path)[1] == ('SIGKILL',)


@pytest.mark.parametrize('content', ['', '{', '[]', '{"host": "a"}'])
def test_damaged_attempts_and_leases_of_older_versions_do_not_count(tmp_path, content):
  for name in ('.attempt.json', '.lease-1.json', '.trial'):
    (tmp_path / name).write_text(content)
  with Leases().hold(tmp_path) as before:
    assert before == () and not [*tmp_path.glob('.lease-*'), *tmp_path.glob('.trial')]


def test_a_signal_outside_of_training_is_no_death(holder, tmp_path):
  process = holder('near')
  process.terminate()
  assert process.wait() == 75
  assert take(Leases(), tmp_path)[1] == ()


def test_other_seconds_of_another_process_are_an_error(holder, tmp_path, monkeypatch):
  holder('far')
  monkeypatch.setenv('T2X_LEASE_SECONDS', '7')
  with (
    pytest.raises(UserError, match='T2X_LEASE_SECONDS must be equal in all processes'),
    Leases().hold(tmp_path),
  ):
    pass


@pytest.mark.parametrize('text', ['soon', '0', '-1', 'nan', 'inf'])
def test_the_seconds_must_be_a_positive_number(monkeypatch, text):
  monkeypatch.setenv('T2X_LEASE_SECONDS', text)
  with pytest.raises(UserError, match=f'T2X_LEASE_SECONDS={text} must be a number'):
    lease_seconds()
