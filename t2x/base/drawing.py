"""Figures for papers: SVG, PDF or PNG files, drawn with matplotlib (the extra `report`)."""

import base64
import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t2x.base.files import MARK, check_folder, output_path
from t2x.base.packages import imported

if TYPE_CHECKING:
  from matplotlib.figure import Figure

__all__ = ['COLORS', 'DASHES', 'SUFFIXES', 'drawn', 'png_url', 'save_figure', 'save_picture']

SUFFIXES = ('.svg', '.pdf', '.png')
# Those of page.css; with the dashes, 24 lines are distinct.
COLORS = ('#0072b2', '#d55e00', '#00876a', '#aa4499', '#94700a', '#3b8fc9')
DASHES: Sequence[Any] = ('-', (0, (5, 2)), (0, (1, 2)), (0, (6, 2, 1, 2)))

# Text is text, and fonts of PDF files are of type 42, as conferences require. Equal figures are equal files.
_STYLE: dict[str, object] = {
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
_METADATA: dict[str, dict[str, str | None]] = {
  '.svg': {'Date': None, 'Creator': MARK},
  '.pdf': {'CreationDate': None, 'Creator': MARK},
  '.png': {'Software': MARK},
}


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
  matplotlib = imported('matplotlib', 'a figure')
  from matplotlib.figure import Figure

  with matplotlib.rc_context(_STYLE):
    figure = Figure(figsize=(width, height), layout='constrained')
    yield figure
    for path in paths:
      save_figure(figure, path, dpi=200)


def save_figure(figure: 'Figure', path: Path, **settings: Any) -> None:
  """Writes a matplotlib figure to a file, whose folder is created, in the format of its suffix or as PNG.

  Raises:
    UserError: the file cannot be written, or would replace a file that t2x did not write.
  """
  suffix = path.suffix if path.suffix in SUFFIXES else '.png'
  _make_folder(path)
  with output_path('', path) as file:
    figure.savefig(file, format=suffix[1:], metadata=_METADATA[suffix], **settings)


def png_url(picture: np.ndarray) -> str:
  """Returns a picture, uint8 [height, width, 1 or 3], as the URL of a PNG file."""
  from PIL import Image

  file = io.BytesIO()
  Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(file, 'png')
  return f'data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}'


def save_picture(array: np.ndarray, path: Path) -> None:
  """Writes a picture, uint8 [height, width] or [height, width, channels], to a PNG file, as `save_figure` does."""
  from PIL import Image, PngImagePlugin

  _make_folder(path)
  metadata = PngImagePlugin.PngInfo()
  metadata.add_text('Software', MARK)
  with output_path('', path) as file:
    Image.fromarray(array).save(file, 'png', pnginfo=metadata, optimize=True)


def _make_folder(path: Path) -> None:
  check_folder('', path.parent)
  path.parent.mkdir(parents=True, exist_ok=True)
