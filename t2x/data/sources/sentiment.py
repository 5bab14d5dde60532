"""VADER's rated snippets (Hutto and Gilbert 2014, ICWSM): sentences of film and product reviews,
newspaper editorials and tweets, each rated from -4 to 4 by twenty people."""

import dataclasses
import tarfile
from collections.abc import Iterator, Sequence
from typing import Annotated

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.fetched import SPLITS, digest_of, find_data, split_of
from t2x.errors import UserError
from t2x.ranges import Fraction, NonEmpty, Text

# Kind -> the file of its mean ratings.
FILES = {
  'amazon': 'amazonReviewSnippets_GroundTruth.txt',
  'movies': 'movieReviewSnippets_GroundTruth.txt',
  'news': 'nytEditorialSnippets_GroundTruth.txt',
  'tweets': 'tweets_GroundTruth.txt',
}
ARCHIVE = 'vaderSentiment-*/additional_resources/hutto_ICWSM_2014.tar.gz'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentimentSnippets(Source):
  """`text` and `label`: 'negative' or 'positive' by the sign of the mean rating; `rating`, `name`.

  A review or an editorial belongs with all of its sentences to train (80 %), validation (10 %) or
  test (10 %), by a hash of its name; tweets and film snippets, of which the files tell no more, each
  for itself. A text that comes again is left out. 23,182 snippets of all kinds.

  Attributes:
    kinds: which of 'amazon', 'movies', 'news' and 'tweets' are read.
    neutral: mean ratings up to this far from 0 have no sign to be told, and are left out.
    folder: where the source distribution of vaderSentiment was unpacked; None: where
      `t2x data fetch sentiment` puts it.
  """

  kinds: Annotated[Sequence[Text], NonEmpty] = tuple(FILES)
  neutral: Fraction = 0.0
  folder: Text | None = None

  def __post_init__(self):
    # Equal and hashable however the sequence was written.
    object.__setattr__(self, 'kinds', tuple(self.kinds))
    unknown = [kind for kind in self.kinds if kind not in FILES]
    if unknown:
      raise UserError(
        f'SentimentSnippets.kinds = {list(self.kinds)}: some of {", ".join(FILES)} are wanted'
      )

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return tuple(SPLITS)

  def load(self, split: str) -> Sequence[Example]:
    """The snippets of a split, in memory, in the order of the files."""
    require_split(self, split)
    seen: set[str] = set()
    examples = []
    for name, rating, text in self._snippets():
      if abs(rating) > self.neutral and text.lower() not in seen:
        seen.add(text.lower())
        if split_of(name) == split:
          label = 'positive' if rating > 0 else 'negative'
          examples.append({'text': text, 'label': label, 'rating': rating, 'name': name})
    return examples

  def fingerprint(self) -> str:
    """Of the settings and the archive's bytes."""
    settings = (self.kinds, self.neutral, SPLITS)
    return fingerprint('SentimentSnippets', settings, digest_of([self._archive()]))

  def _archive(self):
    return find_data('SentimentSnippets.folder', self.folder, 'sentiment', ARCHIVE)

  def _snippets(self) -> Iterator[tuple[str, float, str]]:
    """The name of what a snippet is part of, its mean rating, its text."""
    path = self._archive()
    try:
      with tarfile.open(path) as archive:
        contents = {member.name.split('/')[-1]: member for member in archive.getmembers()}
        for kind in self.kinds:
          file = archive.extractfile(contents[FILES[kind]])
          assert file is not None
          for line in file.read().decode('utf-8').split('\n'):
            if line.strip():
              number, rating, text = line.split('\t')
              yield f'{kind} {number.split("_")[0]}', float(rating), ' '.join(text.split())
    except (tarfile.TarError, EOFError, OSError, KeyError, ValueError) as error:
      raise UserError(f'{path} cannot be read ({error}): fetch it again') from error
