"""Attention masks, from a pattern and the metadata of queries and keys."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from t2x.base.errors import UserError
from t2x.layers.patterns.algebra import Full, Pattern, mark_names
from t2x.layers.patterns.tiles import Bounds, Tiles
from t2x.layers.tokens import Tokens

__all__ = ['attention_mask']


def visible(pattern: Pattern, q: Tokens, k: Tokens) -> Any:
  """Returns whether each query sees each key, bool [#batch, q_len, k_len].

  A query sees the keys that the pattern allows, in its own segment, without padding. If only one side has
  segments, only its padding is masked.
  """
  q, k = q.as_queries(), k.as_keys()
  mask = pattern.allows(q, k)
  for tokens in (q, k):
    if tokens.segments is not None:
      mask = mask & (tokens.segments != 0)
  if q.segments is not None and k.segments is not None:
    mask = mask & (q.segments == k.segments)
  return mask


def visible_tiles(pattern: Pattern, q: Bounds, k: Bounds) -> Tiles:
  """Classifies the tiles of the mask returned by `visible`, from bounds that broadcast."""
  empty, full = pattern.tiles(q, k)
  if q.high.segments is None and k.high.segments is None:
    return Tiles(empty, full)
  if q.high.segments is None or k.high.segments is None:
    high = k.high.segments if q.high.segments is None else q.high.segments
    disjoint = high == 0
  else:
    # The maximum of a block of padding is 0, below every minimum.
    disjoint = (q.high.segments < k.low.segments) | (k.high.segments < q.low.segments)
  return Tiles(empty | disjoint, np.bool_(False))


def attention_mask(
  pattern: Pattern, q: Tokens, k: Tokens
) -> Bool[Array, '#batch 1 q_len k_len'] | None:
  """Returns the dense mask of `visible` with a dimension for heads; None if every query sees every key.

  Raises:
    UserError: the pattern reads token metadata that is absent.
  """
  check_reads(pattern, q, k)
  if pattern == Full() and q.segments is None and k.segments is None:
    return None
  return jnp.asarray(visible(pattern, q, k))[:, None]


def check_reads(pattern: Pattern, q: Tokens, k: Tokens) -> None:
  """Raises UserError if the pattern reads token metadata that is absent.

  Marks are required of keys only: queries without them, such as generated tokens, are unmarked.
  """
  absent = [f'marks[{name!r}]' for name in mark_names(pattern) if name not in k.marks]
  fields = {'coords': (q.coords, k.coords), 'order': (q.order, k.order)}
  absent += [f for f in fields if f in pattern.reads and any(x is None for x in fields[f])]
  if absent:
    raise UserError(
      f'the pattern {pattern} reads Tokens.{absent[0]}, which this batch does not have: use a task '
      'that provides it or another pattern'
    )
