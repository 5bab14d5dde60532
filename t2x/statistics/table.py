"""Reads one long table of results of any framework: a row for each run, or for each evaluated item of a run.

CSV, JSON lines, Parquet (with pyarrow), or the results.csv of a sweep of t2x.
"""

import array
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from t2x.base.errors import UserError, printable
from t2x.base.external_files import check_regular, csv_rows, shown
from t2x.base.packages import imported
from t2x.base.suggestions import did_you_mean

Failed = Literal['refuse', 'drop', 'worst']

# Columns that are used if the table has them under these names; others are chosen by options.
OPTIONAL = ('size', 'step', 'item', 'parameters', 'embeddings', 'tokens', 'flops', 'seconds')
NUMBERS = ('step', 'parameters', 'embeddings', 'tokens', 'flops', 'seconds')
# Given the names of all columns and whether cells are read by name, returns the names or indices to read.
Start = Callable[[Sequence[str], bool], Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
  """Names of the columns of a table.

  Attributes:
    variant: columns whose values name the variant, joined by ', '.
    seed: column of the seed; None: the runs of a variant are numbered in the order of their rows.
    metrics: columns of the metrics. The first has the verdicts.
    others: columns by their meaning, one of `OPTIONAL`.
  """

  variant: Sequence[str] = ('variant',)
  seed: str | None = 'seed'
  metrics: Sequence[str] = ('loss',)
  others: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Table:
  """Results of runs, one entry per run and item, in the order of the rows.

  Attributes:
    where: the file, for messages.
    names: names of the variants.
    variants: index into `names` [rows].
    sizes: names of the sizes; [''] without sizes.
    at: index into `sizes` [rows].
    seeds: seed of each row, an index into `seed_names`, or the number of the run of its variant at its size [rows].
    seed_names: seeds as text; [] without seeds.
    items: number of the item [rows]; None without items.
    metrics: values of each metric [rows]; NaN for failed runs.
    numbers: further numbers by their meaning [rows].
    lines: row of the file, from 1 without the header [rows].
  """

  where: str
  names: list[str]
  variants: np.ndarray
  sizes: list[str]
  at: np.ndarray
  seeds: np.ndarray
  seed_names: list[str]
  items: np.ndarray | None
  metrics: Mapping[str, np.ndarray]
  numbers: Mapping[str, np.ndarray]
  lines: np.ndarray

  def run_keys(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns variant, size and seed of each row [rows, 3], and one integer for the three, in their order [rows]."""
    keys = np.stack([self.variants, self.at, self.seeds], 1)
    return keys, np.ravel_multi_index(tuple(keys.T), tuple(keys.max(0) + 1))

  def by_run(self, metric: str) -> 'Table':
    """Returns a table with one row per run, the mean of a metric over its items; the table itself without items."""
    if self.items is None:
      return self
    _, first, run = np.unique(self.run_keys()[1], return_index=True, return_inverse=True)
    means = np.bincount(run, self.metrics[metric]) / np.bincount(run)
    return dataclasses.replace(self.only(first), items=None, metrics={metric: means})

  def only(self, mask: np.ndarray) -> 'Table':
    """Returns some of the rows, by a mask [rows] or by their indices in the new order."""
    arrays = {
      'variants': self.variants[mask],
      'at': self.at[mask],
      'seeds': self.seeds[mask],
      'items': None if self.items is None else self.items[mask],
      'metrics': {name: values[mask] for name, values in self.metrics.items()},
      'numbers': {name: values[mask] for name, values in self.numbers.items()},
      'lines': self.lines[mask],
    }
    return dataclasses.replace(self, **arrays)


def read_table(path: Path, columns: Columns, only: Sequence[str] = ()) -> Table:
  """Reads a table.

  Args:
    path: the file.
    columns: names of the columns.
    only: names of the variants to read; () for all.

  Raises:
    UserError: the file or a row of it is invalid; the message has the row.
  """
  return table_of(str(path), lambda start: _rows(path, start), columns, only)


def table_of(
  where: str,
  rows: Callable[[Start], Iterable[tuple[int, Sequence[Any]]]],
  columns: Columns,
  only: Sequence[str] = (),
) -> Table:
  """Returns the table of rows, as `read_table`; `rows` gets a `Start` and returns the number and cells of each row."""
  reader = _Reader(where, columns, only)
  for number, row in rows(reader.start):
    reader.add(number, row)
  return _checked(reader.table(), columns)


def _rows(path: Path, start: Start) -> Iterator[tuple[int, Sequence[Any]]]:
  """Yields the number and the selected cells of each row; `start(names)` returns the indices or names of the cells."""
  try:
    check_regular(path, path.stat())
    if path.suffix == '.parquet':
      parquet = imported('pyarrow.parquet', str(path))
      try:
        file = parquet.ParquetFile(path)
      except (OSError, ValueError) as error:
        raise UserError(f'{path} is not a Parquet file: {error}') from error
      names = start(file.schema_arrow.names, True)
      number = 0
      for batch in file.iter_batches(columns=[*dict.fromkeys(names)]):
        cells = [batch.column(name).to_pylist() for name in names]
        for row in zip(*cells, strict=True):
          number += 1
          yield number, row
    elif path.suffix in ('.jsonl', '.ndjson', '.json'):
      with path.open(encoding='utf-8') as lines:
        yield from _json_rows(path, lines, start)
    else:
      with path.open(encoding='utf-8-sig', newline='') as lines:
        yield from _csv_rows(path, lines, start)
  except UnicodeDecodeError as error:
    raise UserError(f'{path} is not a UTF-8 text file: {error}') from error
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'{path} cannot be read: {reason}') from error


def _csv_rows(
  path: Path, lines: Iterable[str], start: Start
) -> Iterator[tuple[int, Sequence[str]]]:
  number = 0
  # Only comments above the header: the name of a variant may begin with a hash.
  lines = itertools.dropwhile(lambda line: line.startswith('#'), lines)
  rows = csv_rows(lines, where=lambda: f'{path}, row {number}: ')
  header = next(rows, None)
  if not header:
    raise UserError(f'{path} is empty: its first line must have the names of the columns')
  places = start([name.strip() for name in header], False)
  for row in rows:
    if not row:
      continue
    number += 1
    if len(row) != len(header):
      raise UserError(
        f'{path}, row {number} has {len(row)} cells, but the header has {len(header)}'
      )
    yield number, [row[place] for place in places]


def _json_rows(
  path: Path, lines: Iterable[str], start: Start
) -> Iterator[tuple[int, Sequence[Any]]]:
  names: Sequence[str] = ()
  number = 0
  for line in lines:
    if not line.strip():
      continue
    number += 1
    try:
      row = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise UserError(f'{path}, row {number} is not JSON: {error}') from error
    if not isinstance(row, dict):
      raise UserError(f'{path}, row {number} is {shown(row)}, not a JSON object')
    if not names:
      names = start(list(row), True)
    yield number, [row.get(name) for name in names]


class _Reader:
  """Collects the rows of a table as arrays."""

  def __init__(self, where: str, columns: Columns, only: Sequence[str]):
    self.where, self.columns, self.only = where, columns, frozenset(only)
    self.required = [*columns.variant, *([columns.seed] if columns.seed else []), *columns.metrics]
    self.others: dict[str, str] = {}
    self.codes: dict[str, dict[Any, int]] = {
      name: {} for name in ('variant', 'size', 'seed', 'item')
    }
    self.arrays: dict[str, array.array] = {}

  def start(self, names: Sequence[str], by_name: bool) -> list[Any]:
    """Returns the indices (or names) of the used columns; raises UserError if one is missing or duplicated."""
    chosen = self.columns.others
    for name in [*self.required, *chosen.values()]:
      if name not in names:
        hint = did_you_mean(name, names) or f'; its columns are {", ".join(map(printable, names))}'
        option = next((f'--{o}' for o, n in chosen.items() if n == name), self._option(name))
        raise UserError(
          f"{self.where} has no column '{name}'{hint} ({option} NAME chooses another)"
        )
      if list(names).count(name) > 1:
        raise UserError(f"{self.where} has two columns '{name}': rename one of them")
    self.others = {
      name: chosen.get(name, name) for name in OPTIONAL if name in chosen or name in names
    }
    self.others = {
      name: column
      for name, column in self.others.items()
      if name in chosen or column not in self.required
    }
    if self.columns.seed is None and 'item' in self.others:
      raise UserError(
        f"{self.where}: --seed none numbers rows as runs, but the column '{self.others['item']}' has items: add a "
        'column of the seed'
      )
    for name in ('variant', 'size', 'seed', 'item', 'line'):
      self.arrays[name] = array.array('q')
    for name in [*self.columns.metrics, *(n for n in self.others if n in NUMBERS)]:
      self.arrays[name] = array.array('d')
    used = [*self.required, *self.others.values()]
    return used if by_name else [list(names).index(name) for name in used]

  def _option(self, name: str) -> str:
    if name in self.columns.variant:
      return '--variant'
    return '--seed' if name == self.columns.seed else '--metric'

  def add(self, number: int, row: Sequence[Any]) -> None:
    """Adds a row."""
    cells = iter(row)
    variant = ', '.join(_text(next(cells)) for _ in self.columns.variant)
    if self.only and variant not in self.only:
      return
    if self._is_unmeasured(row):
      return
    arrays, codes = self.arrays, self.codes
    arrays['line'].append(number)
    arrays['variant'].append(codes['variant'].setdefault(variant, len(codes['variant'])))
    if self.columns.seed:
      seed = _text(next(cells))
      arrays['seed'].append(codes['seed'].setdefault(seed, len(codes['seed'])))
    for name in self.columns.metrics:
      arrays[name].append(self._number(next(cells), name, number, may_fail=True))
    for name, cell in zip(self.others, cells, strict=True):
      if name in NUMBERS:
        arrays[name].append(self._number(cell, self.others[name], number))
      else:
        arrays[name].append(codes[name].setdefault(_text(cell), len(codes[name])))

  def _is_unmeasured(self, row: Sequence[Any]) -> bool:
    """Returns whether a row of a learning curve has no metric, as between evaluations."""
    first = len(self.required) - len(self.columns.metrics)
    return 'step' in self.others and self.columns.seed is not None and row[first] in (None, '')

  def _number(self, cell: Any, name: str, number: int, may_fail: bool = False) -> float:
    """Returns a number; NaN for a failed run."""
    if cell is None or cell == '':
      return math.nan
    try:
      if isinstance(cell, bool):
        return float(cell)
      value = float(cell)
    except (TypeError, ValueError):
      raise UserError(
        f'{self.where}, row {number}: {name} is {shown(cell)}, not a number'
      ) from None
    return value if math.isfinite(value) else math.nan

  def table(self) -> Table:
    """Returns the table of all rows."""
    if missing := self.only - self.codes['variant'].keys():
      name = min(missing)
      raise UserError(
        f"{self.where} has no variant '{name}'{did_you_mean(name, self.codes['variant'])}"
      )
    if not self.arrays or not self.arrays['line']:
      raise UserError(f'{self.where} has no rows')
    arrays = {name: np.array(values) for name, values in self.arrays.items()}
    variants, lines = arrays['variant'], arrays['line']
    at = arrays['size'] if 'size' in self.others else np.zeros_like(variants)
    return Table(
      self.where,
      [*self.codes['variant']],
      variants,
      [*self.codes['size']] or [''],
      at,
      arrays['seed'] if self.columns.seed else _numbered(variants, at),
      [*self.codes['seed']],
      arrays['item'] if 'item' in self.others else None,
      {name: arrays[name] for name in self.columns.metrics},
      {name: arrays[name] for name in self.others if name in NUMBERS},
      lines,
    )


def _text(cell: object) -> str:
  return printable(cell if isinstance(cell, str) else json.dumps(cell, default=str))


def _numbered(variants: np.ndarray, at: np.ndarray) -> np.ndarray:
  """Numbers the rows of each variant and size from 0."""
  keys = variants * (at.max() + 1) + at
  order = np.argsort(keys, kind='stable')
  _, first, counts = np.unique(keys[order], return_index=True, return_counts=True)
  numbers = np.empty_like(keys)
  numbers[order] = np.arange(len(keys)) - np.repeat(first, counts)
  return numbers


def _checked(table: Table, columns: Columns) -> Table:
  """Keeps the last step of each run; raises UserError for a cell that is in the table twice."""
  _, flat = table.run_keys()
  if table.items is not None:
    flat = np.ravel_multi_index((flat, table.items), (flat.max() + 1, table.items.max() + 1))
  has_steps = 'step' in table.numbers and columns.seed
  order = np.lexsort([table.numbers['step'], flat] if has_steps else [flat])
  # Whether a row and the next one belong to the same cell, and whether they also have the same step.
  again = np.diff(flat[order]) == 0
  same = again & (np.diff(table.numbers['step'][order]) == 0) if has_steps else again
  if not same.any():
    return table.only(np.sort(order[np.append(~again, True)])) if has_steps else table
  pair = order[np.argmax(same) : np.argmax(same) + 2]
  first, second = sorted(int(line) for line in table.lines[pair])
  what = f"variant '{table.names[table.variants[pair[0]]]}'"
  if table.sizes[table.at[pair[0]]]:
    what += f" at size '{table.sizes[table.at[pair[0]]]}'"
  seed = f' and seed {table.seed_names[table.seeds[pair[0]]]}' if table.seed_names else ''
  raise UserError(
    f'{table.where}, row {second}: {what}{seed} is already in row {first}: a table has one row per run (and item); '
    '--step NAME keeps the last step of each run, --size NAME separates sizes or horizons'
  )


def without_failed(table: Table, metric: str, failed: Failed) -> tuple[Table, np.ndarray]:
  """Removes the failed runs, whose metric is not a finite number.

  Args:
    table: the table.
    metric: the metric.
    failed: 'refuse' raises UserError, 'drop' and 'worst' remove them.

  Returns:
    The other rows, and the failed runs as (variant, size, seed) [runs, 3]; with 'drop' there are none.

  Raises:
    UserError: a run failed and `failed` is 'refuse', or all runs failed.
  """
  lost = np.isnan(table.metrics[metric])
  if not lost.any():
    return table, np.zeros((0, 3), int)
  if failed == 'refuse':
    row = int(table.lines[np.argmax(lost)])
    raise UserError(
      f'{table.where}, row {row}: {metric} is not a finite number: did the run fail? --failed worst counts such runs '
      'as failures of their variant, --failed drop ignores them'
    )
  if lost.all():
    raise UserError(
      f'{table.where} has no run whose {metric} is a finite number: nothing to compare'
    )
  keys, flat = table.run_keys()
  runs = np.unique(keys[lost], axis=0)
  keep = ~np.isin(flat, flat[lost])
  return table.only(keep), runs if failed == 'worst' else runs[:0]
