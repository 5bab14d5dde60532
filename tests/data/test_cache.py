"""The token cache is whole or not there, reused while nothing changed, and rebuilt when it did."""

import dataclasses
import json
import pickle
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny_source
from tiny_source import Texts

from t2x.base.errors import UserError
from t2x.data import (
  BestFitDocuments,
  Bytes,
  Characters,
  ConcatenateAndSplit,
  LabelledTexts,
  PackPairs,
  Rows,
  token_rows,
)
from t2x.data import cache as cache_module
from t2x.data.plans import Column, Plan
from t2x.data.prepared_folders import cache_folder, prepare

BYTES = Bytes().train([])
PREPARE = """
import sys
sys.path.append({folder!r})
from pathlib import Path
from tiny_source import Texts
from t2x.data import Bytes, ConcatenateAndSplit, token_rows
rows = token_rows(
  Texts(stall={stall!r}), 'train', Bytes().train([]), ConcatenateAndSplit(32), Path({cache!r})
)
print(len(rows), rows[0]['tokens'].sum())
"""


def start_preparing(cache, stall=None):
  script = PREPARE.format(
    folder=str(Path(tiny_source.__file__).parent), cache=str(cache), stall=stall
  )
  return subprocess.Popen([sys.executable, '-c', script], stdout=subprocess.PIPE, text=True)


def folders(cache):
  return [path for path in (cache / 'rows').iterdir() if path.is_dir()]


def test_rows_hold_the_text_of_the_split(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  texts = [Texts().load('train')[i]['text'] for i in range(60)]
  tokens = [t for row in rows for t in row['tokens'].tolist() if t]
  assert BYTES.decode(tokens) == ''.join(texts)
  size = sum(map(len, texts))
  assert rows.info['bytes'] == size
  assert rows.info['tokens'] == size + 60
  assert rows.info['rows'] == len(rows) == -(-(size + 60) // 32)
  assert rows.info['efficiency'] == pytest.approx((size + 60) / (32 * len(rows)), abs=1e-5)
  assert list(rows[-1]) == ['tokens', 'segments', 'positions']
  assert all(a.shape == (32,) and a.dtype == np.int32 for a in rows[-1].values())


@dataclasses.dataclass(frozen=True)
class Scores(Plan):
  """Rows with one value per text."""

  value: object
  dtype_of_column: type
  shape: object = 1

  columns = property(lambda self: {'score': Column(self.shape, self.dtype_of_column)})

  def encode(self, examples, tokenizer, counts):
    for _ in examples:
      yield {'score': self.value}


@pytest.mark.parametrize(('value', 'dtype'), [(3.8, np.int32), ('3', np.int32), ('3', np.float32)])
def test_values_that_a_column_would_change_are_refused(tmp_path, value, dtype):
  with pytest.raises(UserError, match=r"the column 'score' of Scores has values of type"):
    token_rows(Texts(), 'train', BYTES, Scores(value, dtype), tmp_path)
  assert token_rows(Texts(), 'train', BYTES, Scores(3, np.int32), tmp_path)[0] == {'score': 3}


# Several processes with one column without a shape and one with rows, with every commit.
@pytest.mark.parametrize(
  ('dtype', 'shape', 'value', 'read', 'several'),
  [
    pytest.param(*case, several, marks=pytest.mark.nightly if several and rare else ())
    for rare, *case in (
      (True, np.float32, 1, np.float32(3.8), np.float32),
      (False, np.float32, (), 3, np.float32),
      (False, np.float16, (2, 3), ((0.5, 1, 2), (-1, 1 / 4, 0)), np.float32),
      (True, np.int16, (3, 1), ((-5,), (2,), (300,)), np.int32),
    )
    for several in (False, True)
  ],
)
def test_columns_have_a_shape_and_a_type(tmp_path, monkeypatch, dtype, shape, value, read, several):
  if several:  # Encoded by worker processes, and then read from their files.
    monkeypatch.setattr('t2x.data.encoded_split.RANGE', 100)
  rows = token_rows(Texts(), 'train', BYTES, Scores(value, dtype, shape), tmp_path)
  for row in (rows[0], rows[-1]):
    assert row['score'].dtype == read
    assert row['score'].shape == (() if shape == 1 else shape)
    np.testing.assert_array_equal(row['score'], np.asarray(value, read))


def test_padding_and_divided_documents_are_logged(tmp_path, caplog):
  with caplog.at_level('INFO', 't2x'):
    rows = token_rows(Texts(), 'train', BYTES, BestFitDocuments(64), tmp_path)
  assert rows.info['divided'] == 0 and rows.info['split'] == 'train'
  padding = 1 - rows.info['tokens'] / (64 * len(rows))
  assert f'rows ({padding:.1%} padding)' in caplog.text and 'divided' not in caplog.text
  with caplog.at_level('INFO', 't2x'):
    rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(64), tmp_path)
  assert f'; {rows.info["divided"]} divided between rows' in caplog.text


def test_pairs_have_their_columns_and_counts(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, PackPairs(40, 40), tmp_path)
  assert set(rows[0]) == {
    f'{side}{what}' for side in ('source', 'target') for what in ('', '_segments', '_positions')
  }
  assert rows.info['dropped'] > 0
  assert rows.info['examples'] == 60


def test_rows_are_read_alike_in_order_and_at_random_in_another_process(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  in_order = list(rows)
  assert len(pickle.dumps(rows)) < 1000
  copy = pickle.loads(pickle.dumps(rows))
  for i in np.random.default_rng(0).permutation(len(rows)):
    for name, value in copy[i].items():
      np.testing.assert_array_equal(value, in_order[i][name])
  with pytest.raises(IndexError):
    rows[len(rows)]


def test_memory_does_not_grow_with_the_rows(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  info = json.loads((rows.folder / 'info.json').read_text())
  many = 1 << 20
  with (rows.folder / cache_module.FILE).open('ab') as file:
    file.truncate(file.tell() // len(rows) * many)
  (rows.folder / 'info.json').write_text(json.dumps(info | {'rows': many}))
  tracemalloc.start()
  assert not Rows(rows.folder)[many - 1]['tokens'].any()
  most = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert most < 1 << 20


def test_the_cache_is_used_again_and_rebuilt_when_anything_changes(tmp_path):
  def rows(source=Texts(), tokenizer=BYTES, length=32):
    return token_rows(source, 'train', tokenizer, ConcatenateAndSplit(length), tmp_path)

  first = rows()
  written = (first.folder / 'info.json').stat().st_mtime_ns
  assert (rows().folder / 'info.json').stat().st_mtime_ns == written
  others = [
    rows(length=16),
    rows(Texts(version=1)),
    rows(tokenizer=Characters(40).train(['number of word'])),
  ]
  assert len({one.fingerprint for one in (first, *others)}) == 4


def test_a_killed_preparation_leaves_no_partial_data(tmp_path):
  stall = tmp_path / 'stalled'
  process = start_preparing(tmp_path, str(stall))
  for _ in range(600):
    if stall.exists() or process.poll() is not None:
      break
    time.sleep(0.05)
  assert stall.exists()
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert [path.name for path in folders(tmp_path) if '.tmp-' not in path.name] == []

  rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  assert len(list(rows)) == rows.info['rows']
  assert [path.name for path in folders(tmp_path)] == [rows.folder.name]


def test_two_processes_that_prepare_the_same_both_end_well(tmp_path):
  processes = [start_preparing(tmp_path) for _ in range(2)]
  told = [process.communicate(timeout=60)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0]
  assert told[0] == told[1] != ''
  assert len(folders(tmp_path)) == 1


def test_a_failed_preparation_leaves_no_files(tmp_path):
  def write(folder):
    (folder / 'half').write_text('half')
    raise ValueError('no')

  with pytest.raises(ValueError, match='no'):
    prepare(tmp_path / 'made', write)
  assert [path.name for path in tmp_path.iterdir()] == ['made.lock']


def test_a_full_disk_is_a_one_line_error(tmp_path):
  def write(folder):
    raise OSError(28, 'No space left on device')

  with pytest.raises(UserError, match='No space left on device; set T2X_CACHE'):
    prepare(tmp_path / 'made', write)


class Counted(dict):
  """An example that knows how many of its kind there are."""

  alive = most = 0

  def __init__(self, **fields):
    super().__init__(**fields)
    Counted.alive += 1
    Counted.most = max(Counted.most, Counted.alive)

  def __del__(self):
    Counted.alive -= 1


@dataclasses.dataclass(frozen=True)
class Streamed:
  """Many examples, made when they are read: in chunks where they are iterated over."""

  count: int
  chunk: int = 16

  def fingerprint(self):
    return f'streamed-{self.count}'

  def load(self, split):
    return StreamedExamples(self)


class StreamedExamples(Sequence):
  reads = 0

  def __init__(self, source):
    self.source = source

  def __len__(self):
    return self.source.count

  def __getitem__(self, i):
    StreamedExamples.reads += 1
    return Counted(text=f'word {i}', label='a')

  def __iter__(self):
    for start in range(0, len(self), self.source.chunk):
      StreamedExamples.reads += 1
      stop = min(start + self.source.chunk, len(self))
      yield from [Counted(text=f'word {i}', label='a') for i in range(start, stop)]


@pytest.mark.parametrize('labelled', [False, True])
def test_examples_are_read_in_order_and_few_are_in_memory(tmp_path, labelled):
  most = []
  for count in (400, 1600):
    Counted.most = StreamedExamples.reads = 0
    source = Streamed(count)
    if labelled:
      plan = LabelledTexts(length=16, labels=('a',))
      rows = token_rows(source, 'train', BYTES, plan, tmp_path)
    else:
      rows = token_rows(source, 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
    assert rows.info['examples'] == count
    # The division into ranges and annotations that are checked at run time read a few examples.
    assert StreamedExamples.reads < count / 8
    most.append(Counted.most)
  assert most[1] <= most[0] <= 2 * Streamed(1).chunk


def test_a_damaged_cache_is_an_error(tmp_path):
  rows = token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)
  info = json.loads((rows.folder / 'info.json').read_text())
  (rows.folder / 'info.json').write_text(json.dumps(info | {'rows': info['rows'] + 1}))
  with pytest.raises(UserError, match='remove'):
    Rows(rows.folder)[0]
  (rows.folder / 'info.json').write_text(json.dumps(info))
  content = (rows.folder / cache_module.FILE).read_bytes()
  (rows.folder / cache_module.FILE).write_bytes(content[:-1])
  with pytest.raises(UserError, match=rf'has {len(content) - 1} bytes, not {len(content)}: remove'):
    Rows(rows.folder)[0]
  (rows.folder / cache_module.FILE).unlink()
  with pytest.raises(UserError, match=r'cannot be read .*: remove'):
    Rows(rows.folder)[0]
  (rows.folder / 'info.json').write_text('{')
  with pytest.raises(UserError, match='remove'):
    Rows(rows.folder)


def test_caches_of_another_layout_are_unchanged_and_runs_are_resumed(tmp_path, monkeypatch):
  def rows():
    return token_rows(Texts(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)

  monkeypatch.setattr(cache_module, 'LAYOUT', 1)
  old = rows()
  (old.folder / cache_module.FILE).unlink()
  monkeypatch.undo()
  new = rows()
  assert new.folder != old.folder
  # A checkpoint holds the fingerprint of its data.
  assert new.fingerprint == old.fingerprint
  assert len(list(new)) == new.info['rows']


def test_rows_written_before_the_files_were_mapped_are_no_rows(tmp_path):
  info = {'fingerprint': 'f', 'rows': 1, 'columns': [['tokens', 2, '<u2'], ['segments', 2, '<u2']]}
  (tmp_path / 'info.json').write_text(json.dumps(info))
  (tmp_path / 'rows.array_record').write_bytes(b'records')
  with pytest.raises(UserError, match=r'contains no prepared rows .*: remove it'):
    Rows(tmp_path)


def test_an_example_without_its_text_is_an_error(tmp_path):
  class Images(Texts):
    def load(self, split):
      return [{'image': 1, 'label': 2}]

  with pytest.raises(UserError, match=r"no text 'text': its fields are \['image', 'label'\]"):
    token_rows(Images(), 'train', BYTES, ConcatenateAndSplit(32), tmp_path)


def test_the_cache_folder_is_the_environments(monkeypatch, tmp_path):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  assert cache_folder() == tmp_path
  monkeypatch.delenv('T2X_CACHE')
  assert cache_folder() == Path.home() / '.cache' / 't2x'
