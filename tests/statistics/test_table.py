"""Tables of results: formats, columns, and errors with the row."""

import json

import numpy as np
import pyarrow.parquet
import pytest

from t2x.base.errors import UserError
from t2x.statistics.table import Columns, read_table, without_failed

ROWS = [('a', 0, 3.0), ('a', 1, 3.1), ('b', 0, 2.9), ('b', 1, 3.2)]


def csv_file(folder, rows=ROWS, header='variant,seed,loss'):
  path = folder / 'table.csv'
  path.write_text('\n'.join([header, *(','.join(map(str, row)) for row in rows)]))
  return path


def test_all_formats_give_the_same_table(tmp_path):
  dicts = [dict(zip(('variant', 'seed', 'loss'), row, strict=True)) for row in ROWS]
  (tmp_path / 'table.jsonl').write_text('\n'.join(map(json.dumps, dicts)))
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(dicts), tmp_path / 'table.parquet')
  paths = [csv_file(tmp_path), tmp_path / 'table.jsonl', tmp_path / 'table.parquet']
  for table in (read_table(path, Columns()) for path in paths):
    assert (table.names, table.seed_names) == (['a', 'b'], ['0', '1'])
    np.testing.assert_array_equal(table.metrics['loss'], [3.0, 3.1, 2.9, 3.2])
    np.testing.assert_array_equal(table.lines, [1, 2, 3, 4])


def test_columns_are_joined_comments_skipped_and_variants_selected(tmp_path):
  path = tmp_path / 'table.csv'
  path.write_text('# source\nlr,width,s,x\n1,64,7,2.5\n1,64,8,2.6\n#2,64,7,2.7\n')
  columns = Columns(variant=('lr', 'width'), seed='s', metrics=('x',))
  assert read_table(path, columns).names == ['1, 64', '#2, 64']
  assert read_table(path, columns, ['1, 64']).names == ['1, 64']


def test_the_last_step_of_each_run_is_used_and_rows_between_evaluations_are_not(tmp_path):
  rows = [('a', 0, 20, 2.0), ('a', 0, 10, 9.0), ('a', 0, 30, ''), ('a', 1, 20, 2.5)]
  table = read_table(csv_file(tmp_path, rows, 'variant,seed,step,loss'), Columns())
  np.testing.assert_array_equal(table.metrics['loss'], [2.0, 2.5])


def test_runs_without_seeds_are_numbered(tmp_path):
  table = read_table(
    csv_file(tmp_path, [('b', 1), ('a', 2), ('b', 3)], 'variant,loss'), Columns(seed=None)
  )
  np.testing.assert_array_equal(table.seeds, [0, 0, 1])


def test_items_need_the_seeds_of_their_runs(tmp_path):
  path = csv_file(tmp_path, [('a', 1, 2.0)], 'variant,item,loss')
  with pytest.raises(UserError, match="column 'item' has items"):
    read_table(path, Columns(seed=None))


@pytest.mark.parametrize(
  ('rows', 'header', 'message'),
  [
    (ROWS, 'variant,seed,los', "has no column 'loss'; did you mean 'los'"),
    (ROWS, 'name,seed,loss', r'--variant NAME chooses another'),
    ([], 'variant,seed,loss', 'has no rows'),
    (
      [*ROWS, ('b', 1, 3.2)],
      'variant,seed,loss',
      "row 5: variant 'b' and seed 1 is already in row 4",
    ),
    ([('a', 0, 'high')], 'variant,seed,loss', "row 1: loss is 'high', not a number"),
    ([('a', 0)], 'variant,seed,loss', 'row 1 has 2 cells, but the header has 3'),
    ([('a', 0, 1, 1)], 'variant,seed,loss,loss', "two columns 'loss'"),
  ],
)
def test_errors_have_the_row(tmp_path, rows, header, message):
  with pytest.raises(UserError, match=message):
    read_table(csv_file(tmp_path, rows, header), Columns())


def test_other_files_are_refused(tmp_path):
  for name, content in {
    'a.csv': b'\xff\xfe',
    'b.jsonl': b'{"variant": 1',
    'c.jsonl': b'[1]',
    'd.csv': b'',
    'e.parquet': b'PAR1',
  }.items():
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
      read_table(tmp_path / name, Columns())
  with pytest.raises(UserError, match='missing'):
    read_table(tmp_path / 'missing.csv', Columns())


def test_failed_runs_are_refused_dropped_or_counted(tmp_path):
  table = read_table(csv_file(tmp_path, [*ROWS, ('b', 2, 'nan')]), Columns())
  with pytest.raises(UserError, match='row 5: loss is not a finite number'):
    without_failed(table, 'loss', 'refuse')
  for failed, count in (('drop', 0), ('worst', 1)):
    finished, lost = without_failed(table, 'loss', failed)
    assert (len(finished.lines), len(lost)) == (4, count)


@pytest.mark.parametrize('failed', ['drop', 'worst'])
def test_a_table_whose_runs_all_failed_is_refused(tmp_path, failed):
  table = read_table(csv_file(tmp_path, [('a', 0, 'nan'), ('b', 0, '')]), Columns())
  with pytest.raises(UserError, match='no run whose loss is a finite number'):
    without_failed(table, 'loss', failed)
