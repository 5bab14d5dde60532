"""Scopes of operations that model FLOPs count in a way of their own (see `t2x.train.logs.flops`).

They are context managers and decorators without other effects.
"""

import re
from typing import Any

import jax

PAIRS = 'query_key_pairs'
TOKEN_SUMS = 'token_sums'
_USED = 'used_rows_'


def pair_products() -> Any:
  """Marks products with a number for each pair of query and key: pairs count that the attention pattern shows.

  They are part of an attention kernel, or computed before it in the same layer.
  """
  return jax.named_scope(PAIRS)


def token_sums() -> Any:
  """Marks weighted sums over tokens without a matrix product, such as the taps of a filter or a recurrence: each
  multiplication of floats counts as a multiply-add."""
  return jax.named_scope(TOKEN_SUMS)


def used_rows(share: float) -> Any:
  """Marks products of which a share of the rows is in use, such as the slots of experts: only that share counts."""
  return jax.named_scope(f'{_USED}{share!r}')


def share_of(scope: str) -> float:
  """Returns the share of the rows that is in use in a scope; 1 outside of `used_rows`."""
  match = re.search(rf'{_USED}([\d.e-]+)', scope)
  return float(match[1]) if match else 1.0
