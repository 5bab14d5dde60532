"""VADER's rated snippets (Hutto and Gilbert 2014, ICWSM): sentences of film and product reviews,
newspaper editorials and tweets, each with ratings of twenty people from -4 to 4."""

import dataclasses
import tarfile
from collections.abc import Iterator, Sequence
from typing import Annotated

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction, NonEmpty, Text, make_tuples
from t2x.data.sources.held_out import SPLITS, split_of
from t2x.samples.fetched import Fetched, Sample

__all__ = ['SentimentSnippets']

# Kind -> the file of its mean ratings.
FILES = {
  'amazon': 'amazonReviewSnippets_GroundTruth.txt',
  'movies': 'movieReviewSnippets_GroundTruth.txt',
  'news': 'nytEditorialSnippets_GroundTruth.txt',
  'tweets': 'tweets_GroundTruth.txt',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentimentSnippets(Fetched, Sample):
  """23,182 snippets with `text`, `label` ('negative' or 'positive'), `rating` and `name`.

  The label is the sign of `rating`, the mean rating. A hash of its name assigns each review or
  editorial, with all of its sentences, to train (80 %), validation (10 %) or test (10 %). Tweets
  and film snippets are assigned individually. Repeated texts are omitted.

  Attributes:
    kinds: kinds to read, of 'amazon', 'movies', 'news' and 'tweets'.
    neutral: mean ratings of at most this absolute value are omitted as neutral.
    folder: folder of the unpacked source distribution of vaderSentiment; None: the folder of
      `t2x data fetch sentiment`.
  """

  kinds: Annotated[Sequence[Text], NonEmpty] = tuple(FILES)
  neutral: Fraction = 0.0

  data_set = 'sentiment'
  pattern = 'vaderSentiment-*/additional_resources/hutto_ICWSM_2014.tar.gz'

  def __post_init__(self):
    make_tuples(self, 'kinds')
    unknown = [kind for kind in self.kinds if kind not in FILES]
    if unknown:
      raise UserError(
        f'SentimentSnippets.kinds = {list(self.kinds)}: each must be one of {", ".join(FILES)}'
      )

  def examples(self, split):
    """Yields the snippets of a split, in the order of the files."""
    texts: set[str] = set()
    for name, rating, text in self._snippets():
      if abs(rating) > self.neutral and text.lower() not in texts:
        texts.add(text.lower())
        if split_of(name) == split:
          label = 'positive' if rating > 0 else 'negative'
          yield {'text': text, 'label': label, 'rating': rating, 'name': name}

  def settings(self):
    return ((self.kinds, self.neutral, SPLITS),)

  def _snippets(self) -> Iterator[tuple[str, float, str]]:
    """Yields the name of the text that contains a snippet, its mean rating and its text."""
    path = self.data_files()[0]
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
