"""Windows of time series of unequal length, split by time."""

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.domains.series import SeriesFile, SeriesSource, Windows, seasonal_naive
from t2x.domains.series.sources import Series, regular
from t2x.domains.series.windows import calendar_of


class TwoSeries(SeriesSource):
  """Series of 20 and 12 values; value t of series n is 100 n + t. Splits end at 12, 16, 20 and 6, 9, 12."""

  channels = ('value',)

  def series(self):
    for number, (length, ends) in enumerate([(20, (12, 16, 20)), (12, (6, 9, 12))]):
      times = np.datetime64('2013-12-31T22:00', 'm') + np.arange(length) * np.timedelta64(60, 'm')
      values = (100 * number + np.arange(length, dtype=np.float32))[:, None]
      yield Series(name=str(number), times=times, values=values, ends=ends)


def windows(split, **settings):
  settings = {'context': 3, 'horizon': 2} | settings
  return Windows(TwoSeries().load(split), **settings)


def test_windows_are_all_places_of_all_series_and_their_future_is_in_the_split():
  parts = {}
  for split, ends in (
    ('train', (0, 12, 0, 6)),
    ('validation', (12, 16, 6, 9)),
    ('test', (16, 20, 9, 12)),
  ):
    rows = list(windows(split))
    for row in rows:
      first, number = int(row['series'][0, 0]), int(row['number'])
      wanted = np.arange(first, first + 5)
      np.testing.assert_array_equal(np.concatenate([row['series'], row['future']])[:, 0], wanted)
      begin, end = ends[2 * number : 2 * number + 2]
      future = row['future'][:, 0] - 100 * number
      assert begin <= future.min() and future.max() < end and future.min() >= 3
    parts[split] = [(int(row['number']), int(row['future'][0, 0]) % 100) for row in rows]
  assert parts['train'] == [(0, t) for t in range(3, 11)] + [(1, t) for t in (3, 4)]
  assert parts['validation'] == [(0, 12), (0, 13), (0, 14), (1, 6), (1, 7)]
  assert parts['test'] == [(0, 16), (0, 17), (0, 18), (1, 9), (1, 10)]


def test_a_stride_skips_windows_and_a_series_shorter_than_a_window_has_none():
  rows = windows('train', stride=3)
  assert [int(row['series'][0, 0]) for row in rows] == [0, 3, 6, 100]
  assert [rows.series_and_start(i) for i in range(4)] == [(0, 0), (0, 3), (0, 6), (1, 0)]
  assert [int(row['number']) for row in windows('train', context=5)] == [0] * 6
  assert len(windows('train', context=11)) == 0


def test_other_times_and_known_values_have_another_fingerprint():
  """They are the calendar, an input of the model."""
  examples = TwoSeries().load('train')
  workday = np.arange(len(examples[0]['times'])) % 2
  examples[0]['known'] = {'workday': workday}

  def fingerprint_with(**changed):
    return Windows([examples[0] | changed], context=3, horizon=2).fingerprint

  found = {fingerprint_with(), fingerprint_with(times=examples[0]['times'] + 1)}
  found |= {fingerprint_with(known={'workday': 1 - workday}), fingerprint_with(known={})}
  assert len(found) == 4


def test_other_values_windows_and_calendars_have_another_fingerprint():
  examples = TwoSeries().load('train')
  first = Windows(examples, context=3, horizon=2).fingerprint
  assert first == Windows(TwoSeries().load('train'), context=3, horizon=2).fingerprint
  others = [windows('train', stride=2), windows('test'), windows('train', fields=('hour',))]
  examples[1]['values'] = examples[1]['values'] + 1
  others.append(Windows(examples, context=3, horizon=2))
  assert len({first, *(other.fingerprint for other in others)}) == 5


def test_the_calendar_is_that_of_each_time():
  row = windows('train', fields=('month', 'day', 'weekday', 'hour', 'minute'))[0]
  assert row['calendar'].tolist() == [
    [12, 31, 1, 22, 0],
    [12, 31, 1, 23, 0],
    [1, 1, 2, 0, 0],
    [1, 1, 2, 1, 0],
    [1, 1, 2, 2, 0],
  ]
  quarter = np.array(['2024-02-29T13:45'], 'datetime64[m]')
  assert calendar_of(
    quarter, ('day', 'minute', 'workday'), {'workday': np.array([1])}
  ).tolist() == [[29, 3, 1]]


def test_workdays_are_an_error_if_the_series_has_none():
  with pytest.raises(UserError, match="the calendar has 'workday'"):
    windows('train', fields=('workday',))


def test_missing_times_are_missing_values():
  times = np.array(['2013-01-01T00:00', '2013-01-01T01:00', '2013-01-01T04:00'], 'datetime64[m]')
  filled, values = regular(times, np.array([[1], [2], [3]], np.float32), 60)
  assert len(filled) == 5 and (np.diff(filled) == np.timedelta64(60, 'm')).all()
  np.testing.assert_array_equal(values[:, 0], [1, 2, np.nan, np.nan, 3])


def test_the_naive_forecast_repeats_the_last_season_with_values_of_earlier_ones():
  y = np.array([1, 2, 3, np.nan, 5, np.nan, 7, np.nan], np.float32)
  context = np.stack([y, y], axis=1)
  forecast = seasonal_naive(context, 5, (2, 3))
  np.testing.assert_array_equal(forecast[:, 0], [7, 2, 7, 2, 7])
  np.testing.assert_array_equal(forecast[:, 1], [3, 7, 5, 3, 7])
  assert np.isnan(seasonal_naive(context[3:4], 2, (1, 1))).all()


def test_a_file_is_split_by_numbers_of_rows_and_empty_cells_are_missing(tmp_path):
  path = tmp_path / 'own.csv'
  path.write_text(
    'date,a,b\n2016-07-01 00:00:00,1,2\n2016-07-01 01:00:00,,4\n2016-07-01 03:00:00,5,NA\n'
  )
  settings = {'path': str(path), 'columns': ('b', 'a'), 'minutes': 60}
  source = SeriesFile(**settings, rows=(1, 2, 1))
  [example] = source.load('test')
  np.testing.assert_array_equal(example['values'], [[2, 1], [4, np.nan], [np.nan] * 2, [np.nan, 5]])
  assert example['begin'] == 3 and source.channels == ('b', 'a')
  assert source.load('train')[0]['values'].tolist() == [[2.0, 1.0]]
  with pytest.raises(UserError, match=r'has 4 values, but SeriesFile.rows needs 5'):
    SeriesFile(**settings, rows=(3, 1, 1)).load('train')
  with pytest.raises(UserError, match="no column 'c'"):
    SeriesFile(**settings | {'columns': ('c',)}, rows=(1, 1, 1)).load('train')
  before = source.fingerprint()
  path.write_text(path.read_text().replace('5', '6'))
  assert source.fingerprint() != before


@pytest.mark.parametrize(
  'times', [['2013-01-01T00:00', '2013-01-01T00:30'], ['2013-01-01T01:00'] * 2]
)
def test_irregular_times_are_an_error(times):
  values = np.zeros((2, 1), np.float32)
  with pytest.raises(UserError, match='must increase by multiples of 60'):
    regular(np.array(times, 'M8[m]'), values, 60)
