"""Dates in English and another language, as the Unicode CLDR writes them (through Babel)."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example
from t2x.data.sources.built import BuiltSource
from t2x.errors import UserError
from t2x.ranges import Count, Text

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
# Dates of the validation split, and as many of the test split.
HELD_OUT = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class BabelDates(BuiltSource):
  """`source`: an English date in one of ten formats; `target`: the same date written out in
  another language, with the day of the week where the source has it.

  No date of one split is in another: 1,000 dates each for validation and test.

  Attributes:
    language: a CLDR locale, 'de' or 'fr' or 'zh_Hans'.
    train_examples: dates of the train split, at most 144,097; each in a format drawn at random.
  """

  language: Text = 'de'
  train_examples: Count = 40_000

  def __post_init__(self):
    most = (LAST - FIRST).days + 1 - 2 * HELD_OUT
    if not 0 < self.train_examples <= most:
      raise UserError(f'BabelDates.train_examples = {self.train_examples}: must be 1 to {most}')

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return ('train', 'validation', 'test')

  def features(self) -> dict[str, Any]:
    """Two texts."""
    import tensorflow_datasets as tfds

    return {'source': tfds.features.Text(), 'target': tfds.features.Text()}

  def generate(self) -> Mapping[str, Iterator[Example]]:
    """The dates of each split, in an order drawn once and for all."""
    random = np.random.default_rng(20210305)
    days = random.permutation((LAST - FIRST).days + 1).tolist()
    drawn = [FORMATS[i] for i in random.integers(len(FORMATS), size=len(days))]
    both = list(zip(days, drawn, strict=True))
    held_out, stop = 2 * HELD_OUT, 2 * HELD_OUT + self.train_examples
    return {
      'train': self._written(both[held_out:stop]),
      'validation': self._written(both[HELD_OUT:held_out]),
      'test': self._written(both[:HELD_OUT]),
    }

  def _written(self, dates: list[tuple[int, str]]) -> Iterator[Example]:
    for day, form in dates:
      yield written(FIRST + datetime.timedelta(days=day), form, self.language)

  def fingerprint(self) -> str:
    """Of the settings, the formats and Babel's version, which decides the CLDR's."""
    return fingerprint(
      self, _babel(self.language).__version__, FORMATS, str(FIRST), str(LAST), HELD_OUT
    )


def written(date: datetime.date, form: str, language: str) -> Example:
  """One of `FORMATS` in English; in the language CLDR's full form where that names the day of the
  week, or else the long one."""
  from babel.dates import format_date

  target = 'full' if 'EEE' in form else 'long'
  return {
    'source': format_date(date, form, locale='en'),
    'target': format_date(date, target, locale=language),
  }


def _babel(language: str) -> Any:
  """The package, once it is known to be there and to know the language."""
  try:
    import babel
  except ImportError as error:
    raise UserError("BabelDates needs Babel: pip install 't2x[samples]'") from error
  try:
    babel.Locale.parse(language)
  except (ValueError, babel.UnknownLocaleError) as error:
    raise UserError(f"BabelDates.language = '{language}' is no CLDR locale: {error}") from error
  return babel
