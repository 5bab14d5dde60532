"""PNG or SVG files of a `Look`; requires the extra `report`."""

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, UInt8

from t2x.base.drawing import save_figure, save_picture
from t2x.base.errors import printable
from t2x.base.packages import imported
from t2x.look.attention import Attention, Grid
from t2x.look.look import Look
from t2x.look.page import maps

if TYPE_CHECKING:
  from matplotlib.axes import Axes

# Maximum number of tokens on an axis with labels.
_MAX_LABELS = 64
_MAX_COLUMNS = 4


def write_pictures(
  look: Look, folder: str | Path, kind: Literal['png', 'svg'] = 'png'
) -> list[Path]:
  """Writes the pictures of a page as PNG or SVG files and returns their paths.

  The files are `alignment` (cross-attention, mean over heads of each layer; of a recording, below its mel bands) or,
  over a picture, `words_layer_N` (where each word looks), `NAME_layer_N` (all heads of a layer), `experts` (load of the
  experts of each layer), `maps` (positions and patterns), and one for each drawing.

  Args:
    look: what to draw.
    folder: folder of the files.
    kind: format of the files, which is also their suffix. In SVG files axes and texts are vectors, and pictures and the
      cells of maps are embedded pixels.

  Raises:
    UserError: matplotlib is not installed, or a file cannot be written.
  """
  folder = Path(folder)
  paths = []
  for title, picture in look.drawings.items():
    path = folder / f'{_file_name(title)}.{kind}'
    if kind == 'svg':
      _write(path, [('', picture)], _picture)
    else:
      save_picture(picture, path)
    paths.append(path)
  for attention in look.attention:
    grid, pixels = attention.grid, look.pixels
    if attention.is_cross and grid is not None and pixels is not None:
      paths += _words(attention, _overlay(pixels, grid), folder, kind)
    elif attention.is_cross and look.frames is not None:
      name = _file_name(attention.name).replace('cross_attention', 'alignment')
      paths.append(_sound(look, attention, folder / f'{name}.{kind}'))
    elif attention.is_cross:
      means = [
        (f'layer {i + 1}, mean over heads', p.mean(0)) for i, p in enumerate(attention.layers)
      ]
      path = folder / f'{_file_name(attention.name).replace("cross_attention", "alignment")}.{kind}'
      paths.append(_write(path, means, _labels(attention)))
    name = _file_name(attention.name)
    for i, layer in enumerate(attention.layers):
      path = folder / f'{name}_layer_{i + 1}.{kind}'
      heads = [(f'layer {i + 1}, head {h + 1}', p) for h, p in enumerate(layer)]
      if not attention.is_cross and grid is not None and pixels is not None:
        query = attention.queries[0] if grid.num_extra else 'mean over queries'
        heads = [(f'{title}, {query}', p) for title, p in heads]
        paths.append(_write(path, heads, _overlay(pixels, grid)))
      else:
        paths.append(_write(path, heads, _labels(attention)))
  if look.loads:
    most = max(float(load.shares.max()) for load in look.loads)
    panels = [(f'experts, {load.name}', load.shares) for load in look.loads]
    paths.append(_write(folder / f'experts.{kind}', panels, _loads(look.loads[0].groups, most)))
  if panels := maps(look):
    paths.append(_write(folder / f'maps.{kind}', panels))
  return paths


def _file_name(title: str) -> str:
  return re.sub(r'\W+', '_', title).strip('_').lower()


def _words(
  attention: Attention, draw: Callable[[Any, np.ndarray], None], folder: Path, kind: str
) -> list[Path]:
  """Draws where the mean over heads of each layer looks for each word of a text about a picture."""
  paths = []
  for i, layer in enumerate(attention.layers):
    means = layer.mean(0)[:, None]
    panels = list(zip(map(_text, attention.queries), means, strict=True))
    path = (
      folder
      / f'{_file_name(attention.name).replace("cross_attention", "words")}_layer_{i + 1}.{kind}'
    )
    paths.append(_write(path, panels, draw))
  return paths


def _sound(look: Look, attention: Attention, path: Path) -> Path:
  """Draws when each token of a text listens, below the mel bands of the recording."""
  frames, seconds = look.frames, look.seconds
  assert frames is not None and seconds is not None
  rows = 1 + len(attention.layers)
  figure = _figure(7.2, 2.2 * rows)
  top = figure.add_subplot(rows, 1, 1)
  extent = (0.0, seconds, 0.0, float(frames.shape[1]))
  top.imshow(frames.T, origin='lower', aspect='auto', extent=extent, cmap='Greys')
  top.set_ylabel('mel band', fontsize='small')
  for i, layer in enumerate(attention.layers):
    axes, mean = figure.add_subplot(rows, 1, i + 2, sharex=top), layer.mean(0)
    bounds = (0.0, seconds, len(mean) - 0.5, -0.5)
    axes.imshow(mean, aspect='auto', extent=bounds, cmap='Blues', interpolation='nearest')
    axes.set_yticks(range(len(mean)), [*map(_text, attention.queries)])
    axes.set_title(f'layer {i + 1}, mean over heads', fontsize='small')
  axes.set_xlabel('seconds', fontsize='small')
  save_figure(figure, path)
  return path


def _text(label: str) -> str:
  # A dollar sign would start a formula.
  return printable(label).replace('$', r'\$')


def draw_panels(
  panels: Sequence[tuple[str, Float[np.ndarray, 'rows columns']]],
  path: str | Path,
) -> None:
  """Draws maps with titles, four in a row, and writes them to a PNG or SVG file; negative values are orange.

  Raises:
    UserError: matplotlib is not installed, or the file cannot be written.
  """
  _write(Path(path), panels)


def _write(
  path: Path,
  panels: Sequence[tuple[str, np.ndarray]],
  draw: Callable[[Any, np.ndarray], None] | None = None,
) -> Path:
  columns = min(_MAX_COLUMNS, len(panels))
  rows = -(-len(panels) // columns)
  figure = _figure(3.6 * columns, 3.8 * rows)
  for i, (title, values) in enumerate(panels):
    axes = figure.add_subplot(rows, columns, i + 1)
    axes.set_title(textwrap.fill(title, 36), fontsize='small')
    (draw or _map)(axes, values)
  save_figure(figure, path)
  return path


def _figure(width: float, height: float) -> Any:
  """Returns an empty figure, in inches. Raises UserError without matplotlib."""
  figures = imported('matplotlib.figure', 'a picture')
  return figures.Figure(figsize=(width, height), dpi=120, layout='constrained')


def _map(axes: 'Axes', values: np.ndarray) -> None:
  from matplotlib.colors import LinearSegmentedColormap

  signed = float(values.min()) < 0
  colours = LinearSegmentedColormap.from_list(
    't2x', [*(['#b84a00'] if signed else []), '#f6f7f8', '#0072b2']
  )
  most = float(np.abs(values).max()) or 1.0
  image = axes.imshow(
    values,
    cmap=colours,
    vmin=-most if signed else 0,
    vmax=most,
    interpolation='nearest',
    aspect='auto',
  )
  scale = axes.figure.colorbar(image, ax=axes, location='bottom', shrink=0.6, aspect=30)
  scale.ax.tick_params(labelsize='x-small')
  axes.set_box_aspect(
    values.shape[0] / values.shape[1] if max(values.shape) < 2 * min(values.shape) else 1
  )
  axes.tick_params(labelsize='x-small')


def _picture(axes: 'Axes', values: np.ndarray) -> None:
  axes.imshow(values, interpolation='nearest')
  axes.set_axis_off()


def _labels(attention: Attention) -> Callable[[Any, np.ndarray], None]:
  """Returns a function that draws a map with the tokens on both axes."""

  def draw(axes, values):
    _map(axes, values)
    for axis, labels, rotation in (
      (axes.xaxis, attention.keys, 90),
      (axes.yaxis, attention.queries, 0),
    ):
      if len(labels) <= _MAX_LABELS:
        axis.set_ticks(range(len(labels)), [*map(_text, labels)], rotation=rotation)

  return draw


def _loads(groups: Sequence[str], most: float) -> Callable[[Any, np.ndarray], None]:
  """Returns a function that draws the load of the experts of each group, with a legend up to `most`."""

  def draw(axes, values):
    image = axes.imshow(values, cmap='Blues', vmin=0, vmax=most, aspect='auto')
    if len(groups) <= _MAX_LABELS:
      axes.set_yticks(range(len(groups)), [*map(_text, groups)])
    axes.set_xlabel('expert', fontsize='x-small')
    axes.tick_params(labelsize='x-small')
    equal = 1 / values.shape[1]
    legend = axes.figure.colorbar(image, ax=axes, location='bottom')
    legend.set_label(f'share of the choices (equal: {equal:.3g})', fontsize='x-small')
    legend.ax.axvline(equal, color='black')
    legend.ax.tick_params(labelsize='x-small')

  return draw


def _overlay(
  pixels: UInt8[np.ndarray, 'height width channels'], grid: Grid
) -> Callable[[Any, np.ndarray], None]:
  """Returns a function that draws the attention of the first extra token, or the mean over queries, on a picture."""

  def draw(axes, values):
    weights = values[0] if grid.num_extra else values.mean(0)
    weights = weights[grid.num_extra :].reshape(grid.rows, grid.columns)
    extent = (0, grid.columns, grid.rows, 0)
    # Darkened, so that the weights stay visible on white.
    picture = np.broadcast_to(pixels * 0.6 / 255, (*pixels.shape[:2], 3))
    axes.imshow(picture, extent=extent, interpolation='nearest')
    alpha = 0.8 * weights / (weights.max() or 1.0)
    axes.imshow(
      np.full_like(weights, 1.0),
      extent=extent,
      interpolation='nearest',
      cmap='autumn',
      vmin=0,
      vmax=2,
      alpha=alpha,
    )
    axes.set_axis_off()

  return draw
