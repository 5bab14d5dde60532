"""LibreOffice's help in two languages: real sentences, aligned by paragraph id."""

import dataclasses
import hashlib
import html.parser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from t2x.data.folders import cache_folder, fingerprint
from t2x.data.sources.base import Example
from t2x.data.sources.tfds_source import BuiltSource
from t2x.errors import UserError

__all__ = ['LibreOfficeHelp']

# Parts of 100, by a hash of the file's name.
SPLITS = {'train': range(96), 'validation': range(96, 98), 'test': range(98, 100)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibreOfficeHelp(BuiltSource):
  """`source` and `target`: a paragraph or heading of the help in two languages (MPL-2.0).

  Paragraphs that are the same in both languages or repeat an earlier pair are left out. A file of
  the help belongs wholly to train (96 %), validation (2 %) or test (2 %), and a text that the train
  split has is in no other.

  Attributes:
    folder: where the packages libreoffice-help-* were unpacked; None: where
      `t2x data fetch libreoffice_help` puts them.
    source_language: as the packages' folders are named.
    target_language: as the packages' folders are named: 'de', 'fr', 'zh-CN'.
  """

  folder: str | None = None
  source_language: str = 'en-US'
  target_language: str = 'de'

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return tuple(SPLITS)

  def features(self) -> dict[str, Any]:
    """Two texts, and the file they come from."""
    return {name: tfds.features.Text() for name in ('source', 'target', 'name')}

  def _folder(self, language: str) -> Path:
    root = Path(self.folder or cache_folder() / 'downloads' / 'libreoffice_help')
    folder = root / 'usr/share/libreoffice/help' / language / 'text'
    if not folder.is_dir():
      raise UserError(
        f'no {folder}: run `t2x data fetch libreoffice_help`, or set LibreOfficeHelp.folder'
      )
    return folder

  def generate(self, split: str) -> Iterator[Example]:
    """The pairs of a split, in the order of the files' names."""
    trained = set() if split == 'train' else {pair['source'] for pair in self._pairs('train')}
    seen: set[tuple[str, str]] = set()
    for pair in self._pairs(split):
      key = pair['source'], pair['target']
      if key not in seen and pair['source'] not in trained:
        seen.add(key)
        yield pair

  def _pairs(self, split: str) -> Iterator[Example]:
    sources, targets = self._folder(self.source_language), self._folder(self.target_language)
    for path in sorted(sources.rglob('*.html')):
      name = path.relative_to(sources)
      if _part(name.as_posix()) not in SPLITS[split] or not (targets / name).exists():
        continue
      source, target = (
        paragraphs(path.read_text('utf-8')),
        paragraphs((targets / name).read_text('utf-8')),
      )
      for key, text in source.items():
        if text and target.get(key) and target[key] != text:
          yield {'source': text, 'target': target[key], 'name': name.as_posix()}

  def fingerprint(self) -> str:
    """Of the settings and the names and sizes of all files."""
    digest = hashlib.sha256()
    for language in (self.source_language, self.target_language):
      folder = self._folder(language)
      for path in sorted(folder.rglob('*.html')):
        digest.update(f'{path.relative_to(folder)} {path.stat().st_size}\n'.encode())
    languages = (self.source_language, self.target_language)
    return fingerprint('LibreOfficeHelp', languages, SPLITS, digest.hexdigest())


def _part(name: str) -> int:
  return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') % 100


class _Paragraphs(html.parser.HTMLParser):
  """The text of each element whose id starts with par_ or hd_, hidden spans left out."""

  VOID = {'area', 'br', 'col', 'hr', 'img', 'input', 'link', 'meta', 'source', 'wbr'}

  def __init__(self):
    super().__init__()
    self.found: dict[str, str] = {}
    self.key: str | None = None
    # Tags open since the paragraph began; True where the element is hidden.
    self.open: list[tuple[str, bool]] = []

  def handle_starttag(self, tag, attrs):
    if tag in self.VOID:
      return
    attributes = dict(attrs)
    identity = attributes.get('id') or ''
    if identity.startswith(('par_', 'hd_')):
      self.key, self.open = identity, [(tag, False)]
      # An id that stands twice in a file (a switch between systems) aligns with nothing.
      self.found[identity] = '' if identity not in self.found else '\0'
    elif self.key is not None:
      self.open.append((tag, 'hidden' in attributes))

  def handle_endtag(self, tag):
    while self.key is not None and any(name == tag for name, _ in self.open):
      name, _ = self.open.pop()
      if not self.open:
        self.key = None
      if name == tag:
        return

  def handle_data(self, data):
    if self.key is not None and not any(hidden for _, hidden in self.open):
      self.found[self.key] += data


def paragraphs(text: str) -> dict[str, str]:
  """Paragraph id -> text with single spaces, for ids that stand once in the page."""
  parser = _Paragraphs()
  parser.feed(text)
  return {
    key: re.sub(r'\s+', ' ', value).strip()
    for key, value in parser.found.items()
    if '\0' not in value
  }
