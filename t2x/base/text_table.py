"""Plain text tables."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], alignment: str) -> str:
  """Formats rows of cells as lines with aligned columns, two spaces apart.

  Args:
    rows: cells of each line, the header first; all rows have the same number of cells.
    alignment: one `<` (left) or `>` (right) per column.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(
      f'{cell:{side}{width}}' for cell, side, width in zip(row, alignment, widths, strict=True)
    ).rstrip()
    for row in rows
  )
