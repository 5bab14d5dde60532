"""Held-out splits by a hash of the content: other examples never move an example to another split."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Rate, Text
from t2x.data.prepared_folders import cache_folder, fingerprint, is_former, prepare
from t2x.data.sources.base import (
  Example,
  Source,
  require_split,
  with_progress,
)
from t2x.data.sources.subset import Selected

__all__ = ['HeldOut']

# Split -> its buckets of 100.
SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}
# Number of buckets of `HeldOut`, and of the finest division.
BUCKETS = 1_000_000
# Fields that a model reads; the first that an example has decides its split. A picture or recording may
# have several texts.
INPUTS = ('image', 'audio', 'video', 'text', 'source', 'context', 'words')
# Those of version 1 of fingerprints.
FORMER = ('text', 'source', 'context', 'words', 'image')


def split_of(content: str | bytes, splits: Mapping[str, range] = SPLITS, buckets: int = 100) -> str:
  """Returns the split of a content or name, by its hash.

  Args:
    content: text or bytes.
    splits: split -> its buckets.
    buckets: number of buckets, a divisor of a million. Finer buckets divide coarser ones: the first
      10,000 of a million are the first of 100.
  """
  if isinstance(content, str):
    content = content.encode()
  number = int.from_bytes(hashlib.sha256(content).digest()[:4], 'big')
  place = number % 100 * 10_000 + number // 100 % 10_000
  bucket = place * buckets // BUCKETS
  return next(split for split, members in splits.items() if bucket in members)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut(Source):
  """Divides a split of `source` into itself, `validation` and `test`, for sources without them.

  A hash of its content decides where an example belongs. The result does not depend on the order or
  on other examples, and examples with equal content are in the same split. The splits of the
  examples are computed at first use, which reads all of them, and stored in the cache.

  Attributes:
    source: source of the examples; its other splits stay as they are.
    validation: share of the validation split; 0: no such split.
    test: share of the test split; 0: no such split.
    split: split to divide. It keeps the remaining examples.
    key: field with the content to hash, such as 'name' to keep the parts of a document together;
      None: the first of image, audio, video, text, source, context and words that an example has.
  """

  source: Source
  validation: Rate = 0.0
  test: Rate = 0.0
  split: Text = 'train'
  key: Text | None = None

  def __post_init__(self):
    shares = f'HeldOut.validation = {self.validation} and HeldOut.test = {self.test}'
    if not self._held_out() or self.validation + self.test >= 1:
      raise UserError(f'{shares}: set at least one of them; their sum must be below 1')
    for name, share in self._held_out().items():
      if round(share * BUCKETS) == 0:
        raise UserError(f'HeldOut.{name} = {share}: must be 0 or at least {1 / BUCKETS}')
      if name == self.split or name in self.source.splits():
        raise UserError(
          f"HeldOut.{name} is set, but {self.source.describe()} has a split '{name}': remove it"
        )
    require_split(self.source, self.split)

  def splits(self) -> tuple[str, ...]:
    """Returns the splits of the source, followed by the held-out splits."""
    return (*self.source.splits(), *self._held_out())

  def load(self, split: str) -> Sequence[Example]:
    """Returns the examples of a split, in the order of the source.

    Raises:
      UserError: the split has no examples, or an example has no content to hash.
    """
    require_split(self, split)
    if split not in self._buckets():
      return self.source.load(split)
    examples = self.source.load(self.split)
    folder = cache_folder() / 'splits' / self.fingerprint()
    prepare(folder, lambda temporary: self._write(examples, temporary))
    if not (folder / split).stat().st_size:
      few, advice = f'{len(examples)} examples', 'set other shares'
      if len(examples) == 1:
        few = 'one example'
        advice = 'divide a text file into examples with TextFiles.separator or TextFiles.per_line'
      raise UserError(
        f"{self.describe()}: the split '{split}' is empty, because the source has only {few} in "
        f"'{self.split}': {advice}"
      )
    return Selected(examples, folder / split)

  def fingerprint(self) -> str:
    """Identifies the source, the shares and the key."""
    settings = (self.validation, self.test, self.split, self.key)
    inputs = () if is_former() and not self._moved() else (INPUTS,)
    return fingerprint('HeldOut', self.source.fingerprint(), settings, *inputs)

  def _moved(self) -> bool:
    """Returns whether version 1 divided the examples by another field, so that its runs cannot be resumed."""
    if self.key is not None:
      return False
    example = next(iter(self.source.load(self.split)), {})
    first = [next((n for n in names if n in example), None) for names in (INPUTS, FORMER)]
    return first[0] != first[1]

  def _held_out(self) -> dict[str, float]:
    shares = {'validation': self.validation, 'test': self.test}
    return {name: share for name, share in shares.items() if share}

  def _buckets(self) -> dict[str, range]:
    """Returns the buckets of each part, with train first, as in `SPLITS`."""
    sizes = {name: round(share * BUCKETS) for name, share in self._held_out().items()}
    buckets, start = {}, BUCKETS - sum(sizes.values())
    for name, size in ({self.split: start} | sizes).items():
      first = 0 if name == self.split else start
      buckets[name] = range(first, first + size)
      start = first + size
    return buckets

  def _write(self, examples: Sequence[Example], folder: Path) -> None:
    """Writes the indices of each part to a file."""
    buckets = self._buckets()
    with contextlib.ExitStack() as stack:
      files = {name: stack.enter_context((folder / name).open('wb')) for name in buckets}
      for index, example in enumerate(with_progress(examples, 'dividing examples into splits')):
        content = self._content(example, index)
        files[split_of(content, buckets, BUCKETS)].write(index.to_bytes(8, 'little'))

  def _content(self, example: Example, index: int) -> bytes:
    names = INPUTS if self.key is None else (self.key,)
    name = next((name for name in names if name in example), None)
    if name is None:
      raise UserError(
        f'example {index} of {self.source.describe()} has none of the fields {", ".join(names)}, '
        f'but {", ".join(example)}: set HeldOut.key to one of its fields'
      )
    return bytes_of(example[name])


def bytes_of(value: object) -> bytes:
  if isinstance(value, bytes):
    return value
  if isinstance(value, np.ndarray):
    return f'{value.shape} {value.dtype.str} '.encode() + value.tobytes()
  if isinstance(value, list | tuple):
    return b'\0'.join(map(bytes_of, value))
  return str(value).encode()
