"""A source without near-duplicates."""

import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from t2x.base.ranges import NonEmpty, Range, Size, Text, make_tuples
from t2x.data.near_duplicates import near_duplicates
from t2x.data.ngrams import joined_text
from t2x.data.prepared_folders import cache_folder, fingerprint, prepare
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.subset import Selected

__all__ = ['Deduplicated']

log = logging.getLogger('t2x')

# Increment when the same source has other duplicates.
VERSION = 2
# Number of pairs of duplicates in info.json.
PAIRS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deduplicated(Source):
  """Examples of `source` without near-duplicates of earlier examples.

  Examples are near-duplicates if the Jaccard similarity of their sets of word n-grams is at least `threshold` (Lee
  et al. 2022, https://arxiv.org/abs/2107.06499). The search is exact and runs once; the indices of the remaining
  examples are cached in $T2X_CACHE/deduplicated. Case and punctuation are ignored: see `t2x.data.ngrams`. All
  further splits are complete.

  Attributes:
    source: source of the examples.
    fields: fields with text or lists of words, which are compared together.
    split: the split to deduplicate.
    ngram: words per n-gram.
    threshold: minimum similarity of duplicates; 1: equal sets of n-grams.
  """

  source: Source
  fields: Annotated[Sequence[Text], NonEmpty] = ('text',)
  split: Text = 'train'
  ngram: Size = 5
  threshold: Annotated[float, Range('0 < x <= 1')] = 0.8

  def __post_init__(self):
    require_split(self.source, self.split)
    make_tuples(self, 'fields')

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def load(self, split: str) -> Sequence[Example]:
    """Returns a split; finds its duplicates at first use."""
    examples = self.source.load(split)
    if split != self.split:
      return examples
    return Selected(examples, self._prepared() / 'kept')

  def fingerprint(self) -> str:
    """Identifies the source and the settings."""
    settings = self.fields, self.split, self.ngram, self.threshold
    return fingerprint('Deduplicated', VERSION, self.source.fingerprint(), *settings)

  def info(self) -> dict[str, Any]:
    """Returns the statistics of the deduplicated split.

    Returns:
      `examples`, `kept`, `bytes` (of UTF-8 text), `seconds`, and the first `pairs` of an omitted example and
      the kept example that it is similar to.
    """
    return json.loads((self._prepared() / 'info.json').read_text())

  def _prepared(self) -> Path:
    folder = cache_folder() / 'deduplicated' / self.fingerprint()
    prepare(folder, self._write)
    return folder

  def _write(self, folder: Path) -> None:
    start, size = time.monotonic(), 0

    def texts() -> Iterator[str]:
      nonlocal size
      for number, example in enumerate(self.source.load(self.split)):
        text = joined_text(example, self.fields, number)
        size += len(text.encode())
        yield text

    similar = near_duplicates(texts(), self.ngram, self.threshold, folder)
    kept, omitted = np.flatnonzero(similar < 0), np.flatnonzero(similar >= 0)
    kept.astype('<i8').tofile(folder / 'kept')
    info = {
      'examples': len(similar),
      'kept': len(kept),
      'bytes': size,
      'seconds': round(time.monotonic() - start, 3),
      'pairs': np.stack([omitted, similar[omitted]], axis=1)[:PAIRS].tolist(),
    }
    (folder / 'info.json').write_text(json.dumps(info) + '\n')
    log.info(
      'deduplicated %s: %s of %s examples are near-duplicates (%.2f%%), %.1f MB/s',
      self.split,
      f'{len(omitted):,}',
      f'{len(similar):,}',
      100 * len(omitted) / max(len(similar), 1),
      size / 1e6 / max(info['seconds'], 1e-3),
    )
