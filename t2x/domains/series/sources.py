"""Time series with splits by time: the interface of their sources, and CSV files."""

import abc
import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.external_files import csv_rows, read_text
from t2x.base.ranges import Size, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import FileBacked, Source, require_split
from t2x.data.sources.digests import digest_of
from t2x.data.sources.held_out import SPLITS

__all__ = ['SeriesFile', 'SeriesSource', 'regular']

# Maximum size of a file in bytes, and number of values of a series.
LIMIT = 1 << 31
MOST = 1 << 28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
  """Values at equal intervals of time.

  Attributes:
    name: name of the series.
    times: time of each value, datetime64[m] [length].
    values: float32 [length, channels]; NaN for missing values.
    known: integers of each time that are known in advance, such as working days, by name, int32 [length].
    ends: number of values before the end of each split, in the order train, validation, test.
  """

  name: str
  times: np.ndarray
  values: np.ndarray
  ends: tuple[int, int, int]
  known: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class SeriesSource(Source):
  """Base class of sources of time series, which may differ in length.

  An example of a split is a series from its first value to the end of the split: `name`; `times`; `values`; `known`;
  and `begin`, the number of values before the split. Forecasts of the split are those of values from `begin` on; the
  values before are their context.
  """

  @property
  @abc.abstractmethod
  def channels(self) -> Sequence[str]:
    """Names of the channels."""

  @abc.abstractmethod
  def series(self) -> Iterable[Series]:
    """Yields the series in a fixed order."""

  def splits(self) -> tuple[str, ...]:
    return tuple(SPLITS)

  def load(self, split: str) -> Sequence[dict[str, Any]]:
    """Returns the series of a split, in memory."""
    require_split(self, split)
    number = self.splits().index(split)
    return [_part(series, number) for series in self.series()]


def _part(series: Series, split: int) -> dict[str, Any]:
  begin, end = (0, *series.ends)[split : split + 2]
  return {
    'name': series.name,
    'times': series.times[:end],
    'values': series.values[:end],
    'known': {name: array[:end] for name, array in series.known.items()},
    'begin': begin,
  }


def regular(times: np.ndarray, values: np.ndarray, minutes: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns times at equal intervals from the first to the last, and their values, NaN at times without a row.

  Args:
    times: datetime64[m] [rows], increasing.
    values: float32 [rows, channels].
    minutes: the interval.

  Raises:
    UserError: the times do not increase, or one is not a multiple of the interval after the first.
  """
  steps, rest = np.divmod((times - times[0]).astype(np.int64), minutes)
  if rest.any() or (np.diff(steps) <= 0).any():
    raise UserError(f'times of a series must increase by multiples of {minutes} minutes')
  if steps[-1] >= MOST:
    raise UserError(
      f'the times {times[0]} to {times[-1]} span {steps[-1] + 1:,} intervals of {minutes} minutes, more than {MOST:,}'
    )
  filled = np.full((steps[-1] + 1, values.shape[1]), np.nan, np.float32)
  filled[steps] = values
  return times[0] + np.arange(len(filled)) * np.timedelta64(minutes, 'm'), filled


def ends_at(times: np.ndarray, validation: str, test: str) -> tuple[int, int, int]:
  """Returns `Series.ends` for the times at which validation and test begin."""
  starts = [int(np.searchsorted(times, np.datetime64(begin, 'm'))) for begin in (validation, test)]
  return starts[0], starts[1], len(times)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesFile(SeriesSource, FileBacked):
  """One series of a CSV file with a header, such as ETTh1.csv of ETDataset; empty cells and NA are missing values.

  Attributes:
    path: path of the file.
    time: name of the column of times, in ISO format.
    columns: names of the columns of values, the channels.
    minutes: interval of the values in minutes; times without a row are missing values.
    rows: number of consecutive values of train, validation and test; later values are not read.
  """

  path: Text
  time: Text = 'date'
  columns: Sequence[Text]
  minutes: Size
  rows: tuple[Size, Size, Size]

  def __post_init__(self):
    if not self.columns or len({self.time, *self.columns}) <= len(self.columns):
      raise UserError(
        f'SeriesFile.columns = {list(self.columns)}: must name at least one column, each once, and not {self.time}'
      )

  @property
  def channels(self) -> Sequence[str]:
    return self.columns

  def files(self) -> list[Path]:
    return [Path(self.path).expanduser()]

  def fingerprint(self) -> str:
    """Identifies the settings and the content of the file."""
    settings = self.time, tuple(self.columns), self.minutes, tuple(self.rows)
    return fingerprint(type(self).__name__, *settings, digest_of(self.files()))

  def series(self) -> Iterable[Series]:
    """Yields the series.

    Raises:
      UserError: the file cannot be read, a column is missing, or it has fewer rows.
    """
    [path] = self.files()
    times, values = read_columns(path, self.time, self.columns)
    for name, column in zip(self.columns, values.T, strict=True):
      if np.isnan(column).all():
        raise UserError(f"{path}: the column '{name}' has no value")
    try:
      times, values = regular(times, values, self.minutes)
    except UserError as error:
      raise UserError(f'{path}: {error}') from error
    first, second, third = np.cumsum(self.rows).tolist()
    if third > len(times):
      raise UserError(f'{path} has {len(times)} values, but SeriesFile.rows needs {third}')
    yield Series(
      name=path.stem, times=times[:third], values=values[:third], ends=(first, second, third)
    )


def read_columns(
  path: Path, time: str, columns: Sequence[str], where: Mapping[str, str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns times and columns of a CSV file, datetime64[m] [rows] and float32 [rows, columns].

  Args:
    path: the file.
    time: the column of times, in ISO format; a final Z (UTC) is ignored.
    columns: the columns of values.
    where: values of columns that select rows.

  Raises:
    UserError: the file cannot be read, or a row is invalid: the message has its line.
  """
  where, needed = where or {}, [time, *columns, *(where or {})]
  times, values = list[np.datetime64](), list[list[float]]()
  lines = io.StringIO(read_text(path, LIMIT), newline='')
  line = 0

  def counted() -> Iterator[str]:
    nonlocal line
    for text in lines:
      line += 1
      yield text

  rows = csv_rows(counted(), where=lambda: f'{path}:{line}: ')
  header = [name.strip('\ufeff') for name in next(rows, [])]
  for name in needed:
    if header.count(name) != 1:
      problem = 'no column' if name not in header else 'several columns'
      raise UserError(f"{path} has {problem} '{name}'")
  for row in rows:
    if not row:
      continue
    try:
      if len(row) != len(header):
        raise UserError(f'{len(row)} columns, but the header has {len(header)}')
      cells = dict(zip(header, row, strict=True))
      if all(cells[name] == value for name, value in where.items()):
        times.append(np.datetime64(cells[time].removesuffix('Z') or 'none', 'm'))
        values.append([_number(name, cells[name]) for name in columns])
    except (UserError, ValueError) as error:
      raise UserError(f'{path}:{line}: {error}') from error
  if not times:
    raise UserError(f'{path} has no rows')
  return np.array(times, 'datetime64[m]'), np.array(values, np.float32)


def _number(name: str, text: str) -> float:
  value = float('nan') if text in ('', 'NA') else float(text)
  if abs(value) > float(np.finfo(np.float32).max):
    raise UserError(f"the column '{name}' has {text}, which is no finite number in float32")
  return value
