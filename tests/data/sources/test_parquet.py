"""Text in Parquet files."""

import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from t2x.data import Parquet, files_of

TEXTS = [f'text {i} é' for i in range(25)]


@pytest.fixture
def write(tmp_path):
  def write(name, columns, **settings):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **settings)
    return str(path)

  return write


@pytest.fixture
def two_files(write, tmp_path):
  write('a.parquet', {'text': TEXTS[:15], 'id': range(15)}, row_group_size=4)
  write('b.parquet', {'text': TEXTS[15:], 'id': range(15, 25)}, row_group_size=100)
  return Parquet(train=str(tmp_path / '*.parquet'))


def test_rows_of_all_row_groups_and_files_in_any_order(two_files):
  examples = two_files.load('train')
  assert list(examples) == [{'text': text, 'id': i} for i, text in enumerate(TEXTS)]
  order = random.Random(0).sample(range(-25, 25), 50)
  assert [examples[i]['text'] for i in order] == [TEXTS[i] for i in order]
  copy = pickle.loads(pickle.dumps(examples))
  assert [e['text'] for e in copy[3:21]] == TEXTS[3:21]
  assert [e['id'] for e in copy[20:2:-3]] == list(range(20, 2, -3))
  assert copy[5:5] == []


def test_only_columns_that_are_used_are_read(two_files, write, monkeypatch):
  path = write('c.parquet', {'en': ['a'], 'de': ['b'], 'more': [3]})
  source = Parquet(train=path, fields={'source': 'en', 'target': 'de'})
  columns = []
  usual = pq.ParquetFile.read_row_group

  def read(file, group, columns):
    seen.append(columns)
    return usual(file, group, columns=columns)

  seen = columns
  monkeypatch.setattr(pq.ParquetFile, 'read_row_group', read)
  assert list(source.load('train')) == [{'source': 'a', 'target': 'b'}]
  assert seen == [['de', 'en']]


def test_a_row_group_is_read_once_in_iteration_and_is_not_pickled(two_files, monkeypatch):
  groups = []
  usual = pq.ParquetFile.read_row_group

  def read(file, group, columns):
    groups.append(group)
    return usual(file, group, columns=columns)

  monkeypatch.setattr(pq.ParquetFile, 'read_row_group', read)
  examples = two_files.load('train')
  monkeypatch.setattr(type(examples), 'chunk', 3)
  assert len(list(examples)) == 25
  assert groups == [0, 1, 2, 3, 0]
  assert len(pickle.dumps(examples)) < 1000


def test_words_and_labels_are_lists(write):
  path = write('a.parquet', {'words': [['a', 'b']], 'labels': [['O', 'N']]})
  assert list(Parquet(train=path).load('train')) == [{'words': ['a', 'b'], 'labels': ['O', 'N']}]


def test_the_fingerprint_is_of_content_and_settings(two_files, write, tmp_path):
  same = write('elsewhere/a.parquet', {'text': TEXTS[:15], 'id': range(15)}, row_group_size=4)
  first = Parquet(train=str(tmp_path / 'a.parquet'))
  assert Parquet(train=same).fingerprint() == first.fingerprint()
  other = write('other/a.parquet', {'text': TEXTS[1:16], 'id': range(15)}, row_group_size=4)
  renamed = Parquet(train=first.train, fields={'text': 'text'})
  assert len({s.fingerprint() for s in (first, two_files, Parquet(train=other), renamed)}) == 4
  assert [path.name for path in files_of(two_files)] == ['a.parquet', 'b.parquet']


@pytest.mark.parametrize(
  ('columns', 'fields', 'told'),
  [
    (
      {'body': ['x']},
      {'text': 'txt'},
      "has no column 'txt', which Parquet.fields names: it has 'body'",
    ),
    (
      {'body': ['x']},
      {},
      "row 0 of row group 0: needs text in the field 'text', but it has 'body'",
    ),
    ({'text': [1]}, {}, "needs text in the field 'text', but it is not text"),
    (
      {'text': ['a', None]},
      {},
      "row 1 of row group 0: needs text in the field 'text', but it is not",
    ),
    ({'text': pa.array([], pa.string())}, {}, 'is empty: remove it from Parquet.train'),
  ],
)
def test_unsuitable_files_are_errors(write, message, columns, fields, told):
  path = write('a.parquet', columns)
  said = message(lambda: list(Parquet(train=path, fields=fields).load('train')))
  assert said.startswith(path)
  assert told in said


def test_truncated_and_other_files_are_errors(two_files, tmp_path, message):
  path = tmp_path / 'a.parquet'
  content = path.read_bytes()
  for damaged in (content[: len(content) // 2], b'text', b''):
    path.write_bytes(damaged)
    assert f'{path} is no Parquet file, or is damaged' in message(two_files.load, 'train')
  said = message(Parquet(train=str(tmp_path)).load, 'train')
  assert f"set a pattern such as '{tmp_path}/**/*.parquet'" in said
