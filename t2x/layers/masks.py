"""From a pattern and the tokens of both sides to what is seen."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from t2x.errors import UserError
from t2x.layers.base import Tokens
from t2x.layers.patterns import Full, Pattern, marks_of
from t2x.layers.tiles import Bounds, Tiles


def visible(pattern: Pattern, q: Tokens, k: Tokens) -> Any:
  """Bool [batch or 1, q, k]: the pattern, within one segment, no padding.

  Where only one side has segments, only its padding counts.
  """
  q, k = q.as_queries(), k.as_keys()
  seen = pattern.allows(q, k)
  for tokens in (q, k):
    if tokens.segments is not None:
      seen = seen & (tokens.segments != 0)
  if q.segments is not None and k.segments is not None:
    seen = seen & (q.segments == k.segments)
  return seen


def visible_tiles(pattern: Pattern, q: Bounds, k: Bounds) -> Tiles:
  """Verdicts on the tiles of `visible`, from bounds that broadcast."""
  empty, full = pattern.tiles(q, k)
  if q.high.segments is None and k.high.segments is None:
    return Tiles(empty, full)
  if q.high.segments is None or k.high.segments is None:
    high = k.high.segments if q.high.segments is None else q.high.segments
    apart = high == 0
  else:
    # Of padding only: the maximum is 0 and below every minimum.
    apart = (q.high.segments < k.low.segments) | (k.high.segments < q.low.segments)
  return Tiles(empty | apart, np.bool_(False))


def attention_mask(
  pattern: Pattern, q: Tokens, k: Tokens
) -> Bool[Array, '#batch 1 q_len k_len'] | None:
  """The dense mask: the pattern, within one segment, no padding. None where all see all.

  Raises:
    UserError: as `check_reads`.
  """
  check_reads(pattern, q, k)
  if pattern == Full() and q.segments is None and k.segments is None:
    return None
  return jnp.asarray(visible(pattern, q, k))[:, None]


def check_reads(pattern: Pattern, q: Tokens, k: Tokens) -> None:
  """Raises UserError where a pattern reads token metadata that is absent.

  Keys must have the marks; queries without them are unmarked (tokens that are being generated).
  """
  absent = [f'marks[{name!r}]' for name in marks_of(pattern) if name not in k.marks]
  fields = {'coords': (q.coords, k.coords), 'order': (q.order, k.order)}
  absent += [f for f in fields if f in pattern.reads and any(x is None for x in fields[f])]
  if absent:
    raise UserError(
      f'the pattern {pattern} reads Tokens.{absent[0]}, which this batch does not have: use a task '
      'that provides it, or another pattern'
    )
