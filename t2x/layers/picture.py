"""The interaction matrix of a pattern as a PNG: query rows, key columns, and what each tile needs.

Written with zlib alone; letters are a font of three by five dots.
"""

import pathlib
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import UInt8

from t2x.errors import UserError
from t2x.layers.base import RowLayout, Tokens
from t2x.layers.patterns import Pattern, marks_of
from t2x.layers.tiles import FULL, PARTIAL, SKIP, Bounds

__all__ = ['draw', 'example_marks', 'paint']

# Five rows of three dots for each character, a row an octal digit.
_LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789()&|~=,-.:'
_DOTS = (
  '257556565634443655567464774644345535575572227111525565544447577556555525552656442556365655'
  '342167222255557555525577555255552227124775557262276124761216557117461634757712447575775716'
  '12221422242425322222003600707000024007000000202020'
)
_INK, _PAPER, _LINE = (40, 44, 52), (255, 255, 255), (240, 150, 60)
# Seen and unseen, by what the schedule says of the tile.
_SEEN = {FULL: (24, 90, 157), PARTIAL: (84, 160, 214)}
_UNSEEN = {PARTIAL: (222, 226, 232), SKIP: (247, 248, 250)}
_LEGEND = (
  ('SEEN, TILE IS FULL', _SEEN[FULL]),
  ('SEEN, TILE IS PARTLY MASKED', _SEEN[PARTIAL]),
  ('NOT SEEN', _UNSEEN[PARTIAL]),
  ('NOT SEEN, TILE IS SKIPPED', _UNSEEN[SKIP]),
  ('EDGE OF A TILE', _LINE),
)
_ROW = 16
_MARGIN = 48


def draw(
  pattern: Pattern,
  path: str | pathlib.Path,
  *,
  length: int = 64,
  k_length: int | None = None,
  block: int = 16,
  marks: Mapping[str, Sequence[int]] | None = None,
) -> None:
  """Writes the picture of a pattern to a PNG file.

  Args:
    length: number of queries.
    k_length: number of keys; None: as many.
    block: size of a tile of the block schedule, in positions.
    marks: the positions that have each mark; None: an example of each mark that the pattern reads.
  """
  image = paint(pattern, length, k_length or length, block, marks)
  try:
    pathlib.Path(path).write_bytes(_png(image))
  except OSError as e:
    raise UserError(f'{path}: the picture cannot be written: {e.strerror}') from e


def paint(
  pattern: Pattern,
  q_len: int,
  k_len: int,
  block: int,
  marks: Mapping[str, Sequence[int]] | None = None,
) -> UInt8[np.ndarray, 'height width 3']:
  """The picture as an array of colours."""
  if min(q_len, k_len, block) < 1 or max(q_len, k_len) > 2048:
    raise UserError('a picture has 1 to 2048 queries and keys, and tiles of at least 1')
  matrix = _matrix(
    pattern, q_len, k_len, block, example_marks(pattern, q_len) if marks is None else marks
  )
  title = _words(repr(pattern), _INK)
  height, width = matrix.shape[:2]
  top = _MARGIN + _ROW
  texts = [_words(text, _INK) for text, _ in _LEGEND]
  wide = _MARGIN + max(width, title.shape[1], *(_ROW + text.shape[1] for text in texts)) + _ROW
  image = np.full((top + height + _ROW * (len(_LEGEND) + 2), wide, 3), _PAPER, np.uint8)
  _paste(image, title, 6, _MARGIN)
  _paste(image, _words('KEY', _INK), 26, _MARGIN)
  _paste(image, _words('QUERY', _INK), 26, 4)
  for axis, length, extent in ((0, q_len, height), (1, k_len, width)):
    for place in _ticks(length):
      text, at = _words(str(place), _INK), place * extent // length
      if axis == 0:
        _paste(image, text, top + at, _MARGIN - 6 - text.shape[1])
      else:
        _paste(image, text, top - 16, _MARGIN + at)
  _paste(image, matrix, top, _MARGIN)
  for n, ((_, colour), text) in enumerate(zip(_LEGEND, texts, strict=True)):
    row = top + height + _ROW * (n + 1)
    image[row : row + 10, _MARGIN : _MARGIN + 10] = _INK
    image[row + 1 : row + 9, _MARGIN + 1 : _MARGIN + 9] = colour
    _paste(image, text, row, _MARGIN + _ROW)
  return image


def example_marks(pattern: Pattern, length: int) -> dict[str, Sequence[int]]:
  """Positions for each mark that a pattern reads: the first quarter for a prefix, else a few tokens."""
  few = (0, length // 3, length // 3 + 1)
  return {name: range(length // 4) if name == 'prefix' else few for name in marks_of(pattern)}


def _matrix(pattern, q_len, k_len, block, marks):
  def row(length):
    positions = np.arange(length)[None]
    marked = {name: np.isin(positions, list(places)) for name, places in marks.items()}
    return Tokens(positions, marks=marked, layout=RowLayout.CONTIGUOUS)

  q, k = row(q_len), row(k_len)
  seen = pattern.mask(q, k)
  bounds = [Bounds.of(tokens, block, RowLayout.CONTIGUOUS) for tokens in (q, k)]
  tiles = pattern.tiles(bounds[0].as_queries(), bounds[1].as_keys())
  schedule = tiles.codes(1, -(-q_len // block), -(-k_len // block))[0]
  tile = schedule.repeat(block, 0).repeat(block, 1)[:q_len, :k_len]
  cells = np.zeros((q_len, k_len, 3), np.uint8)
  for verdict in (SKIP, PARTIAL, FULL):
    if verdict in _SEEN:
      cells[seen & (tile == verdict)] = _SEEN[verdict]
    if verdict in _UNSEEN:
      cells[~seen & (tile == verdict)] = _UNSEEN[verdict]
  zoom = max(1, 512 // max(q_len, k_len))
  cells = cells.repeat(zoom, 0).repeat(zoom, 1)
  if zoom >= 6:
    cells[::zoom] = cells[:, ::zoom] = _PAPER
  edges = np.full((q_len * zoom + 1, k_len * zoom + 1, 3), _LINE, np.uint8)
  edges[:-1, :-1] = cells
  edges[:: block * zoom] = edges[:, :: block * zoom] = _LINE
  return edges


def _ticks(length: int) -> range:
  step = 1
  while length > 8 * step:
    step *= 2
  return range(0, length, step)


def _words(text: str, colour: tuple[int, int, int]) -> np.ndarray:
  """The text as an image ten dots high."""
  dots = np.zeros((5, 4 * len(text)), bool)
  for n, letter in enumerate(text.upper()):
    at = _LETTERS.find(letter)
    for row, digit in enumerate(_DOTS[5 * at : 5 * at + 5] if at >= 0 else ''):
      dots[row, 4 * n : 4 * n + 3] = [int(bit) for bit in f'{int(digit, 8):03b}']
  dots = dots.repeat(2, 0).repeat(2, 1)
  return np.where(dots[..., None], np.array(colour), np.array(_PAPER)).astype(np.uint8)


def _paste(image, part, row, column):
  image[row : row + part.shape[0], column : column + part.shape[1]] = part


def _png(image: np.ndarray) -> bytes:
  """An 8-bit RGB image as a PNG file (PNG specification, W3C 2003)."""

  def chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack('>I', zlib.crc32(kind + data))
    return struct.pack('>I', len(data)) + kind + data + check

  height, width, _ = image.shape
  # Each row is led by the number of its filter: 0, none.
  rows = np.pad(image.reshape(height, -1), ((0, 0), (1, 0))).tobytes()
  header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
  return (
    b'\x89PNG\r\n\x1a\n'
    + chunk(b'IHDR', header)
    + chunk(b'IDAT', zlib.compress(rows, 9))
    + chunk(b'IEND', b'')
  )
