"""Windows of time series: a context, the values after it, and a calendar of both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.data.prepared_folders import fingerprint, is_former

__all__ = ['Windows', 'calendar_of', 'scale_of', 'seasonal_naive']


def _since(unit: str, whole: str) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a function of times that counts units since the beginning of a larger one."""
  return lambda t: (t.astype(f'M8[{unit}]') - t.astype(f'M8[{whole}]')).astype(np.int64)


# Field of `CALENDAR_SIZES` -> its value at times datetime64[m].
_FIELDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  'month': lambda t: 1 + _since('M', 'Y')(t),
  'day': lambda t: 1 + _since('D', 'M')(t),
  'weekday': lambda t: (t.astype('M8[D]').astype(np.int64) + 3) % 7,
  'hour': _since('h', 'D'),
  'minute': lambda t: _since('m', 'h')(t) // 15,
}


def calendar_of(
  times: np.ndarray, fields: Sequence[str], known: Mapping[str, np.ndarray]
) -> np.ndarray:
  """Returns the calendar of times, int32 [length, fields].

  Args:
    times: datetime64[m] [length].
    fields: fields of the calendar.
    known: values of a series that are known in advance, by name.

  Raises:
    UserError: 'workday' is a field, but the series does not have it.
  """
  if 'workday' in fields and 'workday' not in known:
    raise UserError("the calendar has 'workday', but the series has no such values: leave it out")
  columns = [known[name] if name in known else _FIELDS[name](times) for name in fields]
  return np.stack(columns, axis=1).astype(np.int32) if fields else np.zeros((len(times), 0), 'i4')


class Windows(Sequence[dict[str, Any]]):
  """All windows of series whose values after the context are in the split; the first of a series comes first.

  A row has `series` float32 [context, channels] and `future` float32 [horizon, channels], with NaN for missing values,
  `scale` float32 [channels], `calendar` int32 [context + horizon, fields], `weight` (1), and int32 `number`, which
  series, and `index`, which window. Windows without any value in the context or in the future of each channel are rows
  too. The context never reaches before the first value.

  Args:
    examples: those of a `SeriesSource`.
    context: number of values of the context.
    horizon: number of values after it.
    stride: number of values from the beginning of a window to that of the next one.
    fields: fields of the calendar.
    scale: scale of each channel, the same for all windows; None: 1.
  """

  def __init__(
    self,
    examples: Sequence[Mapping[str, Any]],
    *,
    context: int,
    horizon: int,
    stride: int = 1,
    fields: Sequence[str] = (),
    scale: np.ndarray | None = None,
  ):
    num_channels = examples[0]['values'].shape[1] if examples else 0
    self.scale = np.asarray(np.ones(num_channels) if scale is None else scale, np.float32)
    self.examples, self.context, self.horizon = examples, context, horizon
    self.settings = context, horizon, stride, tuple(fields)
    self.calendars = [calendar_of(e['times'], fields, e['known']) for e in examples]
    # The beginnings of the windows in each series.
    self.starts = [
      range(max(0, e['begin'] - context), len(e['values']) - context - horizon + 1, stride)
      for e in examples
    ]
    self.bounds = np.cumsum([len(starts) for starts in self.starts])

  @property
  def fingerprint(self) -> str:
    """Identifies the windows."""
    if is_former():
      contents: list[object] = [
        (e['name'], e['begin'], e['values'].tobytes().hex()) for e in self.examples
      ]
    else:
      names = 'name', 'begin', 'values', 'times', 'known'
      contents = [[e[name] for name in names] for e in self.examples]
    return fingerprint(*self.settings, self.scale.tolist(), fingerprint(*contents))

  def series_and_start(self, index: int) -> tuple[int, int]:
    """Returns the number of the series of a window and the index of its first value."""
    index = range(len(self))[index]
    number = int(np.searchsorted(self.bounds, index, side='right'))
    return number, self.starts[number][index - (self.bounds[number - 1] if number else 0)]

  def __len__(self) -> int:
    return int(self.bounds[-1]) if len(self.bounds) else 0

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    number, start = self.series_and_start(index)
    values, middle = self.examples[number]['values'], start + self.context
    end = middle + self.horizon
    return {
      'series': values[start:middle],
      'future': values[middle:end],
      'scale': self.scale,
      'calendar': self.calendars[number][start:end],
      'weight': np.float32(1.0),
      'number': np.int32(number),
      'index': np.int32(range(len(self))[index]),
    }


def scale_of(examples: Sequence[Mapping[str, Any]]) -> np.ndarray:
  """Returns the standard deviation of each channel over all series, float32 [channels]; 1 for constant channels."""
  columns = np.concatenate([example['values'] for example in examples]).astype(np.float64).T
  present = [column[~np.isnan(column)] for column in columns]
  return np.array([y.std() if len(y) and np.ptp(y) else 1.0 for y in present], np.float32)


def seasonal_naive(context: np.ndarray, horizon: int, seasons: Sequence[int]) -> np.ndarray:
  """Returns the forecast that repeats the last season, float32 [horizon, channels].

  A missing value is that of the season before; NaN if it is missing in all seasons of the context.

  Args:
    context: values [context, channels], NaN for missing values; at least a season.
    horizon: number of values of the forecast.
    seasons: number of values of a season of each channel.
  """
  columns = []
  for y, season in zip(context.T, seasons, strict=True):
    last = np.full(season, np.nan, np.float32)
    for end in range(len(y), season - 1, -season):
      last = np.where(np.isnan(last), y[end - season : end], last)
    columns.append(last[np.arange(horizon) % season])
  return np.stack(columns, axis=1)
