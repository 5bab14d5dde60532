"""Plain text tables, and texts folded to the width of the terminal."""

import re
import shutil
from collections.abc import Sequence

# Where a word may be broken: after a sign inside a path or a dotted name, and not inside a number.
_BREAKS = re.compile(r'(?<=[_/.,=])(?=[A-Za-z@])')


def text_table(rows: Sequence[Sequence[str]], alignment: str, width: int | None = None) -> str:
  """Formats rows of cells as lines with aligned columns, two spaces apart.

  Args:
    rows: cells of each line, the header first; all rows have the same number of cells.
    alignment: one `<` (left) or `>` (right) per column.
    width: columns of the text at which cells are folded, at spaces and then inside of names. None: nothing is folded.
  """
  columns = [*zip(*rows, strict=True)]
  widths = [max(map(len, column)) for column in columns]
  if width is not None:
    for least in (_longest_words, _longest_pieces):
      _shrink(widths, [*map(least, columns)], width - 2 * (len(widths) - 1))
  lines = []
  for row in rows:
    cells = [fold(cell, size) for cell, size in zip(row, widths, strict=True)]
    for i in range(max(map(len, cells))):
      parts = [cell[i] if i < len(cell) else '' for cell in cells]
      text = '  '.join(
        f'{part:{side}{size}}' for part, side, size in zip(parts, alignment, widths, strict=True)
      )
      lines.append(text.rstrip())
  return '\n'.join(lines)


def fold(text: str, width: int, indent: str = '') -> list[str]:
  """Folds a text at spaces, and longer words inside of names.

  Args:
    text: the text, without line breaks.
    width: columns of each line, of which a longer piece of a name has more.
    indent: what all lines but the first begin with.
  """
  if len(text) <= width:
    return [text]
  lines, start = [''], True
  for word in text.split(' '):
    space = '' if start else ' '
    start = False
    if len(lines[-1]) + len(space) + len(word) <= width:
      lines[-1] += space + word
      continue
    if lines[-1].strip():
      lines.append(indent)
    for piece in _BREAKS.split(word):
      if lines[-1].strip() and len(lines[-1]) + len(piece) > width:
        lines.append(indent)
      lines[-1] += piece
  return lines


def terminal_width() -> int:
  """Returns the columns of the terminal of stdout, or of COLUMNS; 80 if there is none, and at least 60."""
  return max(shutil.get_terminal_size().columns, 60)


def _longest_words(cells: Sequence[str]) -> int:
  return max(len(word) for cell in cells for word in cell.split(' '))


def _longest_pieces(cells: Sequence[str]) -> int:
  return max(
    len(piece) for cell in cells for word in cell.split(' ') for piece in _BREAKS.split(word)
  )


def _shrink(widths: list[int], least: Sequence[int], total: int) -> None:
  """Reduces the largest widths until their sum is at most `total`, but none below its least."""
  while sum(widths) > total:
    column = max(
      (i for i, size in enumerate(widths) if size > least[i]), key=widths.__getitem__, default=None
    )
    if column is None:
      return
    widths[column] -= 1
