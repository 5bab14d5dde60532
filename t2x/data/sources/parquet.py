"""Text in Parquet files (https://parquet.apache.org)."""

import bisect
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from t2x.base.errors import UserError, first_line
from t2x.base.packages import imported
from t2x.data.sources.base import BulkExamples, select
from t2x.data.sources.file_source import FileSource

__all__ = ['Parquet']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parquet(FileSource):
  """One example per row of Parquet files, of which the columns that are used are read.

  A process holds one row group in memory. Reading in order is fast; reading single examples in random
  order decodes a row group for each, so use `HubDataset` for images. Needs the extra `data`.

  Attributes:
    fields: field of the example -> column ({'source': 'en', 'target': 'de'}); empty: all columns
      under their names, such as `text`, or `source` and `target`.
  """

  packages = ('pyarrow',)

  extension: ClassVar[str] = 'parquet'

  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

  def _settings(self) -> object:
    return sorted(self.fields.items())

  def load(self, split: str) -> 'ParquetExamples':
    """Returns the examples of a split. Checks the columns of all files and the first example now.

    Raises:
      UserError: a file cannot be read, lacks a column or has no rows.
    """
    paths = self.paths(split)
    examples = ParquetExamples(self, paths, *self._row_groups(split, paths))
    examples[0]
    return examples

  def _row_groups(
    self, split: str, paths: Sequence[Path]
  ) -> tuple[list[tuple[int, int]], list[int]]:
    """Returns the file and the number in its file of each row group, and the ends of row groups."""
    groups, sizes = list[tuple[int, int]](), list[int]()
    for number, path in enumerate(paths):
      with _open(path) as file:
        names = file.schema_arrow.names
        if missing := sorted({*self.fields.values()} - {*names}):
          raise UserError(
            f'{path} has no column {", ".join(map(repr, missing))}, which Parquet.fields names: it '
            f'has {", ".join(map(repr, names))}'
          )
        if not file.metadata.num_rows:
          raise UserError(f'{path} is empty: remove it from Parquet.{split}')
        for group in range(file.num_row_groups):
          groups.append((number, group))
          sizes.append(file.metadata.row_group(group).num_rows)
    return groups, list(itertools.accumulate(sizes))


class ParquetExamples(BulkExamples):
  """Rows of Parquet files. Row groups are read when they are used; the last one stays in memory."""

  def __init__(
    self,
    source: Parquet,
    paths: Sequence[Path],
    groups: Sequence[tuple[int, int]],
    ends: Sequence[int],
  ):
    """
    Args:
      source: names the fields.
      paths: files of the split.
      groups: index of the file, and index in the file, of each row group.
      ends: number of rows up to the end of each row group.
    """
    self.source, self.paths, self.groups, self.ends = source, paths, groups, ends
    self._last: tuple[int, Any] | None = None

  def __reduce__(self):
    return type(self), (self.source, self.paths, self.groups, self.ends)

  def __len__(self) -> int:
    return self.ends[-1]

  def read(self, indices):
    """Yields rows; each row group is read once for consecutive rows."""
    for group, members in itertools.groupby(indices, lambda i: bisect.bisect_right(self.ends, i)):
      table, start = self._table(group), self.ends[group - 1] if group else 0
      rows = [i - start for i in members]
      for row, record in zip(rows, table.take(rows).to_pylist(), strict=True):
        try:
          yield select(record, self.source.fields, 'Parquet')
        except UserError as error:
          number, in_file = self.groups[group]
          place = f'row {row} of row group {in_file}'
          raise UserError(f'{self.paths[number]}, {place}: {error}') from error

  def _table(self, group: int) -> Any:
    # One assignment, because threads may read the same examples.
    if (last := self._last) is not None and last[0] == group:
      return last[1]
    number, in_file = self.groups[group]
    columns = sorted({*self.source.fields.values()}) or None
    with _open(self.paths[number]) as file:
      table = file.read_row_group(in_file, columns=columns)
    self._last = group, table
    return table


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
  pyarrow, parquet = imported('pyarrow', 'Parquet'), imported('pyarrow.parquet', 'Parquet')
  try:
    with parquet.ParquetFile(path) as file:
      yield file
  except (pyarrow.ArrowException, OSError) as error:
    raise UserError(f'{path} is no Parquet file, or is damaged: {first_line(error)}') from error
