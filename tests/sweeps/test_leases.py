"""A lease has one holder at a time, with and without file locks, on one host or several."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from t2x.base.errors import UserError
from t2x.sweeps.leases import Busy, Leases, deaths, lease_seconds, num_attempts, record_death

SECONDS = 1.5
HOLDER = """
import fcntl, pathlib, sys, time
from t2x.sweeps.leases import Leases
if sys.argv[2] == 'without':
  def flock(*_):
    raise OSError(37, 'No locks available')
  fcntl.flock = flock
  time.time = lambda: 0.0
with Leases().hold(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
  monkeypatch.setenv('T2X_LEASE_SECONDS', str(SECONDS))


@pytest.fixture
def _no_locks(monkeypatch):
  """This process is another host: file locks fail, as on a file system without them."""

  def flock(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)


@pytest.fixture
def holder(tmp_path):
  """`holder('with' | 'without')` starts a process that holds the lease of tmp_path, with or without flock."""
  started = []

  def start(locks):
    process = subprocess.Popen(
      [sys.executable, '-c', HOLDER, str(tmp_path), locks],
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
      with leases.hold(run) as lease:
        return time.monotonic() - begin, lease.deaths
    except Busy:
      time.sleep(0.01)
  raise TimeoutError


def kill(process):
  process.kill()
  process.wait()


def last_record(run):
  return json.loads((run / f'.lease-{num_attempts(run)}.json').read_text())


def write_lease(run, number, **changes):
  """Writes the lease of a process of another host, which is dead."""
  record = {'token': str(number), 'host': 'far', 'pid': 1, 'kernel': 'k', 'mount': 0, 'step': 0}
  content = json.dumps(record | {'seconds': SECONDS, 'beats': 0, 'end': ''} | changes)
  (run / f'.lease-{number}.json').write_text(content)


def test_a_dead_process_of_the_same_host_is_replaced_at_once(holder, tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_LEASE_SECONDS', '600')
  process = holder('with')
  assert Leases().is_held(tmp_path)
  with pytest.raises(Busy), Leases().hold(tmp_path):
    pass
  kill(process)
  assert not Leases().is_held(tmp_path)
  _, before = take(Leases(), tmp_path)
  assert before == (f'an unknown signal on {last_record(tmp_path)["host"]}',)


@pytest.mark.usefixtures('_no_locks')
def test_heartbeats_hold_a_lease_and_a_dead_host_is_replaced_when_they_stop(holder, tmp_path):
  # The clock and the times of files of the other host are decades behind.
  process, leases = holder('without'), Leases()
  end = time.monotonic() + 1.5 * SECONDS
  while time.monotonic() < end:
    os.utime(tmp_path / '.lease-1.json', (0, 0))
    assert leases.is_held(tmp_path)
    time.sleep(0.02)
  kill(process)
  waited, before = take(leases, tmp_path)
  assert waited > SECONDS * 0.8 and len(before) == 1
  assert last_record(tmp_path)['end'] == 'released'


@pytest.mark.usefixtures('_no_locks')
def test_a_new_process_waits_however_old_the_file_is(tmp_path):
  write_lease(tmp_path, 1)
  os.utime(tmp_path / '.lease-1.json', (0, 0))
  waited, _ = take(Leases(), tmp_path)
  assert waited >= SECONDS


@pytest.mark.usefixtures('_no_locks')
def test_a_suspended_process_loses_its_lease_and_exits(holder, tmp_path):
  process = holder('without')
  process.send_signal(signal.SIGSTOP)
  taken, ended = threading.Event(), threading.Event()

  def run():
    leases = Leases()
    while not taken.is_set():
      try:
        with leases.hold(tmp_path):
          taken.set()
          ended.wait(10)
      except Busy:
        time.sleep(0.01)

  thread = threading.Thread(target=run)
  thread.start()
  assert taken.wait(10)
  process.send_signal(signal.SIGCONT)
  assert process.wait(10) == 1
  assert b'another process has taken over this trial' in process.stderr.read()
  ended.set()
  thread.join()
  assert last_record(tmp_path)['end'] == 'released' and num_attempts(tmp_path) == 2


@pytest.mark.usefixtures('_no_locks')
def test_an_expired_lease_is_detected_before_its_successor_starts(tmp_path):
  """The holder beats again just after it was found dead."""
  write_lease(tmp_path, 1)
  created, begun = [], []

  def watch():
    while not (tmp_path / '.lease-2.json').exists():
      time.sleep(0.001)
    created.append(time.monotonic())

  thread = threading.Thread(target=watch)
  thread.start()
  leases = Leases()
  while not begun:
    try:
      with leases.hold(tmp_path):
        begun.append(time.monotonic())
    except Busy:
      time.sleep(0.01)
  thread.join()
  # Two intervals of its heartbeat.
  assert begun[0] - created[0] >= 1.9 * SECONDS / 9


@pytest.mark.usefixtures('_no_locks')
def test_of_many_that_find_a_free_lease_one_gets_it(tmp_path):
  for number in range(1, 21):
    together, held, count = threading.Barrier(8), threading.Barrier(9), []

    def run(together=together, held=held, count=count):
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
    held.wait()
    for thread in threads:
      thread.join()
    assert len(count) == 1 and num_attempts(tmp_path) == number


def test_deaths_count_from_the_same_checkpoint_and_not_across_a_release(tmp_path):
  write_lease(tmp_path, 1, end='SIGKILL')
  write_lease(tmp_path, 2, end='SIGSEGV')
  assert deaths(tmp_path) == ('SIGKILL', 'SIGSEGV')
  (tmp_path / 'checkpoints' / '40').mkdir(parents=True)
  assert deaths(tmp_path) == ()
  write_lease(tmp_path, 3, end='SIGKILL', step=40)
  assert deaths(tmp_path) == ('SIGKILL',)
  with Leases().hold(tmp_path) as lease:
    assert lease.deaths == ('SIGKILL',)
  assert deaths(tmp_path) == ()


def test_how_a_worker_died_is_recorded_and_frees_the_trial(holder, tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_LEASE_SECONDS', '600')
  process = holder('without')
  kill(process)
  assert not record_death(tmp_path, process.pid + 1, 'SIGKILL')
  assert Leases().is_held(tmp_path)
  assert record_death(tmp_path, process.pid, 'SIGKILL')
  assert not record_death(tmp_path, process.pid, 'SIGKILL')
  with Leases().hold(tmp_path) as lease:
    assert lease.deaths == ('SIGKILL',)


@pytest.mark.parametrize('content', ['', '{', '[]', '{"token": "a"}'])
@pytest.mark.usefixtures('_no_locks')
def test_a_damaged_lease_is_replaced_when_it_does_not_change(tmp_path, content, monkeypatch):
  monkeypatch.setenv('T2X_LEASE_SECONDS', '0.2')
  (tmp_path / '.lease-1.json').write_text(content)
  waited, before = take(Leases(), tmp_path)
  assert waited >= 0.2 and before == ()


@pytest.mark.usefixtures('_no_locks')
def test_a_file_that_another_host_has_written_is_not_held(tmp_path, monkeypatch):
  """As with gcsfuse: both can open the file, and the content is that of one of them."""
  real_open = os.open

  def open_both(path, flags, mode=0o777):
    return real_open(path, flags & ~os.O_EXCL, mode)

  def fsync(_):
    write_lease(tmp_path, 1)

  monkeypatch.setattr(os, 'open', open_both)
  monkeypatch.setattr(os, 'fsync', fsync)
  with pytest.raises(Busy), Leases().hold(tmp_path):
    pass


def test_a_signal_outside_of_training_releases_the_lease(holder, tmp_path):
  process = holder('with')
  process.terminate()
  assert process.wait() == 75
  assert last_record(tmp_path)['end'] == 'released' and deaths(tmp_path) == ()


@pytest.mark.parametrize('text', ['soon', '0', '-1', 'nan', 'inf'])
def test_the_seconds_must_be_a_positive_number(monkeypatch, text):
  monkeypatch.setenv('T2X_LEASE_SECONDS', text)
  with pytest.raises(UserError, match=f'T2X_LEASE_SECONDS={text} must be a number'):
    lease_seconds()
