"""Any number of workers and hosts prepares the same rows, also when some of them are killed."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiny_source
from tiny_source import InWorkers, Texts

from t2x.base.errors import UserError
from t2x.base.files import try_lock
from t2x.data import Bytes, ConcatenateAndSplit, encoding_workers, token_rows
from t2x.data import encoded_split as encoded_module
from t2x.data.encoded_split import EncodedSplit
from t2x.data.encoding_workers import encode_split, num_workers

BYTES, PLAN = Bytes().train([]), ConcatenateAndSplit(32)
PREPARE = """
import sys, socket
sys.path.append({folder!r})
socket.gethostname = lambda: {host!r}
from pathlib import Path
from tiny_source import InWorkers, Texts
from t2x.data import Bytes, ConcatenateAndSplit, encoded_split, token_rows
encoded_split.RANGE = 300
rows = token_rows({source}, 'train', Bytes().train([]), ConcatenateAndSplit(32), Path({cache!r}))
"""


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
  monkeypatch.setattr(encoded_module, 'RANGE', 300)


@pytest.fixture
def prepare(monkeypatch, tmp_path):
  """`prepare(workers, source)` returns the bytes of the rows, in a cache of their own."""

  def run(workers, source=Texts(), cache='cache'):
    monkeypatch.setenv('T2X_WORKERS', str(workers))
    rows = token_rows(source, 'train', BYTES, PLAN, tmp_path / cache)
    assert not list(rows.folder.parent.glob('*.ranges'))
    return (rows.folder / 'rows.bin').read_bytes()

  return run


@pytest.fixture
def start(tmp_path, monkeypatch):
  """`start(source, host, workers)` starts a process that prepares rows in tmp_path/cache."""
  processes = []

  def run(source='Texts()', host='a', workers=1):
    code = PREPARE.format(
      folder=str(Path(tiny_source.__file__).parent),
      host=host,
      source=source,
      cache=str(tmp_path / 'cache'),
    )
    environment = os.environ | {'T2X_WORKERS': str(workers)}
    process = subprocess.Popen([sys.executable, '-c', code], env=environment)
    processes.append(process)
    return process

  yield run
  for process in processes:
    process.kill()
    process.wait()


def wait_until(condition, process=None):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    assert process is None or process.poll() is None
    time.sleep(0.02)


def test_rows_do_not_depend_on_the_number_of_workers(prepare, caplog):
  caplog.set_level(logging.INFO, 't2x')
  one = prepare(1, cache='one')
  assert 'worker' not in caplog.text
  assert prepare(2, cache='two') == one
  assert prepare(4, InWorkers('print', os.getpid()), cache='four') == one
  assert 'tokenising in 2 worker processes (to change: T2X_WORKERS)' in caplog.text
  assert 'tokenising in 4 worker processes' in caplog.text
  assert 'tokens/s' in caplog.text


@pytest.mark.parametrize('workers', [1, 2])
def test_progress_counts_the_examples_that_all_workers_have_encoded(tmp_path, workers):
  examples, numbers = Texts().load('train'), []
  ranges = encoded_module.split_into_ranges(examples)
  split = EncodedSplit(tmp_path / 'work', tmp_path / 'rows', examples, BYTES, PLAN, ranges)
  encode_split(split, workers, numbers.append)
  assert numbers == sorted(numbers)
  assert numbers[-1] == 60
  if workers == 1:
    assert len(set(numbers)) == len(ranges)


def test_small_data_starts_no_process(prepare, monkeypatch):
  monkeypatch.setattr(encoded_module, 'RANGE', 10_000)
  monkeypatch.setattr(encoding_workers.subprocess, 'Popen', None)
  assert prepare(4)


def test_a_killed_worker_is_replaced(prepare, caplog):
  whole = prepare(1, cache='whole')
  assert prepare(2, InWorkers('die', os.getpid())) == whole
  assert 'died (exit code 9), perhaps out of memory' in caplog.text


@pytest.mark.parametrize(
  ('action', 'error', 'told'),
  [('bad', UserError, "example 50 has no text 'text'"), ('raise', RuntimeError, 'in _act\n')],
)
def test_errors_of_workers_are_raised(prepare, action, error, told):
  with pytest.raises(error, match=told):
    prepare(2, InWorkers(action, os.getpid()))


def test_sources_that_workers_cannot_read_are_prepared_in_one_process(prepare, caplog):
  class Local(Texts):
    def load(self, split):
      examples = super().load(split)
      return [examples[i] | {'other': lambda: None} for i in range(len(examples))]

  whole = prepare(1, cache='whole')
  assert prepare(2, InWorkers('unpickle', os.getpid())) == whole
  assert 'cannot be read by another process (ModuleNotFoundError: no module of' in caplog.text
  caplog.clear()
  assert prepare(2, Local(), cache='local') == whole
  assert (
    'one process tokenises, because the examples or the tokenizer cannot be pickl' in caplog.text
  )


def test_hosts_share_the_ranges_and_replace_a_killed_host(prepare, start, tmp_path):
  stalled, work = tmp_path / 'stalled', tmp_path / 'cache' / 'rows'
  killed = start(f'Texts(stall={str(stalled)!r})', 'a')
  wait_until(stalled.exists, killed)
  other = start('Texts()', 'b')
  ranges = len(encoded_module.split_into_ranges([Texts().load('train')[i] for i in range(60)]))
  # The second host encodes all ranges but that of the first host, and waits for it.
  wait_until(lambda: len(list(work.glob('*.ranges/*.items'))) == ranges - 1, other)
  for _ in range(20):
    time.sleep(0.05)
    assert len(list(work.glob('*.ranges/*.items'))) == ranges - 1
  killed.kill()
  assert other.wait(timeout=60) == 0
  [rows] = work.glob('*/rows.bin')
  assert rows.read_bytes() == prepare(1, cache='whole')
  assert not list(work.glob('*.ranges'))


def test_one_process_per_host_starts_workers(prepare, tmp_path, monkeypatch, caplog):
  caplog.set_level(logging.INFO, 't2x')
  folder = tmp_path / 'cache'
  with pytest.raises(UserError):
    prepare(1, InWorkers('bad', os.getpid()))
  [work] = (folder / 'rows').glob('*.ranges')
  done = len(list(work.glob('*.items')))
  thread = threading.Thread(target=prepare, args=(1,))
  with try_lock(work / f'{socket.gethostname()}.lock') as locked:
    assert locked
    thread.start()
    wait_until(lambda: 'waiting for another process of this host' in caplog.text)
    time.sleep(0.2)
    assert len(list(work.glob('*.items'))) == done
  thread.join(60)
  assert prepare(1) == prepare(1, cache='whole')


def test_workers_end_with_the_main_process(start, tmp_path):
  place = tmp_path / 'pids'
  process = start(f"InWorkers('sleep', 0, {str(place)!r})", workers=2)
  wait_until(lambda: place.exists() and place.read_text().endswith('\n'), process)
  worker = int(place.read_text().split()[0])
  assert worker != process.pid
  process.send_signal(signal.SIGKILL)
  process.wait()
  wait_until(lambda: has_ended(worker))


def has_ended(pid):
  try:
    return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] == 'Z'
  except FileNotFoundError:
    return True


def test_the_number_of_workers_is_the_environments(monkeypatch):
  monkeypatch.delenv('T2X_WORKERS', raising=False)
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(5)))
  assert num_workers() == 5
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(500)))
  assert num_workers() == encoding_workers.MAX_WORKERS
  monkeypatch.setenv('T2X_WORKERS', '3')
  assert num_workers() == 3
  for value in ('0', '-1', 'all', ''):
    monkeypatch.setenv('T2X_WORKERS', value)
    with pytest.raises(UserError, match=f"T2X_WORKERS = '{value}': set it to the number"):
      num_workers()
