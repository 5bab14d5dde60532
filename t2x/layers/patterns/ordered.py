"""Patterns of permutation language models (XLNet: Yang et al. 2019, https://arxiv.org/abs/1906.08237, section 2.2)."""

import dataclasses
from typing import Any

from t2x.base.errors import UserError
from t2x.base.ranges import Text
from t2x.layers.patterns.algebra import Full, Pattern, is_marked
from t2x.layers.patterns.tiles import Bounds, Tiles
from t2x.layers.tokens import Tokens

__all__ = ['Hidden', 'Ordered']


@dataclasses.dataclass(frozen=True)
class Ordered(Pattern):
  """Every query sees the keys that are not after it in `Tokens.order`, tokens with the same number each other."""

  reads = frozenset({'order'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return k.order <= q.order


def check_row_order(what: str, pattern: Pattern) -> None:
  """Raises UserError if a pattern orders tokens otherwise than by their place in the row.

  Args:
    what: what follows the order of the row, for the error.
    pattern: the pattern of the tokens.
  """
  if 'order' in pattern.reads:
    raise UserError(
      f'{what} the order of the row, so that tokens would depend on others that the pattern {pattern} hides: leave it '
      'out, or use another pattern'
    )


@dataclasses.dataclass(frozen=True)
class Hidden(Pattern):
  """No query sees the keys with the mark `name`; every query sees all others."""

  name: Text

  @property
  def reads(self) -> frozenset[str]:
    return frozenset({f'marks.{self.name}'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return Full().allows(q, k) & ~is_marked(k, self.name)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    return Tiles(is_marked(k.low, self.name), ~is_marked(k.high, self.name))
