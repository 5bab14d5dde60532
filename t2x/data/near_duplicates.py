"""Near-duplicates: texts whose sets of word n-grams have a Jaccard similarity of at least a threshold.

The result is exact, except for collisions of 64-bit hashes. Sets with a similarity of t share at least
t * size n-grams. If the n-grams of every set are in one order, similar sets therefore share an n-gram
among their first size - ceil(t * size) + 1 (prefix filtering: Chaudhuri et al. 2006, Bayardo et al. 2007,
https://doi.org/10.1145/1242572.1242591). The order puts rare n-grams first, so that few texts share
these; their similarity is computed from the complete sets.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

from t2x.data.ngrams import hashed_batches

# Frequencies are counted in 2^24 counters; n-grams that share a counter have its sum.
_COUNTER_BITS = 24
_SHIFT = np.uint64(64 - _COUNTER_BITS)
# Number of n-grams to sort at once.
_CHUNK = 1 << 20
# For products of the threshold and sizes.
_ROUNDING = 1e-9


def near_duplicates(
  texts: Iterable[str], n: int, threshold: float, folder: Path
) -> Int[np.ndarray, 'texts']:
  """Returns for each text the first similar text that is kept, or -1 if the text itself is kept.

  In order, a text is kept unless it is similar to a text that was kept before. So no two kept texts are
  similar, and every other text is similar to a kept text. Texts without words are kept.

  The hashes of all n-grams (8 bytes each) are in a temporary file. In memory are 64 MiB of counters, 32
  bytes per text, and 40 bytes for each n-gram in a prefix that another text may have.

  Args:
    texts: the texts.
    n: words per n-gram.
    threshold: the least Jaccard similarity of duplicates, above 0 and at most 1.
    folder: folder for the temporary file.
  """
  path = folder / 'hashes.tmp'
  try:
    sets = _Sets(path, texts, n)
    return _Search(sets, threshold).run()
  finally:
    path.unlink(missing_ok=True)


class _Sets:
  """The sorted, distinct hashes of each text, in a file, and the number of texts with a hash."""

  def __init__(self, path: Path, texts: Iterable[str], n: int):
    self._path = path
    self._counts = np.zeros(1 << _COUNTER_BITS, np.uint32)
    sizes = [np.zeros(0, np.int64)]
    with path.open('wb') as file:
      for batch in hashed_batches(texts, n):
        distinct = batch.distinct()
        file.write(distinct.hashes.tobytes())
        np.add.at(self._counts, distinct.hashes >> _SHIFT, 1)
        sizes.append(distinct.sizes)
    self.sizes = np.concatenate(sizes)
    self._stops = np.cumsum(self.sizes)

  def __getitem__(self, i: int) -> np.ndarray:
    return self._read(self._stops[i] - self.sizes[i], self._stops[i])

  def _read(self, start: np.int64, stop: np.int64) -> np.ndarray:
    # Not mapped, because mapped pages would count as memory of the process.
    return np.fromfile(self._path, np.uint64, int(stop - start), offset=8 * int(start))

  def shared_prefixes(self, threshold: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields hashes in the prefixes of texts that other texts may have, and the indices of these texts."""
    # A set shares at least this number of n-grams with every similar set.
    shared = np.ceil(threshold * self.sizes - _ROUNDING).astype(np.int64)
    start = 0
    while start < len(self.sizes):
      first = self._stops[start] - self.sizes[start]
      stop = max(int(np.searchsorted(self._stops, first + _CHUNK, 'right')), start + 1)
      hashes = self._read(first, self._stops[stop - 1])
      owner = np.repeat(np.arange(start, stop), self.sizes[start:stop])
      counts = self._counts[hashes >> _SHIFT]
      # The hashes of a text are sorted, and a stable sort keeps their order.
      order = np.lexsort((counts, owner))
      rank = np.arange(len(hashes)) - (self._stops - self.sizes - first)[owner]
      prefix = order[(rank <= (self.sizes - shared)[owner]) & (counts[order] > 1)]
      yield hashes[prefix], owner[prefix]
      start = stop


class _Search:
  """An index from n-grams to the kept texts that have them in their prefix.

  An entry is an n-gram in the prefix of a text; entries of equal n-grams are a group, and the entries of kept
  texts in a group are a linked list.
  """

  def __init__(self, sets: _Sets, threshold: float):
    self.sets, self.threshold = sets, threshold
    prefixes = [(np.zeros(0, np.uint64), np.zeros(0, np.int64)), *sets.shared_prefixes(threshold)]
    hashes = np.concatenate([hashes for hashes, _ in prefixes])
    self._text = np.concatenate([owners for _, owners in prefixes])
    distinct, self._group = np.unique(hashes, return_inverse=True)
    self._head = np.full(len(distinct), -1)
    self._next = np.full(len(hashes), -1)

  def run(self) -> np.ndarray:
    """Returns the first similar kept text of each text, or -1."""
    similar = np.full(len(self.sets.sizes), -1)
    texts, starts = np.unique(self._text, return_index=True)
    stops = np.searchsorted(self._text, texts, 'right')
    for i, start, stop in zip(texts.tolist(), starts.tolist(), stops.tolist(), strict=True):
      groups = self._group[start:stop]
      similar[i] = self._first_similar(i, groups)
      if similar[i] < 0:
        self._next[start:stop] = self._head[groups]
        self._head[groups] = np.arange(start, stop)
    return similar

  def _first_similar(self, i: int, groups: np.ndarray) -> int:
    entries, found = self._head[groups], []
    while len(entries := entries[entries >= 0]):
      found.append(self._text[entries])
      entries = self._next[entries]
    if not found:
      return -1
    candidates, size = np.unique(np.concatenate(found)), self.sets.sizes[i]
    sizes = self.sets.sizes[candidates]
    least, most = np.minimum(sizes, size), np.maximum(sizes, size)
    for j in candidates[least >= self.threshold * most - _ROUNDING].tolist():
      if similarity(self.sets[i], self.sets[j]) >= self.threshold - _ROUNDING:
        return j
    return -1


def similarity(first: np.ndarray, second: np.ndarray) -> float:
  """Returns the Jaccard similarity of two sets, as sorted arrays of distinct values that are not empty."""
  places = np.minimum(np.searchsorted(first, second), len(first) - 1)
  common = int(np.count_nonzero(first[places] == second))
  return common / (len(first) + len(second) - common)
