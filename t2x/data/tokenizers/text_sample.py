"""Evenly spaced samples of a large text, for training tokenizers."""

from collections.abc import Iterable, Iterator

# Maximum number of characters in a chunk of training text.
CHUNK = 4096


def sample(texts: Iterable[str], megabytes: float) -> list[str]:
  """Returns at most `megabytes` million characters in chunks of lines, evenly spaced in the texts.

  Reads the texts once and keeps every 2^k-th chunk, with the smallest k that the limit allows.
  """
  limit, stride, chunks, size = megabytes * 1e6, 1, list[str](), 0
  for index, chunk in enumerate(chunk for text in texts for chunk in _chunks(text)):
    if index % stride:
      continue
    chunks.append(chunk)
    size += len(chunk)
    while size > limit and len(chunks) > 1:
      chunks, stride = chunks[::2], 2 * stride
      size = sum(map(len, chunks))
  return chunks


def _chunks(text: str) -> Iterator[str]:
  """Splits a text at line ends into chunks of at most CHUNK characters; long lines are split."""
  start = 0
  while start < len(text):
    stop = min(start + CHUNK, len(text))
    if stop < len(text):
      stop = text.rfind('\n', start, stop) + 1 or stop
    yield text[start:stop]
    start = stop
