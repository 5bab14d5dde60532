"""status.json says how the last process of a run ended."""

import json
import os
import time

import pytest

from t2x.base.errors import Interrupted, UserError
from t2x.base.files import file_lock, is_locked
from t2x.run_folder import status as run_status
from t2x.run_folder.status import recorded


def status(folder):
  return json.loads((folder / 'status.json').read_text())


def record(folder, error=None):
  with recorded(folder, num_steps=30, metric='loss', mode='min'):
    before = status(folder)
    if error is not None:
      raise error
  return before


def test_the_status_is_running_then_done(tmp_path):
  before = record(tmp_path / 'run')
  assert (before['state'], before['ended'], before['pid']) == ('running', None, os.getpid())
  after = status(tmp_path / 'run')
  assert after == before | {'state': 'done', 'ended': after['ended']}
  assert before['started'] <= after['ended'] <= time.time()
  assert (after['num_steps'], after['metric'], after['mode']) == (30, 'loss', 'min')


@pytest.mark.parametrize(
  ('error', 'state', 'reason'),
  [
    (
      Interrupted('interrupted and saved at step 3'),
      'preempted',
      'interrupted and saved at step 3',
    ),
    (UserError('the disk is full\nmore'), 'failed', 'the disk is full'),
    (ValueError('bad \x1b shape'), 'failed', 'ValueError: bad \\x1b shape'),
    (KeyboardInterrupt(), 'failed', 'KeyboardInterrupt'),
  ],
)
def test_an_exception_is_recorded_in_one_line_and_raised(tmp_path, error, state, reason):
  with pytest.raises(type(error)):
    record(tmp_path, error)
  assert status(tmp_path)['state'] == state
  assert status(tmp_path)['reason'].startswith(reason)
  assert '\n' not in status(tmp_path)['reason']


def test_the_modification_time_is_renewed(tmp_path, monkeypatch):
  monkeypatch.setattr(run_status, 'HEARTBEAT', 0.01)
  with recorded(tmp_path, num_steps=1, metric='loss', mode='min'):
    path = tmp_path / 'status.json'
    os.utime(path, (1, 1))
    end = time.monotonic() + 10
    while path.stat().st_mtime < 2 and time.monotonic() < end:
      time.sleep(0.01)
    assert path.stat().st_mtime > 2


def test_a_status_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch, caplog):
  def fail(path, content):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(run_status, 'write_atomically', fail)
  with recorded(tmp_path, num_steps=1, metric='loss', mode='min'):
    pass
  assert 'No space left on device' in caplog.text


def test_a_held_lock_is_detected(tmp_path):
  path = tmp_path / '.lock'
  assert is_locked(path) is None
  with file_lock(path, lambda: pytest.fail('busy')):
    assert is_locked(path) is True
  assert is_locked(path) is False
  os.mkfifo(tmp_path / 'pipe')
  assert is_locked(tmp_path / 'pipe') in (None, False)
