"""Rows of a benchmark as lines and as a CSV file, and their growth with the length."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def show(rows: Iterable[Mapping], out: Path | None) -> None:
  """Prints each row when it is measured, then writes all of them.

  Args:
    rows: rows with the same keys.
    out: CSV file to write, if any.
  """
  measured = []
  for row in rows:
    print_row(row)
    measured.append(row)
  if out:
    write(measured, out)


def print_row(row: Mapping) -> None:
  """Prints a row as one line."""
  print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)


def write(rows: Sequence[Mapping], path: Path) -> None:
  """Writes rows as a CSV file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('w', newline='') as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)


def exponent(rows: Iterable[Mapping], column: str) -> float:
  """Returns the exponent p of `column` ~ length^p, fitted to the rows with a positive value; NaN for fewer than two."""
  import numpy as np

  points = [(row['length'], row[column]) for row in rows if row[column] > 0]
  if len(points) < 2:
    return float('nan')
  return float(np.polyfit(*np.log(points).T, 1)[0])
