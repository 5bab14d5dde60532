"""Figures for papers: SVG, PDF or PNG files, drawn with matplotlib (the extra `report`)."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError

__all__ = ['COLORS', 'DASHES', 'SUFFIXES', 'check_suffix', 'drawn']

SUFFIXES = ('.svg', '.pdf', '.png')
# Those of report.css; with the dashes, 24 lines are distinct.
COLORS = ('#0072b2', '#d55e00', '#00876a', '#aa4499', '#94700a', '#3b8fc9')
DASHES: Sequence[Any] = ('-', (0, (5, 2)), (0, (1, 2)), (0, (6, 2, 1, 2)))

# Text is text, and fonts of PDF files are of type 42, as conferences require. Equal figures are equal files.
_STYLE: Any = {
  'text.parse_math': False,
  'font.size': 8,
  'pdf.fonttype': 42,
  'svg.hashsalt': 't2x',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'grid.color': '#dde1e5',
  'grid.linewidth': 0.5,
  'axes.axisbelow': True,
  'lines.linewidth': 1.2,
  'legend.frameon': False,
}
_UNDATED: Any = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}, '.png': {}}


def check_suffix(option: str, path: Path) -> None:
  """Raises UserError if the name of a figure does not end in one of `SUFFIXES`; `option` names it in the message."""
  if path.suffix not in SUFFIXES:
    raise UserError(
      f'{option} {path}: the name of a figure must end in {", ".join(SUFFIXES[:-1])} or {SUFFIXES[-1]}'
    )


@contextlib.contextmanager
def drawn(paths: Sequence[Path], width: float, height: float) -> Iterator[Any]:
  """Yields a matplotlib figure, and writes it to files on exit.

  Args:
    paths: the files, whose suffixes are among `SUFFIXES`. Their folders are created.
    width: width in inches; 5.5 is the width of the text of NeurIPS papers.
    height: height in inches.

  Raises:
    UserError: matplotlib is not installed, or a file cannot be written.
  """
  try:
    import matplotlib
    from matplotlib.figure import Figure
  except ImportError as error:
    raise UserError("figures need matplotlib: pip install 't2x[report]'") from error
  with matplotlib.rc_context(_STYLE):
    figure = Figure(figsize=(width, height), layout='constrained')
    yield figure
    for path in paths:
      try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=path.suffix[1:], dpi=200, metadata=_UNDATED[path.suffix])
      except OSError as error:
        raise UserError(f'{path} cannot be written: {error.strerror}') from error
