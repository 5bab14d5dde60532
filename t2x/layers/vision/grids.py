"""Checks of the grid that tokens fill."""

from typing import Any

from t2x.base.errors import UserError
from t2x.layers.interfaces import Call
from t2x.layers.patterns.algebra import Full
from t2x.layers.tokens import Tokens

__all__: list[str] = []


def grid_of(part: Any, tokens: Tokens) -> tuple[int, ...]:
  """Returns the sides of the grid that the tokens of each row fill.

  Raises:
    UserError: the tokens have no grid, others precede it, or rows are packed or padded.
  """
  if tokens.grid is None or tokens.num_extra or tokens.segments is not None:
    raise UserError(
      f'{type(part).__name__} needs one grid of tokens per row, but the tokens have the grid {tokens.grid}, '
      f'{tokens.num_extra} before it, and {"no " if tokens.segments is None else ""}segments: use patches of images '
      'without class token (PatchEmbedding.class_token = False)'
    )
  return tokens.grid


def check_full(part: Any, call: Call) -> None:
  """Raises UserError if the pattern hides a token from another."""
  if call.pattern.offsets() != Full().offsets():
    raise UserError(
      f'{type(part).__name__} does not support the pattern {call.pattern}: use Full(), or another mixer'
    )
