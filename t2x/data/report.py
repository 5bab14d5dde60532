"""Statistics of a split: lengths in tokens, unknown tokens, duplicates, truncation and padding."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from t2x.base.files import output_file
from t2x.base.html_page import html_page
from t2x.base.text_table import text_table
from t2x.data.cache import OMITTED, Rows
from t2x.data.inspect import COLUMNS
from t2x.data.plans import by_size, segments_of
from t2x.data.tokenizers.base import Tokenizer

__all__ = ['Statistics', 'split_statistics', 'write_statistics']

# Number of characters to tokenise at once.
BATCH = 1 << 20


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Lengths of a text field, without special ids.

  Attributes:
    row: tokens per row of the column that holds the field; None if it holds several fields.
    tokens: number of tokens.
    unknown: number of unknown tokens.
    summary: minimum, median, mean, 90th and 99th percentile and maximum by name.
    bins: first length, last length and number of examples of each bin of the histogram.
  """

  row: int | None
  tokens: int
  unknown: int
  summary: dict[str, float]
  bins: list[tuple[int, int, int]]


@dataclasses.dataclass(frozen=True)
class Statistics:
  """Statistics of a split.

  Attributes:
    split: name of the split.
    examples: number of examples.
    megabytes: size of the text in UTF-8, in units of 10^6 bytes.
    duplicates: number of examples whose texts all equal those of an earlier example.
    fields: lengths of each text field.
    rows: number of rows.
    padding: share of padding in each column of tokens, and in all of them as 'total'.
    omitted: description -> number of examples, such as 'dropped as too long'.
    cut_tokens: number of tokens that are in no row, of examples that are not dropped.
  """

  split: str
  examples: int
  megabytes: float
  duplicates: int
  fields: dict[str, Lengths]
  rows: int
  padding: dict[str, float]
  omitted: dict[str, int]
  cut_tokens: int

  def text(self, width: int = 40) -> str:
    """Returns the statistics as lines, with bars of at most `width` characters."""
    share = self.duplicates / max(self.examples, 1)
    lines = [
      f'{self.split}: {self.examples:,} examples, {self.megabytes:.1f} MB of text, '
      f'{self.duplicates:,} duplicates ({share:.2%})',
      f'{self.rows:,} rows; padding: '
      + ', '.join(f'{name} {share:.2%}' for name, share in self.padding.items()),
    ]
    counts = [
      f'{count:,} {what} ({count / max(self.examples, 1):.2%})'
      for what, count in self.omitted.items()
    ]
    if self.cut_tokens:
      counts.append(f'{self.cut_tokens:,} tokens cut')
    lines.append(f'examples: {"; ".join(counts) or "none omitted, divided or cut"}')
    for name, field in self.fields.items():
      lines += ['', *_field_lines(name, field, width)]
    return '\n'.join(lines)


def _field_lines(name: str, field: Lengths, width: int) -> Iterator[str]:
  row = '' if field.row is None else f', {field.row:,} per row'
  yield (
    f"'{name}': {field.tokens:,} tokens{row}, {field.unknown:,} unknown "
    f'({field.unknown / max(field.tokens, 1):.3%})'
  )
  yield ', '.join(f'{what} {value:,.6g}' for what, value in field.summary.items())
  largest = max((count for _, _, count in field.bins), default=1)
  cells = [('tokens', 'examples', '')]
  for first, last, count in field.bins:
    cells.append((bin_name(first, last), f'{count:,}', '#' * round(width * count / largest)))
  yield text_table(cells, '>><')


def bin_name(first: int, last: int) -> str:
  """Returns the lengths of a bin of the histogram: '5' or '5-8'."""
  return f'{first:,}' if first == last else f'{first:,}-{last:,}'


def split_statistics(
  split: str,
  examples: Iterable[Mapping[str, Any]],
  texts_of: Callable[[Mapping[str, Any]], Mapping[str, str]],
  tokenizer: Tokenizer,
  rows: Rows,
) -> Statistics:
  """Reads and tokenises all examples of a split and reads its rows.

  Holds 8 bytes per example and 4 per text in memory.

  Args:
    split: name of the split.
    examples: the examples.
    texts_of: returns the texts of an example by field.
    tokenizer: converts texts to ids.
    rows: the prepared rows of the split.
  """
  lengths: dict[str, list[np.ndarray]] = {}
  unknown: dict[str, int] = {}
  digests = []
  size = 0

  def num_characters(texts: Mapping[str, str]) -> int:
    return sum(map(len, texts.values()))

  for texts in by_size(map(texts_of, examples), num_characters, BATCH):
    digests.append(np.array([_digest(example.values()) for example in texts], np.uint64))
    for name in dict.fromkeys(name for example in texts for name in example):
      values = [example[name] for example in texts if name in example]
      size += sum(len(text.encode()) for text in values)
      ids = (tokenizer.target if name == 'target' else tokenizer).encode_batch(values)
      lengths.setdefault(name, []).append(np.array([len(i) for i in ids], np.int32))
      unknown[name] = unknown.get(name, 0) + sum(i.count(tokenizer.unk_id) for i in ids)
  hashes = np.concatenate(digests) if digests else np.zeros(0, np.uint64)
  capacity = _capacity(rows)
  return Statistics(
    split,
    len(hashes),
    size / 1e6,
    len(hashes) - len(np.unique(hashes)),
    {
      name: _lengths(
        np.concatenate(parts),
        unknown[name],
        # The only field is in the only column.
        capacity.get('tokens' if len(lengths) == 1 else name),
      )
      for name, parts in lengths.items()
    },
    len(rows),
    _padding(rows, capacity),
    {what: rows.info[name] for name, what in OMITTED.items() if rows.info.get(name)},
    rows.info.get('cut_tokens', 0),
  )


def _digest(texts: Iterable[str]) -> int:
  """Returns a 64-bit hash of texts."""
  digest = hashlib.blake2b(digest_size=8)
  for text in texts:
    content = text.encode()
    digest.update(len(content).to_bytes(8, 'little') + content)
  return int.from_bytes(digest.digest(), 'little')


def _capacity(rows: Rows) -> dict[str, int]:
  """Returns the tokens per row of each column of tokens."""
  row = rows[0] if len(rows) else {}
  return {name: len(row[name]) for name in COLUMNS if segments_of(name) in row}


def _lengths(lengths: np.ndarray, unknown: int, row: int | None) -> Lengths:
  names = ('min', 'median', 'mean', '90 %', '99 %', 'max')
  middle, high, highest = np.percentile(lengths, [50, 90, 99])
  values = (lengths.min(), middle, lengths.mean(), high, highest, lengths.max())
  edges = _edges(int(lengths.max()))
  counts, _ = np.histogram(lengths, edges)
  # The last bin of a NumPy histogram includes its right edge, which no length reaches.
  bins = [
    (first, after - 1, int(count))
    for first, after, count in zip(edges[:-1], edges[1:], counts, strict=True)
  ]
  start, last = np.flatnonzero(counts)[[0, -1]]
  summary = {name: round(float(value), 1) for name, value in zip(names, values, strict=True)}
  return Lengths(row, int(lengths.sum(dtype=np.int64)), unknown, summary, bins[start : last + 1])


def _edges(largest: int) -> list[int]:
  """Returns the first length of each bin, and a number above `largest`: 0, 1, 2, 3, 4, 6, 8, 12, ..."""
  edges = [0, 1, 2, 3]
  while edges[-1] <= largest:
    edges.append(edges[-2] * 2)
  return edges


def _padding(rows: Rows, capacity: Mapping[str, int]) -> dict[str, float]:
  used = dict.fromkeys(capacity, 0)
  for row in rows:
    for name in used:
      used[name] += int(np.count_nonzero(row[segments_of(name)]))
  shares = {name: 1 - used[name] / (len(rows) * capacity[name]) for name in used}
  total = 1 - sum(used.values()) / max(len(rows) * sum(capacity.values()), 1)
  return (shares if len(used) > 1 else {}) | {'total': total}


def write_statistics(title: str, splits: Sequence[Statistics], out: Path) -> None:
  """Writes a page with the statistics of splits.

  Args:
    title: title of the page.
    splits: the statistics.
    out: the HTML file.

  Raises:
    UserError: the page cannot be written.
  """
  folder = resources.files('t2x.data')
  data = {'title': title, 'splits': [dataclasses.asdict(split) for split in splits]}
  page = html_page(
    folder / 'report.html',
    title,
    styles=(folder / 'report.css',),
    scripts=(folder / 'report.js',),
    data=data,
  )
  with output_file('--html', out) as file:
    file.write(page)
