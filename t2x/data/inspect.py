"""Prints batches: decoded text with masks and segments, images as characters, and throughput."""

import sys
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from t2x.data.batches import Batch, Batches
from t2x.data.plans import segments_of
from t2x.data.tokenizers.base import Tokenizer

__all__ = ['inspect_batches']

COLUMNS = ('tokens', 'source', 'target')
# Alternated, so that the boundaries of tokens and segments are visible.
COLOURS = (('cyan', 'bright_cyan'), ('green', 'bright_green'), ('yellow', 'bright_yellow'))
SHADES = ' .:-=+*#%@'


def inspect_batches(
  batches: Batches,
  tokenizer: Tokenizer | None = None,
  *,
  start: int = 0,
  num_batches: int = 2,
  num_rows: int = 2,
  seconds: float = 2.0,
  console: Console | None = None,
) -> dict[str, float]:
  """Prints the first rows of some batches and the throughput of the data pipeline.

  Adjacent tokens have different colours, a segment begins with `[number]`, a masked token is shown
  as `{input -> label}`, and padding is counted.

  Args:
    batches: batches to print.
    tokenizer: decodes ids; None: only images, labels and shapes are printed.
    start: first step.
    num_batches: number of batches to print.
    num_rows: number of rows to print per batch.
    seconds: duration of the throughput measurement.
    console: output; None: stdout.

  Returns:
    `batches_per_second`, `examples_per_second` and, with a tokenizer, `tokens_per_second`.
  """
  console = console or Console(file=sys.stdout, soft_wrap=True, highlight=False)
  for step in range(start, start + num_batches):
    batch = batches[step]
    console.print(Text(f'batch {step}: {_shapes(batch)}', style='bold'))
    for row in range(min(num_rows, len(next(iter(batch.values()))))):
      for line in _lines({name: value[row] for name, value in batch.items()}, tokenizer):
        console.print(Text.assemble(f'  {row} ', line))
  speed = _speed(batches, start, seconds)
  rates = ', '.join(f'{value:,.1f} {name.replace("_", " ")}' for name, value in speed.items())
  console.print(
    Text(f'{len(batches.rows):,} rows, {batches.num_batches:,} batches per epoch; {rates}')
  )
  return speed


def _shapes(batch: Batch) -> str:
  return ', '.join(f'{name} {value.dtype}{list(value.shape)}' for name, value in batch.items())


def _lines(row: Batch, tokenizer: Tokenizer | None) -> list[Text]:
  """Returns the lines to print for a row."""
  lines = []
  for column in COLUMNS:
    if tokenizer is not None and column in row and segments_of(column) in row:
      hidden = _masked_labels(row) if column == 'tokens' else {}
      text = _decode(row[column], row[segments_of(column)], tokenizer, hidden)
      lines.append(Text.assemble((f'{column}: ', 'bold'), text))
  if 'image' in row:
    lines.append(Text(f'label {row.get("label")}\n{_picture(row["image"])}'))
  elif 'label' in row:
    lines.append(Text(f'label {row["label"]}'))
  return lines or [Text(_shapes(row))]


def _masked_labels(row: Batch) -> dict[int, int]:
  """Returns position -> label of the masked tokens; empty without masks."""
  if 'masked_positions' not in row:
    return {}
  used = row['weights'] > 0
  positions, labels = row['masked_positions'][used], row['labels'][used]
  return dict(zip(positions.tolist(), labels.tolist(), strict=True))


def _decode(
  ids: np.ndarray, segments: np.ndarray, tokenizer: Tokenizer, hidden: dict[int, int]
) -> Text:
  text, previous = Text(), 0
  pieces = _readable(tokenizer.pieces(ids.tolist()))
  for position, (piece, segment) in enumerate(zip(pieces, segments.tolist(), strict=True)):
    if not segment:
      continue
    if segment != previous:
      text.append(f'[{segment}]', style='bold reverse')
    previous = segment
    if position in hidden:
      label = _readable(tokenizer.pieces([hidden[position]]))[0]
      text.append(f'{{{piece} -> {label}}}', style='bold red')
    else:
      text.append(piece, style=COLOURS[segment % len(COLOURS)][position % 2])
  padding = int(np.count_nonzero(segments == 0))
  if padding:
    text.append(f'[{padding} padding]', style='dim')
  return text


def _readable(pieces: Sequence[str]) -> list[str]:
  """Replaces U+2581 by a space, and line ends, tabs and control characters by visible marks."""
  marks = {ord('\n'): '\u21b5', ord('\t'): '\u21e5', ord('\u2581'): ' '}
  controls = {code: f'\\x{code:02x}' for code in (*range(32), 127)}
  return [piece.translate(controls | marks) for piece in pieces]


def _picture(image: np.ndarray, width: int = 32) -> str:
  """Renders an image [height, width, channels] in shades of grey, two characters per pixel."""
  stride = max(1, -(-image.shape[1] // width))
  grey = image[::stride, ::stride].astype(np.float64).mean(axis=-1)
  low, high = grey.min(), grey.max()
  levels = ((grey - low) / max(high - low, 1e-9) * (len(SHADES) - 1)).round().astype(int)
  return '\n'.join(''.join(2 * SHADES[level] for level in line) for line in levels)


def _speed(batches: Batches, start: int, seconds: float) -> dict[str, float]:
  """Measures batches, examples and tokens per second over at least one batch."""
  begin, count, examples, tokens = time.perf_counter(), 0, 0, 0
  while not count or time.perf_counter() - begin < seconds:
    batch = batches[start + count]
    count += 1
    examples += len(next(iter(batch.values())))
    tokens += sum(
      int(np.count_nonzero(v)) for name, v in batch.items() if name.endswith('segments')
    )
  elapsed = time.perf_counter() - begin
  speed = {'batches_per_second': count / elapsed, 'examples_per_second': examples / elapsed}
  return speed | ({'tokens_per_second': tokens / elapsed} if tokens else {})
