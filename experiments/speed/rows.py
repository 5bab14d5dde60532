"""Rows of a benchmark as lines and as a CSV file, and their growth with the length."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def show(rows: Iterable[Mapping], out: Path | None, case: Sequence[str] = ()) -> None:
  """Prints each row when it is measured, then writes all of them.

  Args:
    rows: rows with the same keys.
    out: CSV file to write, if any.
    case: columns that name a case, to draw the speed relative to other contenders beside the CSV file; (): no plot.
  """
  measured = []
  for row in rows:
    print_row(row)
    measured.append(row)
  if out:
    write(measured, out)
    others = [row for row in measured if row.get('contender') != 't2x' and row.get('t2x_speed')]
    if case and others:
      draw_speeds(others, case, out.with_suffix('.png'))


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


def draw_speeds(rows: Sequence[Mapping], case: Sequence[str], path: Path) -> None:
  """Draws the speed of t2x relative to contenders, by case.

  Args:
    rows: rows of the contenders, each measured in all cases, with `contender`, `t2x_speed` and the columns of `case`.
    case: columns that name a case.
    path: PNG file to write.
  """
  from matplotlib.figure import Figure

  cases = list(dict.fromkeys(' '.join(str(row[key]) for key in case) for row in rows))
  others = list(dict.fromkeys(row['contender'] for row in rows))
  figure = Figure(figsize=(7, 1 + 0.22 * len(cases) * len(others)), layout='constrained')
  axis = figure.subplots()
  height = 0.8 / len(others)
  for number, other in enumerate(others):
    speeds = [float(row['t2x_speed']) for row in rows if row['contender'] == other]
    places = [place + number * height for place in range(len(cases))]
    axis.bar_label(axis.barh(places, speeds, height, label=other), fmt=' %.2f', fontsize='small')
  axis.axvline(1, color='black', linewidth=1)
  axis.set(xlabel='speed of t2x relative to the contender')
  axis.set_yticks([place + 0.4 - height / 2 for place in range(len(cases))], cases)
  axis.invert_yaxis()
  axis.margins(x=0.1)
  axis.legend(fontsize='small')
  figure.savefig(path, dpi=120)


def exponent(rows: Iterable[Mapping], column: str) -> float:
  """Returns the exponent p of `column` ~ length^p, fitted to the rows with a positive value; NaN for fewer than two."""
  import numpy as np

  points = [(row['length'], row[column]) for row in rows if row[column] > 0]
  if len(points) < 2:
    return float('nan')
  return float(np.polyfit(*np.log(points).T, 1)[0])
