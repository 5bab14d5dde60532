"""Digests of files are of all their bytes, and large files are hashed once for each change."""

import os
import shutil

import numpy as np
import pytest

from t2x.cli import main
from t2x.data import Part, TextFiles, files_of, verify_files
from t2x.data.prepared_folders import former_fingerprints
from t2x.data.sources import digests
from t2x.data.sources.digests import BLOCK, WHOLE, content_digest

LINE = b'a line of text\n'


@pytest.fixture
def large(tmp_path):
  """A file of 8 MiB."""
  path = tmp_path / 'large.txt'
  path.write_bytes(np.random.default_rng(0).bytes(2 * WHOLE))
  return path


def change(path, offset):
  """Changes a byte, at a later time."""
  changed = path.stat().st_mtime_ns + 10**9
  with path.open('r+b') as file:
    file.seek(offset)
    byte = file.read(1)
    file.seek(offset)
    file.write(bytes([byte[0] ^ 1]))
  os.utime(path, ns=(changed, changed))


def test_the_digest_is_of_content_not_of_place_or_time(large, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copy(large, copy)
  os.utime(copy, (1, 1))
  assert content_digest(copy) == content_digest(large)


@pytest.mark.parametrize('offset', [0, BLOCK - 1, 2 * WHOLE - BLOCK, 2 * WHOLE - 1])
def test_the_first_and_the_last_block_of_a_large_file_are_in_its_digest(large, offset):
  before = content_digest(large)
  change(large, offset)
  assert content_digest(large) != before


def test_the_size_of_a_large_file_is_in_its_digest(tmp_path):
  paths = [tmp_path / 'a', tmp_path / 'b']
  for path, size in zip(paths, (2 * WHOLE, 2 * WHOLE + 1), strict=True):
    path.write_bytes(bytes(size))
  assert content_digest(paths[0]) != content_digest(paths[1])


def test_every_byte_of_a_small_file_is_in_its_digest(tmp_path):
  path = tmp_path / 'small'
  path.write_bytes(bytes(WHOLE))
  digests = {content_digest(path)}
  for offset in np.random.default_rng(1).integers(WHOLE, size=20):
    change(path, offset)
    digests.add(content_digest(path))
  assert len(digests) == 21


def test_every_byte_of_a_large_file_is_in_its_digest(large):
  found = {content_digest(large)}
  for offset in np.random.default_rng(1).integers(2 * WHOLE, size=20):
    change(large, offset)
    found.add(content_digest(large))
  assert len(found) == 21


def test_a_large_file_is_hashed_once_for_each_change(large, monkeypatch):
  hashed, real = [], digests._hash
  monkeypatch.setattr(digests, '_hash', lambda path: (hashed.append(path), real(path))[1])
  for _ in range(2):
    content_digest(large)
    digests._kept_hash.cache_clear()  # As another process.
  assert len(hashed) == 1
  status = large.stat()
  change(large, BLOCK + 1000)
  os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
  content_digest(large)
  assert len(hashed) == 2


def test_older_checkpoints_have_digests_of_the_samples(large):
  with former_fingerprints():
    before = content_digest(large)
    change(large, BLOCK + 1000)
    assert content_digest(large) == before
  assert content_digest(large) != before


def test_verification_detects_changes_since_the_first_use(large):
  content_digest(large)
  assert verify_files([large]).equal == [large]
  change(large, BLOCK + 1000)
  assert verify_files([large]).changed == [large]
  # The file is used again: the hash of its first use stays.
  content_digest(large)
  assert verify_files([large, large]).changed == [large]
  renamed = large.rename(large.with_name('renamed'))
  assert verify_files([renamed]).new == [renamed]
  assert verify_files([renamed]).equal == [renamed]


def test_small_files_need_no_hash(tmp_path, cache):
  path = tmp_path / 'a.txt'
  path.write_bytes(LINE)
  content_digest(path)
  assert verify_files([path]).small == [path]
  assert not (cache / 'hashes').exists()


def test_an_edit_of_the_same_size_changes_the_rows(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_bytes(LINE * 400_000)
  source = Part(source=TextFiles(train=str(path), per_line=True), examples={'train': 400_000})
  before = source.fingerprint()
  source.load('train')
  change(path, BLOCK + 1001)
  assert source.fingerprint() != before
  assert len({example['text'] for example in source.load('train')}) == 2
  assert verify_files(files_of(source)).changed == [path]


def test_files_of_sources_in_any_setting(tmp_path):
  for name in 'ab':
    (tmp_path / name).write_bytes(LINE)
  a, b = (TextFiles(train=str(tmp_path / name)) for name in 'ab')
  sources = {'x': Part(source=a, examples={'train': 1}), 'y': [b, 3]}
  assert list(files_of(sources)) == [tmp_path / 'a', tmp_path / 'b']
  assert list(files_of('text')) == []


def test_unreadable_files_and_damaged_hashes_are_errors(large, tmp_path, cache, message):
  assert 'cannot be read: No such file' in message(content_digest, tmp_path / 'no')
  assert 'cannot be read: No such file' in message(verify_files, [tmp_path / 'no'])
  content_digest(large)
  [record] = cache.glob('hashes/*.json')
  record.write_text('{')
  assert f'{record} is damaged' in message(verify_files, [large])


CONFIG = """
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  length = 8
TextFiles.train = '{}'
"""


def test_the_command_prints_changed_files(large, tmp_path, capsys):
  def verify():
    code = main(['data', 'verify', str(tmp_path / 'a.gin')])
    return code, *capsys.readouterr()

  (tmp_path / 'a.gin').write_text(CONFIG.format(tmp_path / 'large*'))
  (tmp_path / 'large-not').write_bytes(LINE)
  assert verify()[:2] == (
    0,
    '1 file: at most 4 MiB: any change changes the fingerprint\n1 file: hashed for the first time\n',
  )
  assert '1 file: unchanged since' in verify()[1]
  change(large, BLOCK + 1000)
  code, _, error = verify()
  assert code == 2
  assert '1 of 2 files changed' in error
  assert error.endswith(f'\n  {large}\n')


def test_a_source_without_files_has_nothing_to_verify(tmp_path, capsys):
  (tmp_path / 'a.gin').write_text(
    'Experiment.task = @ImageClassification()\n'
    'ImageClassification:\n  source = @Digits()\n  image_shape = (8, 8, 1)\n  num_classes = 10\n'
  )
  assert main(['data', 'verify', str(tmp_path / 'a.gin')]) == 2
  assert 'no files that rows are prepared from in Digits()' in capsys.readouterr().err
