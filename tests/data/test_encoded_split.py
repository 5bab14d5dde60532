"""Splits encoded in ranges have the rows of splits encoded at once; finished ranges are kept."""

import collections
import dataclasses
import io
import os
import time
from collections.abc import Sequence

import numpy as np
import pytest
from tiny_source import Texts

from t2x.base.errors import UserError
from t2x.data import (
  Bytes,
  ConcatenateAndSplit,
  FullRows,
  LabelledTexts,
  LabelledWords,
  PackPairs,
  PadPairs,
  SpanWindows,
  token_rows,
)
from t2x.data import encoded_split as encoded_module
from t2x.data.encoded_split import read_items, split_into_ranges, write_items

BYTES = Bytes().train([])
LABELS = ('a', 'b')
PLANS = [
  ConcatenateAndSplit(32),
  FullRows(32),
  PackPairs(40, 40),
  PadPairs(64, 64, too_long='cut'),
  LabelledTexts(length=40, labels=LABELS, fields=('source', 'target')),
  LabelledWords(length=40, labels=LABELS),
  SpanWindows(length=48, stride=8, question_length=16),
]


@dataclasses.dataclass(frozen=True)
class Everything:
  """Examples with the fields of every plan; records which are read, and fails at one."""

  count: int = 60
  bad: int | None = None
  reads: list = dataclasses.field(default_factory=list, repr=False)

  def fingerprint(self):
    return f'everything-{self.count}'

  def load(self, split):
    return EverythingExamples(self)


class EverythingExamples(Sequence):
  def __init__(self, source):
    self.source, self.texts = source, Texts(source.count).load('train')

  def __len__(self):
    return self.source.count

  def __getitem__(self, i):
    if not 0 <= i < len(self):
      raise IndexError(i)
    self.source.reads.append(i)
    if i == self.source.bad:
      return {'image': 1}
    example = self.texts[i]
    words = example['text'].split()
    return example | {
      'words': words,
      'labels': [LABELS[j % 2] for j in range(len(words))],
      'label': LABELS[i % 2],
      'question': f'what is {i}?',
      'context': example['text'],
      'answers': ['number'],
      'starts': [0],
    }


@pytest.fixture
def small_ranges(monkeypatch):
  """`small_ranges()`: from now on, a split of a few hundred characters has several ranges."""
  monkeypatch.setenv('T2X_WORKERS', '1')
  return lambda: monkeypatch.setattr(encoded_module, 'RANGE', 1000)


def content(rows):
  info = {name: value for name, value in rows.info.items() if name != 'seconds'}
  return info, (rows.folder / 'rows.bin').read_bytes()


@pytest.mark.parametrize('plan', PLANS, ids=lambda plan: type(plan).__name__)
def test_ranges_together_have_all_rows(tmp_path, small_ranges, monkeypatch, plan):
  whole = token_rows(Everything(), 'train', BYTES, plan, tmp_path / 'whole')
  small_ranges()
  monkeypatch.setattr(encoded_module, 'BLOCK', 100)
  assert len(split_into_ranges(Everything().load('train'))) > 3
  ranges = token_rows(Everything(), 'train', BYTES, plan, tmp_path / 'ranges')
  assert content(ranges) == content(whole)
  assert ranges.fingerprint == whole.fingerprint
  # The work folder is removed.
  names = sorted(path.name for path in (tmp_path / 'ranges' / 'rows').iterdir())
  assert names == [ranges.folder.name, f'{ranges.folder.name}.lock']


def test_ranges_cover_the_examples_and_depend_only_on_them(monkeypatch):
  assert split_into_ranges([]) == []
  examples = [{'text': 'x' * 10, 'words': ['ab', 'cd'], 'label': 3}] * 100
  assert split_into_ranges(examples) == [range(100)]
  monkeypatch.setattr(encoded_module, 'RANGE', 14 * 30)
  assert split_into_ranges(examples) == [
    range(30), range(30, 60), range(60, 90), range(90, 100)
  ]  # fmt: skip
  assert split_into_ranges([{'text': 'x' * 10**6}] * 3) == [range(1), range(1, 2), range(2, 3)]
  monkeypatch.setattr(encoded_module, 'MAX_RANGES', 2)
  assert split_into_ranges(examples) == [range(50), range(50, 100)]


def test_an_interrupted_preparation_resumes_with_the_remaining_ranges(
  tmp_path, small_ranges, monkeypatch
):
  small_ranges()
  monkeypatch.setattr(encoded_module.random, 'randrange', lambda stop: 0)
  plan = ConcatenateAndSplit(32)
  with pytest.raises(UserError, match="example 50 has no text 'text'"):
    token_rows(Everything(bad=50), 'train', BYTES, plan, tmp_path)
  source = Everything()
  sampled = {i * 60 // encoded_module.SAMPLE for i in range(encoded_module.SAMPLE)}
  bad = next(part for part in split_into_ranges(source.load('train')) if 50 in part)
  source.reads.clear()
  resumed = token_rows(source, 'train', BYTES, plan, tmp_path)
  assert set(source.reads) - sampled == set(range(bad.start, 60)) - sampled
  source.reads.clear()
  assert content(resumed) == content(token_rows(Everything(), 'train', BYTES, plan, tmp_path / 'b'))


def test_few_items_are_in_memory(tmp_path, small_ranges, monkeypatch):
  small_ranges()
  monkeypatch.setattr(encoded_module, 'RANGE', 1 << 14)
  monkeypatch.setattr(encoded_module, 'BLOCK', 1 << 10)
  alive, most = 0, 0

  class Text(str):
    def __new__(cls, text):
      nonlocal alive, most
      alive += 1
      most = max(most, alive)
      return super().__new__(cls, text)

    def __del__(self):
      nonlocal alive
      alive -= 1

  class Many(Texts):
    def load(self, split):
      return ManyExamples()

  class ManyExamples(Sequence):
    def __len__(self):
      return 4000

    def __getitem__(self, i):
      return {'text': Text('word ' * 20)}

  monkeypatch.setattr('t2x.data.packing.BATCH', 1000)
  rows = token_rows(Many(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  assert rows.info['examples'] == 4000
  assert most < 40


def test_items_of_several_blocks_are_read_as_written(monkeypatch):
  monkeypatch.setattr(encoded_module, 'BLOCK', 10)
  items = [
    {
      'a': np.arange(i % 5) + 70_000 * (i == 7),
      'b': i - 3,
      'c': np.full((2, 1), 300),
      'd': np.float32([[i / 7, -i]]),
    }
    for i in range(20)
  ]
  with open(os.memfd_create('items'), 'w+b') as file:
    types = write_items(file, iter(items))
    file.seek(0)
    copies = list(read_items(file, types))
  assert types == {'a': 'int32', 'b': 'int32', 'c': 'int32', 'd': 'float32'}
  for item, copy in zip(items, copies, strict=True):
    for name, dtype in types.items():
      assert copy[name].dtype == dtype
      np.testing.assert_array_equal(copy[name], np.ravel(item[name]))
  assert write_items(io.BytesIO(), iter([])) == {}
  with pytest.raises(TypeError, match='must be integers or floats, not <U1'):
    write_items(io.BytesIO(), iter([{'a': np.array(['x'])}]))


def test_a_damaged_range_is_an_error(tmp_path, small_ranges, monkeypatch):
  small_ranges()
  monkeypatch.setattr(encoded_module.random, 'randrange', lambda stop: 0)
  plan = ConcatenateAndSplit(32)
  with pytest.raises(UserError, match='example 50'):
    token_rows(Everything(bad=50), 'train', BYTES, plan, tmp_path)
  first = next((tmp_path / 'rows').glob('*.ranges/0-*.items'))
  first.write_bytes(first.read_bytes()[:-1])
  with pytest.raises(UserError, match=rf'{first.name} is damaged: remove {first.parent}'):
    token_rows(Everything(), 'train', BYTES, plan, tmp_path)


def test_work_folders_are_removed_when_they_are_old(tmp_path, small_ranges):
  small_ranges()
  now, rows = time.time(), tmp_path / 'rows'
  for name, age in (('old', encoded_module.ABANDONED + 60), ('new', 60)):
    folder = rows / f'{name}.ranges'
    folder.mkdir(parents=True)
    os.utime(folder, (now - age, now - age))
  token_rows(Everything(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  assert [path.name for path in rows.glob('*.ranges')] == ['new.ranges']


def test_counts_of_all_ranges_are_added(tmp_path, small_ranges):
  small_ranges()
  rows = token_rows(Everything(), 'train', BYTES, PadPairs(40, 40), tmp_path)
  texts = Texts().load('train')
  assert rows.info['bytes'] == sum(
    len(texts[i][name]) for i in range(60) for name in ('source', 'target')
  )
  assert rows.info['dropped'] + rows.info['rows'] == 60
  assert collections.Counter(type(value) for value in rows.info.values())[int] > 5
