"""A small part of much text, for tokenizers to be trained on."""

from collections.abc import Iterable, Iterator

# Training text comes in pieces of at most this many characters.
CHUNK = 4096


def sample(texts: Iterable[str], megabytes: float) -> list[str]:
  """At most so many megabytes (of characters), spread evenly over the texts, in chunks of lines.

  Reads the texts once and keeps every 2^k-th chunk, k as small as the limit allows.
  """
  limit, stride, kept, size = megabytes * 1e6, 1, list[str](), 0
  for index, chunk in enumerate(chunk for text in texts for chunk in _chunks(text)):
    if index % stride:
      continue
    kept.append(chunk)
    size += len(chunk)
    while size > limit and len(kept) > 1:
      kept, stride = kept[::2], 2 * stride
      size = sum(map(len, kept))
  return kept


def _chunks(text: str) -> Iterator[str]:
  """The text cut at line ends into chunks of at most CHUNK characters; longer lines are cut."""
  start = 0
  while start < len(text):
    stop = min(start + CHUNK, len(text))
    if stop < len(text):
      stop = text.rfind('\n', start, stop) + 1 or stop
    yield text[start:stop]
    start = stop
