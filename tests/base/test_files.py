"""Files that several write at once are whole."""

import errno
import os
import threading

import pytest

from t2x.base.errors import UserError
from t2x.base.files import (
  CHECKSUMS,
  check_folder,
  find_damage,
  try_lock,
  unused_path,
  write_atomically,
  write_checksums,
)


def test_writers_at_once_leave_the_file_of_one_of_them(tmp_path):
  path, contents = tmp_path / 'file', [bytes([i]) * 100_000 for i in range(4)]
  errors = []

  def write(content):
    try:
      for _ in range(50):
        write_atomically(path, content)
        assert path.read_bytes() in contents
    except Exception as error:
      errors.append(error)

  threads = [threading.Thread(target=write, args=(content,)) for content in contents]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not errors
  assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / 'file'
  write_atomically(path, b'old')

  def fail(*_):
    raise OSError('the disk is full')

  monkeypatch.setattr('os.replace', fail)
  with pytest.raises(OSError, match='full'):
    write_atomically(path, b'new')
  assert [one.name for one in tmp_path.iterdir()] == ['file']
  assert path.read_bytes() == b'old'


def test_a_lock_is_held_by_one_at_a_time(tmp_path, monkeypatch):
  path = tmp_path / 'lock'
  for _ in range(2):
    with try_lock(path) as first, try_lock(path) as second:
      assert (first, second) == (True, False)

  def flock(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr('t2x.base.files.fcntl.flock', flock)
  with try_lock(path) as first, try_lock(path) as second:
    assert (first, second) == (True, True)


def test_a_path_is_numbered_if_it_exists(tmp_path):
  names = []
  for _ in range(3):
    path = unused_path(tmp_path / 'page.v1.html')
    path.touch()
    names.append(path.name)
  assert names == ['page.v1.html', 'page.v1-2.html', 'page.v1-3.html']


@pytest.mark.parametrize('error', [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_refused_before_work_begins(tmp_path, monkeypatch, error):
  def fail(**_):
    raise OSError(error, os.strerror(error))

  monkeypatch.setattr('t2x.base.files.tempfile.TemporaryFile', fail)
  with pytest.raises(UserError, match=f'^--out .*run cannot be written: {os.strerror(error)}$'):
    check_folder('--out', tmp_path / 'new' / 'run')
  assert not any(tmp_path.iterdir())


def test_the_check_of_a_folder_leaves_nothing(tmp_path):
  check_folder('--out', tmp_path / 'new' / 'run')
  check_folder('--out', tmp_path)
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
  'content', [b'{}', b'[]', b'3', b'{"a": 1}', b'{"a": []}', b'{', b'', b'null']
)
def test_checksums_that_list_no_file_are_damage(tmp_path, content):
  (tmp_path / 'a').write_bytes(b'abc')
  write_checksums(tmp_path)
  assert find_damage(tmp_path) is None
  (tmp_path / CHECKSUMS).write_bytes(content)
  assert find_damage(tmp_path)
