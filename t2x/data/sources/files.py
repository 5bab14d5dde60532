"""Sources of local text files: text, JSON lines, tab-separated values and CSV."""

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from t2x.base.errors import UserError
from t2x.base.external_files import csv_rows
from t2x.base.ranges import NonEmpty, Text, make_tuples
from t2x.data.sources.base import Example, select
from t2x.data.sources.file_examples import (
  TextSource,
  document_starts,
  line_starts,
  record_starts,
  separated_starts,
)
from t2x.data.sources.file_source import DataFile, open_file

__all__ = ['CSV', 'TSV', 'JsonLines', 'TextFiles']


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSource(TextSource):
  """One example per line that is not blank."""

  def starts(self, file, path):
    """Yields the first bytes of lines."""
    return line_starts(file)


def first_line(text: str) -> str:
  """Returns the text before the first line end."""
  return text.partition('\n')[0].removesuffix('\r')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(TextSource):
  """Plain text in UTF-8, with `text` and `name` of each file, of each line, or of each text between separators.

  Attributes:
    per_line: makes each line that is not blank an example.
    separator: text between the examples of a file, such as '<|endoftext|>' or '\\n\\n', which is removed; blank
      examples are left out. None: a file is one example.
  """

  per_line: bool = False
  separator: Text | None = None

  def __post_init__(self):
    if self.per_line and self.separator is not None:
      raise UserError(
        'TextFiles.separator has no effect with TextFiles.per_line: remove one of them'
      )

  def _settings(self) -> object:
    return self.per_line if self.separator is None else self.separator

  def _layout(self) -> object:
    if self.separator is not None:
      return f'between {self.separator!r}'
    return LineSource.starts.__qualname__ if self.per_line else 'files'

  @property
  def end(self):
    """The last byte of a separator or of a line end."""
    return super().end if self.separator is None else self.separator.encode()[-1:]

  def starts(self, file, path):
    """Yields the first bytes of lines or of texts between separators, or the first byte of the file."""
    if self.separator is not None:
      return separated_starts(file, self.separator.encode())
    return line_starts(file) if self.per_line else document_starts(file)

  def parser(self, file):
    """Returns a function that returns the unchanged text and the name of its file."""
    name, separator = file.path.name, self.separator
    if self.per_line:
      return lambda text: {'text': first_line(text), 'name': name}
    if separator is not None:
      return lambda text: {'text': text.partition(separator)[0], 'name': name}
    return lambda text: {'text': text, 'name': name}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(LineSource):
  """One JSON object per line.

  Attributes:
    fields: field of the example -> field of the object ({'source': 'en', 'target': 'de'}); empty:
      the objects have `text`, or `source` and `target`, `words` and `labels` (lists), or `question`
      and `context`.
  """

  extension: ClassVar[str] = 'jsonl'

  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

  def _settings(self) -> object:
    return sorted(self.fields.items())

  def parser(self, file):
    """Returns a function that returns the object of a line, with its fields renamed."""
    return lambda text: select(_json(first_line(text)), self.fields, 'JsonLines')


def _json(text: str) -> dict[str, Any]:
  try:
    record = json.loads(text)
    if '\\u' in text:
      json.dumps(record, ensure_ascii=False).encode()
  except UnicodeEncodeError as error:
    raise UserError('unpaired surrogate: text must be valid Unicode') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'not JSON ({error}): write one object per line') from error
  if not isinstance(record, dict):
    raise UserError('not a JSON object: write {"text": "..."}')
  return record


@dataclasses.dataclass(frozen=True, kw_only=True)
class TSV(LineSource):
  """Tab-separated values without a header and without quotes.

  Attributes:
    columns: names of the columns.
  """

  columns: Annotated[Sequence[Text], NonEmpty] = ('source', 'target')

  def __post_init__(self):
    make_tuples(self, 'columns')

  def _settings(self) -> object:
    return self.columns

  def parser(self, file):
    """Returns a function that returns the values of a line by column."""
    return self._example

  def _example(self, text: str) -> Example:
    values = first_line(text).split('\t')
    if len(values) != len(self.columns):
      raise UserError(
        f'{len(values)} columns, but TSV.columns names {len(self.columns)} '
        f'({", ".join(self.columns)}): correct the line or TSV.columns'
      )
    return dict(zip(self.columns, values, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CSV(TextSource):
  """Comma-separated values with a header; quoted values may contain delimiters and line ends.

  Attributes:
    fields: field of the example -> column ({'source': 'en', 'target': 'de'}); empty: all columns
      under their names, of which one is `text`, or two `source` and `target`.
    delimiter: one character between values, such as '\\t' or ';'.
  """

  extension: ClassVar[str] = 'csv'

  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  delimiter: Text = ','

  def __post_init__(self):
    if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
      raise UserError(
        f'CSV.delimiter = {self.delimiter!r}: must be one character, not a quote or line end'
      )

  def _settings(self) -> object:
    return sorted(self.fields.items()), self.delimiter

  def _layout(self) -> object:
    return 'csv', self.delimiter

  def starts(self, file, path):
    """Yields the first bytes of records after the header."""
    return record_starts(file, path, self.delimiter)

  def parser(self, file):
    """Returns a function that returns the values of a record by column."""
    header = self._header(file)

    def parse(text: str) -> Example:
      values = next(csv_rows(io.StringIO(text, newline=''), self.delimiter))
      if len(values) != len(header):
        raise UserError(f'{len(values)} columns, but the header has {len(header)}')
      return select(dict(zip(header, values, strict=True)), self.fields, 'CSV')

    return parse

  def _header(self, file: DataFile) -> list[str]:
    with open_file(file.data) as opened:
      lines = io.TextIOWrapper(opened, 'utf-8-sig', newline='')
      header = next(filter(None, csv_rows(lines, self.delimiter)))
    if repeated := sorted({name for name in header if header.count(name) > 1}):
      raise UserError(f'{file.path}: the header repeats {", ".join(map(repr, repeated))}')
    if '' in header:
      raise UserError(
        f'{file.path}: column {header.index("") + 1} of the header has no name: give it one'
      )
    return header
