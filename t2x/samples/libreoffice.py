"""LibreOffice help in two languages, aligned by paragraph id."""

import dataclasses
import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.ranges import Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, with_progress
from t2x.data.sources.digests import content_digest
from t2x.data.sources.held_out import split_of
from t2x.samples.built import BuiltSource
from t2x.samples.fetched import Fetched

__all__ = ['LibreOfficeHelp']

# Split -> its buckets of 100, by a hash of the file's name.
SPLITS = {'train': range(96), 'validation': range(96, 98), 'test': range(98, 100)}
# Increment when the same files give other text.
VERSION = 3

PARAGRAPH = re.compile(r'<(\w+)\b[^>]*\sid="((?:par|hd)_[^"]*)"[^>]*>(.*?)</\1>', re.S)
TAG = re.compile(r'(<[^>]*>)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibreOfficeHelp(BuiltSource, Fetched):
  """Paragraphs and headings of the help in two languages (MPL-2.0): `source`, `target` and `name`.

  Pairs with equal texts and repeated pairs are omitted. A hash of its name assigns each file to
  train (96 %), validation (2 %) or test (2 %). Validation omits pairs with a source or a target of
  the train split, test also those of validation.

  Attributes:
    folder: folder of the unpacked packages libreoffice-help-*; None: the folder of
      `t2x data fetch libreoffice_help`.
    source_language: folder name of the language in the packages: 'en-US'.
    target_language: folder name of the language in the packages: 'de', 'fr', 'zh-CN'.
  """

  source_language: Text = 'en-US'
  target_language: Text = 'de'

  data_set = 'libreoffice_help'

  def splits(self) -> tuple[str, ...]:
    return tuple(SPLITS)

  def generate(self) -> Mapping[str, list[Example]]:
    """Returns the pairs of each split, in the order of file names."""
    pairs: dict[str, list[Example]] = {split: [] for split in SPLITS}
    sources, targets = self._folder(self.source_language), self._folder(self.target_language)
    for path in with_progress(sorted(sources.rglob('*.html')), 'reading the help'):
      name = path.relative_to(sources)
      if (targets / name).exists():
        pairs[split_of(name.as_posix(), SPLITS)] += _aligned(path, targets / name, name.as_posix())
    if not pairs['train']:
      raise UserError(f'no pairs of paragraphs in {sources} and {targets}: fetch them again')
    splits: dict[str, list[Example]] = {}
    seen: set[tuple[str, str]] = set()
    for split in SPLITS:
      splits[split] = _distinct(pairs[split], without=seen)
      seen |= {(side, pair[side]) for pair in splits[split] for side in ('source', 'target')}
    return splits

  def fingerprint(self) -> str:
    """Identifies the languages and the content of all files."""
    languages = (self.source_language, self.target_language)
    digest = hashlib.sha256()
    for folder in map(self._folder, languages):
      for path in sorted(folder.rglob('*.html')):
        digest.update(f'{path.relative_to(folder)}\0'.encode() + content_digest(path))
    return fingerprint('LibreOfficeHelp', VERSION, languages, SPLITS, digest.hexdigest())

  def _folder(self, language: str) -> Path:
    folder = self.root / 'usr/share/libreoffice/help' / language / 'text'
    if not folder.is_dir():
      languages = sorted(path.parent.name for path in folder.parent.parent.glob('*/text'))
      if languages:
        raise UserError(
          f"no help in '{language}' in {self.root}: it has {', '.join(languages)}; for another language "
          f'unpack its package: dpkg -x libreoffice-help-{language.lower()}*.deb {self.root}'
        )
      raise UserError(f'no {folder}: {self.how_to_get}')
    return folder


def _aligned(source: Path, target: Path, name: str) -> Iterator[Example]:
  sources, targets = _paragraphs(source), _paragraphs(target)
  for key, text in sources.items():
    if text and targets.get(key) and targets[key] != text:
      yield {'source': text, 'target': targets[key], 'name': name}


def _distinct(pairs: list[Example], *, without: set[tuple[str, str]]) -> list[Example]:
  """Removes repeated pairs and pairs with a source or a target, (side, text), in `without`."""
  first = {(pair['source'], pair['target']): pair for pair in reversed(pairs)}
  return [
    pair
    for pair in pairs
    if first[pair['source'], pair['target']] is pair
    and not without & {(side, pair[side]) for side in ('source', 'target')}
  ]


def _paragraphs(path: Path) -> dict[str, str]:
  try:
    return paragraphs(path.read_text('utf-8'))
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error


def paragraphs(page: str) -> dict[str, str]:
  """Returns paragraph id -> text with single spaces, for ids that occur once in the page.

  An id that occurs twice (a text for each program) cannot be aligned.
  """
  texts: dict[str, str] = {}
  repeated = set()
  for _, identity, body in PARAGRAPH.findall(page):
    repeated |= {identity} & texts.keys()
    texts[identity] = text_of(body)
  return {identity: text for identity, text in texts.items() if identity not in repeated}


def text_of(body: str) -> str:
  """Returns the visible text of a paragraph.

  A switch has alternatives, hidden until a script selects one. The text has the default, or else
  the first that is not for macOS.
  """
  parts: list[str] = []
  selected = _selected_alternatives(body)
  hidden = 0
  for token in TAG.split(body):
    if not token.startswith('<'):
      parts.append('' if hidden else token)
    elif token.startswith('<br'):
      parts.append(' ')
    elif token.startswith('<span'):
      hidden += bool(hidden or ('hidden=' in token and token not in selected))
    elif token.startswith('</span') and hidden:
      hidden -= 1
  return ' '.join(html.unescape(''.join(parts)).split())


def _selected_alternatives(body: str) -> set[str]:
  """Returns the opening tags of the alternative of each switch that is part of the text."""
  selected = set()
  for switch in body.split('class="switchinline"')[1:]:
    tags = [tag for tag in TAG.findall(switch) if tag.startswith('<span') and 'hidden=' in tag]
    default = [tag for tag in tags if ' id="default' in tag]
    not_mac = [tag for tag in tags if ' id="MAC' not in tag]
    selected |= set((default or not_mac or tags)[:1])
  return selected
