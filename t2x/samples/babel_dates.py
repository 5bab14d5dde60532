"""Dates in English and another language, in the formats of the Unicode CLDR (through Babel)."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Count, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example
from t2x.samples.built import BuiltSource

__all__ = ['BabelDates']

# Formats of the source. If the source has the day of the week, so has the target.
FORMATS = (
  'EEEE, MMMM d, y',
  'EEE, MMM d, y',
  'EEEE d MMMM y',
  'MMMM d, y',
  'MMM d, y',
  'd MMMM y',
  'd MMM y',
  'MM/dd/y',
  'M/d/y',
  'y-MM-dd',
)
FIRST, LAST = datetime.date(1800, 1, 1), datetime.date(2199, 12, 31)
# Number of dates in each of the validation and test splits.
HELD_OUT = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class BabelDates(BuiltSource):
  """Pairs of dates: `source` in English in one of ten formats, `target` in another language.

  The target has the day of the week if the source has it. The splits share no date; validation and
  test have 1,000 dates each.

  Attributes:
    language: a CLDR locale such as 'de', 'fr' or 'zh_Hans'.
    train_examples: number of dates in the train split, at most 144,097; each has a random format.
  """

  packages = ('babel',)

  language: Text = 'de'
  train_examples: Count = 40_000

  def __post_init__(self):
    limit = (LAST - FIRST).days + 1 - 2 * HELD_OUT
    if not 0 < self.train_examples <= limit:
      raise UserError(
        f'BabelDates.train_examples = {self.train_examples}: must be from 1 to {limit}'
      )

  def splits(self):
    return ('train', 'validation', 'test')

  def generate(self) -> Mapping[str, Iterator[Example]]:
    """Returns the dates of each split, in a fixed random order."""
    random = np.random.default_rng(20210305)
    days = random.permutation((LAST - FIRST).days + 1).tolist()
    formats = [FORMATS[i] for i in random.integers(len(FORMATS), size=len(days))]
    dates_and_formats = list(zip(days, formats, strict=True))
    held_out, stop = 2 * HELD_OUT, 2 * HELD_OUT + self.train_examples
    return {
      'train': self._format_all(dates_and_formats[held_out:stop]),
      'validation': self._format_all(dates_and_formats[HELD_OUT:held_out]),
      'test': self._format_all(dates_and_formats[:HELD_OUT]),
    }

  def _format_all(self, dates: list[tuple[int, str]]) -> Iterator[Example]:
    for day, pattern in dates:
      yield date_pair(FIRST + datetime.timedelta(days=day), pattern, self.language)

  def fingerprint(self) -> str:
    """Identifies the settings, the formats and the version of Babel, which contains the CLDR."""
    return fingerprint(
      self, _babel(self.language).__version__, FORMATS, str(FIRST), str(LAST), HELD_OUT
    )


def date_pair(date: datetime.date, pattern: str, language: str) -> Example:
  """Returns a date in English in one of `FORMATS`, and in the language in CLDR's full or long form.

  The full form is for formats with the day of the week.
  """
  from babel.dates import format_date

  target = 'full' if 'EEE' in pattern else 'long'
  return {
    'source': format_date(date, pattern, locale='en'),
    'target': format_date(date, target, locale=language),
  }


def _babel(language: str) -> Any:
  """Returns the package; raises a UserError if it is not installed or lacks the language."""
  babel = imported('babel', 'BabelDates')
  try:
    babel.Locale.parse(language)
  except (ValueError, babel.UnknownLocaleError) as error:
    raise UserError(f"BabelDates.language = '{language}' is not a CLDR locale: {error}") from error
  return babel
