"""Fingerprints that every process agrees on, and folders that are whole or not there."""

import dataclasses
import errno
import functools
import math
import os
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import Batches, Chain, LabelledTexts, PackPairs, PrepareImage, RandAugment
from t2x.data.prepared_folders import fingerprint, prepare, write_folder
from t2x.samples import BrownWords, Digits, name_spans, parts_of_speech


def prepare_row(row, rng):
  return row


@dataclasses.dataclass(frozen=True)
class Holds:
  what: Any
  hidden: Any = dataclasses.field(default=None, repr=False)


class Plain:
  def __call__(self, row, rng):
    return row


def test_a_function_counts_by_its_module_and_name():
  other = Holds(math.sqrt)
  assert fingerprint(Holds(prepare_row)) == fingerprint(f'Holds(what={__name__}.prepare_row)')
  assert fingerprint(Holds(functools.partial(prepare_row, 1))) != fingerprint(Holds(prepare_row))
  assert fingerprint(other) == fingerprint(Holds(math.sqrt))


def test_functions_of_samples_have_the_fingerprint_of_stored_runs():
  for name, function in {'parts_of_speech': parts_of_speech, 'name_spans': name_spans}.items():
    assert fingerprint(Holds(function)) == fingerprint(f'Holds(what=t2x.data.samples.brown.{name})')


def test_sets_count_whatever_their_order():
  assert fingerprint({'b', 'a'}) == fingerprint("set('a', 'b')")
  assert fingerprint(Holds(frozenset('ab'))) == fingerprint("Holds(what=frozenset('a', 'b'))")


@pytest.mark.parametrize(
  'value',
  [
    PackPairs(8, 9),
    LabelledTexts(length=8, labels=('a', "it's")),
    Chain((RandAugment(), PrepareImage(mean=(0.5, 0.25)))),
    Digits(),
    {'a': [1, (2,), ('x', None)], 'b': {}},
    'meet at 0x1f',
    ['meet at 0x1f', ()],
    np.int32,
    [np.float32(0.1), np.dtype('int32')],
  ],
)
def test_other_values_count_as_their_repr(value):
  assert fingerprint(value) == fingerprint(value if isinstance(value, str) else repr(value))


@pytest.mark.parametrize(
  'array',
  [
    np.arange(5000),
    np.linspace(0, 1, 7, dtype=np.float32),
    np.arange('2000-01', '2300-01', dtype='datetime64[M]'),
    np.array(['a' * 3000, None] * 800, dtype=object),
  ],
  ids=lambda array: str(array.dtype),
)
def test_every_element_of_an_array_counts(array):
  middle = len(array) // 2
  other = array.copy()
  other[middle] = other[1] if array.dtype.kind in 'OM' else np.nextafter(array[middle], 9e9)
  if array.dtype.kind == 'i':
    other[middle] = 7
  values = [Holds(array), Holds(other), Holds(array[:-1]), Holds(array[None])]
  values += [] if array.dtype.hasobject else [Holds(array.astype(str))]
  assert len({fingerprint(value) for value in values}) == len(values)
  assert fingerprint(Holds(array)) == fingerprint(Holds(array.copy()))


@pytest.mark.parametrize(
  ('value', 'told'),
  [
    (Plain(), 'memory address; make the class a dataclass'),
    (Chain((Plain(),)), 'Plain has no fingerprint'),
    (lambda row, rng: row, 'define it at the top level of a module'),
    (Holds([functools.partial(lambda row: row)]), 'define it at the top level of a module'),
  ],
)
def test_values_with_an_address_are_refused(value, told):
  with pytest.raises(UserError, match=told):
    fingerprint(value)


def test_rows_that_hold_objects_have_the_fingerprint_of_their_content():
  def rows(text):
    return [{'image': np.zeros((2, 2), np.uint8), 'label': 1, 'seen': {'by': [text, 'you']}}]

  def mark(text):
    return Batches(rows(text), batch_size=1, seed=0).fingerprint

  assert mark('me') == mark('m' + 'e'.lower())
  assert mark('me') != mark('us')


def test_labels_of_another_module_are_another_source(tmp_path):
  for folder in ('package', 'none'):
    (tmp_path / folder).mkdir()
  (tmp_path / 'package' / 'ca01').write_text('The/at dog/nn')
  source = BrownWords(folder=str(tmp_path))

  def relabelled(module):
    def parts_of_speech(tags):
      return tags

    parts_of_speech.__module__, parts_of_speech.__qualname__ = module, 'parts_of_speech'
    return dataclasses.replace(source, labels=parts_of_speech)

  marks = {one.fingerprint() for one in (source, relabelled('mine'), relabelled('yours'))}
  assert len(marks) == 3


PREPARE = """
import sys, time
from pathlib import Path
from t2x.data.prepared_folders import {function}

def write(folder):
  (folder / 'half').write_text('half')
  Path({place!r}, 'stalled').touch()
  while not Path({place!r}, 'go').exists():
    time.sleep(0.02)

{function}(Path({place!r}, 'cache', 'first'), write)
"""


@pytest.fixture
def stalled(tmp_path):
  """`stalled(function)` starts a process that stands still while it fills cache/first."""
  processes = []

  def start(function='prepare'):
    code = PREPARE.format(function=function, place=str(tmp_path))
    process = subprocess.Popen([sys.executable, '-c', code])
    processes.append(process)
    while not (tmp_path / 'stalled').exists():
      assert process.poll() is None
      time.sleep(0.02)
    return process

  yield start
  for process in processes:
    process.kill()
    process.wait()


def leftovers(folder):
  return [path.name for path in folder.glob('*.tmp-*')]


@pytest.mark.parametrize('function', ['prepare', 'write_folder'])
def test_files_of_a_killed_process_are_removed_by_the_next_preparation(stalled, tmp_path, function):
  process, cache = stalled(function), tmp_path / 'cache'
  process.kill()
  process.wait()
  assert len(leftovers(cache)) == 1
  prepare(cache / 'second', lambda folder: (folder / 'whole').touch())
  assert leftovers(cache) == []
  assert (cache / 'second' / 'whole').exists()


def test_files_of_a_running_process_are_not_removed(stalled, tmp_path):
  process, cache = stalled(), tmp_path / 'cache'
  prepare(cache / 'second', lambda folder: None)
  assert len(leftovers(cache)) == 1
  (tmp_path / 'go').touch()
  assert process.wait(timeout=60) == 0
  assert (cache / 'first' / 'half').read_text() == 'half'
  assert leftovers(cache) == []


def test_folders_of_other_machines_and_other_names_stay(tmp_path):
  here = socket.gethostname()
  kept = [f'a.tmp-not-{here}x-01234567', f'a.tmp-{here}-short', 'mine.tmp-old']
  for name in (*kept, f'a.tmp-{here}-01234567'):
    (tmp_path / name).mkdir()
  write_folder(tmp_path / 'b', lambda folder: None)
  assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, 'b'])


def test_without_file_locks_nothing_is_removed(tmp_path, monkeypatch):
  left = tmp_path / f'a.tmp-{socket.gethostname()}-01234567'
  left.mkdir()

  def flock(*args):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr('t2x.data.prepared_folders.fcntl.flock', flock)
  write_folder(tmp_path / 'b', lambda folder: (folder / 'whole').touch())
  assert left.is_dir()
  assert (tmp_path / 'b' / 'whole').exists()


@pytest.mark.parametrize(
  ('number', 'advice'), [(errno.ENOSPC, 'has free space'), (errno.EACCES, 'can be written')]
)
def test_errors_of_the_system_state_what_the_folder_needs(tmp_path, number, advice):
  def write(folder):
    raise OSError(number, os.strerror(number))

  with pytest.raises(UserError, match=f'{os.strerror(number)}; .* a folder that {advice}'):
    prepare(tmp_path / 'data', write)
