"""Fields of a calendar, and their numbers of values."""

from collections.abc import Mapping
from typing import Literal

__all__ = ['CALENDAR_SIZES', 'CalendarField']

CalendarField = Literal['month', 'day', 'weekday', 'hour', 'minute', 'workday']

# Months and days count from 1, weekdays from Monday, minutes by quarters of an hour, as in Informer's tables
# (https://arxiv.org/abs/2012.07436). Working days are known values of a series: 0 or 1.
CALENDAR_SIZES: Mapping[CalendarField, int] = {
  'month': 13,
  'day': 32,
  'weekday': 7,
  'hour': 24,
  'minute': 4,
  'workday': 2,
}
