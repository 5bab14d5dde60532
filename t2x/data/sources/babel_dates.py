"""Dates in English and another language, as the Unicode CLDR writes them (through Babel)."""

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from t2x.data.folders import fingerprint
from t2x.data.sources.base import Example
from t2x.data.sources.tfds_source import BuiltSource
from t2x.errors import UserError

__all__ = ['BabelDates']

# How the source may be written. A day's name in the source asks for one in the target.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BabelDates(BuiltSource):
  """`source`: an English date in one of ten formats; `target`: the same date written out in
  another language, with the day of the week where the source has it.

  No date of one split is in another: 1,000 dates each for validation and test.

  Attributes:
    language: a CLDR locale, 'de' or 'fr' or 'zh_Hans'.
    train_examples: dates of the train split, at most 144,000; each in a format drawn at random.
  """

  language: str = 'de'
  train_examples: int = 40_000

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return ('train', 'validation', 'test')

  def features(self) -> dict[str, Any]:
    """Two texts."""
    return {'source': tfds.features.Text(), 'target': tfds.features.Text()}

  def generate(self, split: str) -> Iterator[Example]:
    """The dates of a split, in an order drawn once and for all."""
    dates = _babel_dates(self.language)
    random = np.random.default_rng(20210305)
    days = random.permutation((LAST - FIRST).days + 1)
    formats = random.integers(len(FORMATS), size=len(days))
    start, count = {
      'test': (0, 1000),
      'validation': (1000, 1000),
      'train': (2000, self.train_examples),
    }[split]
    for i in range(start, min(start + count, len(days))):
      date = FIRST + datetime.timedelta(days=int(days[i]))
      written = FORMATS[formats[i]]
      target = 'full' if 'EEE' in written else 'long'
      yield {
        'source': dates.format_date(date, written, locale='en'),
        'target': dates.format_date(date, target, locale=self.language),
      }

  def fingerprint(self) -> str:
    """Of the settings, the formats and Babel's version, which decides the CLDR's."""
    _babel_dates(self.language)
    import babel

    return fingerprint(self, babel.__version__, FORMATS, str(FIRST), str(LAST))


def _babel_dates(language: str) -> Any:
  try:
    from babel import Locale, UnknownLocaleError, dates
  except ImportError as error:
    raise UserError("BabelDates needs Babel: pip install 't2x[samples]'") from error
  try:
    Locale.parse(language)
  except (ValueError, UnknownLocaleError) as error:
    raise UserError(f"BabelDates.language = '{language}' is no CLDR locale: {error}") from error
  return dates
