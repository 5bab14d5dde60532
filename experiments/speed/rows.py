"""Rows of a benchmark as lines and as a CSV file."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path


def show(rows: Iterable[Mapping], out: Path | None) -> None:
  """Prints each row when it is measured, then writes all of them.

  Args:
    rows: rows with the same keys.
    out: CSV file to write, if any.
  """
  measured = []
  for row in rows:
    print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
    measured.append(row)
  if out:
    write(measured, out)


def write(rows: list[Mapping], path: Path) -> None:
  """Writes rows as a CSV file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('w', newline='') as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
