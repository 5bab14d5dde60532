"""Draws the masks of attention patterns as PNG files, with the class of each tile in the block schedule.

Requires the extra `report`.
"""

import pathlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from flax import nnx
from jaxtyping import Int

from t2x.base.drawing import save_figure
from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.layers.patterns.algebra import Pattern, mark_names
from t2x.layers.patterns.tiles import FULL, PARTIAL, SKIP, Bounds
from t2x.layers.tokens import RowLayout, Tokens
from t2x.models import Decoder, Encoder
from t2x.train import Experiment

# Whether the key is visible, class of the tile in the schedule, label, colour.
KINDS = (
  (True, FULL, 'visible, full tile', '#185a9d'),
  (True, PARTIAL, 'visible, partial tile', '#54a0d6'),
  (False, PARTIAL, 'masked', '#dee2e8'),
  (False, SKIP, 'masked, skipped tile', '#f7f8fa'),
)
EDGE = '#f0963c'


def draw_patterns(
  experiment: Experiment, path: pathlib.Path, length: int
) -> Iterator[tuple[pathlib.Path, Pattern]]:
  """Draws each distinct attention pattern of the model to a file: `path`, `path-2`, ...

  Args:
    experiment: needs a model.
    path: the first image file.
    length: number of queries and keys.

  Yields:
    The file and the pattern.
  """
  model = experiment.shapes()
  patterns: list[Pattern] = []
  for _, body in nnx.iter_modules(model):
    if isinstance(body, (Encoder, Decoder)):
      patterns += [pattern for pattern in dict.fromkeys(body.patterns) if pattern not in patterns]
  for number, pattern in enumerate(patterns, 1):
    name = path if number == 1 else path.with_stem(f'{path.stem}-{number}')
    draw(pattern, name, length=length)
    yield name, pattern


def draw(
  pattern: Pattern,
  path: str | pathlib.Path,
  *,
  length: int = 64,
  k_length: int | None = None,
  block: int = 16,
  marks: Mapping[str, Sequence[int]] | None = None,
) -> None:
  """Draws the mask of a pattern, with queries as rows and keys as columns, and writes it to a PNG file.

  Args:
    pattern: the pattern.
    path: path of the PNG file.
    length: number of queries.
    k_length: number of keys; None: `length`.
    block: side of a tile of the block schedule, in positions.
    marks: positions that have each mark; None: example positions for each mark that the pattern reads.

  Raises:
    UserError: a size is out of range, matplotlib is not installed, or the file cannot be written.
  """
  imported('matplotlib', 'a picture of patterns')
  from matplotlib.colors import to_rgb
  from matplotlib.figure import Figure
  from matplotlib.patches import Patch

  k_length = k_length or length
  kinds = cells(pattern, length, k_length, block, marks)
  # At least one pixel per cell.
  figure = Figure(figsize=(6.4, 7.2), dpi=max(120, max(kinds.shape) // 4), layout='constrained')
  axes = figure.add_subplot(xlabel='key position', ylabel='query position')
  axes.set_title(textwrap.fill(repr(pattern), 60), fontsize='medium')
  colours = np.array([*(to_rgb(colour) for *_, colour in KINDS), (0, 0, 0)])
  axes.imshow(colours[kinds], interpolation='nearest')
  # Edges of tiles are at halves, so major ticks are integers.
  axes.locator_params(integer=True)
  axes.set_xticks(np.arange(0, k_length + 1, block) - 0.5, minor=True)
  axes.set_yticks(np.arange(0, length + 1, block) - 0.5, minor=True)
  axes.grid(which='minor', color=EDGE, linewidth=0.8)
  axes.tick_params(which='minor', length=0)
  patches = [Patch(facecolor=c, edgecolor='black', label=label) for *_, label, c in KINDS]
  patches.append(Patch(facecolor=EDGE, label='edge of a tile'))
  figure.legend(handles=patches, loc='outside lower center', ncols=2)
  save_figure(figure, pathlib.Path(path))


def cells(
  pattern: Pattern,
  q_len: int,
  k_len: int,
  block: int,
  marks: Mapping[str, Sequence[int]] | None = None,
) -> Int[np.ndarray, 'queries keys']:
  """Returns the index into `KINDS` for each query and key; -1 if mask and schedule disagree."""
  if min(q_len, k_len, block) < 1 or max(q_len, k_len) > 2048:
    raise UserError(
      f'a picture of a pattern must have 1 to 2048 queries and keys and tiles of at least 1, not {q_len} '
      f'queries, {k_len} keys and tiles of {block}'
    )
  marks = example_marks(pattern, q_len) if marks is None else marks

  def row(length):
    positions = np.arange(length)[None]
    masks = {name: np.isin(positions, list(marked)) for name, marked in marks.items()}
    return Tokens(positions, marks=masks, layout=RowLayout.CONTIGUOUS)

  q, k = row(q_len), row(k_len)
  mask = pattern.mask(q, k)
  bounds = [Bounds.of(tokens, block, RowLayout.CONTIGUOUS) for tokens in (q, k)]
  tiles = pattern.tiles(bounds[0].as_queries(), bounds[1].as_keys())
  schedule = tiles.codes(1, -(-q_len // block), -(-k_len // block))[0]
  tile = schedule.repeat(block, 0).repeat(block, 1)[:q_len, :k_len]
  return np.select(
    [(mask == is_visible) & (tile == code) for is_visible, code, *_ in KINDS],
    range(len(KINDS)),
    default=-1,
  )


def example_marks(pattern: Pattern, length: int) -> dict[str, Sequence[int]]:
  """Returns example positions for each mark that a pattern reads: a prefix of length / 4, else three tokens."""
  few = (0, length // 3, length // 3 + 1)
  return {name: range(length // 4) if name == 'prefix' else few for name in mark_names(pattern)}
