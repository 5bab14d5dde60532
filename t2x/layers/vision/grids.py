"""Checks of the grid that tokens fill, and resizing of a grid."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.interfaces import Call
from t2x.layers.patterns.algebra import Full
from t2x.layers.tokens import Tokens

__all__: list[str] = []


def grid_of(part: nnx.Module, tokens: Tokens, *, extra: bool = False) -> tuple[int, ...]:
  """Returns the sides of the grid that the tokens of each row fill.

  Args:
    part: the part, for the message.
    tokens: the tokens.
    extra: whether tokens may be before the grid.

  Raises:
    UserError: the tokens have no grid, others precede it, or rows are packed or padded.
  """
  is_preceded = tokens.num_extra and not extra
  if tokens.grid is None or is_preceded or tokens.segments is not None:
    advice = '' if extra else ' without class token (PatchEmbedding.class_token = False)'
    raise UserError(
      f'{type(part).__name__} needs one grid of tokens per row, but the tokens have the grid {tokens.grid}, '
      f'{tokens.num_extra} before it, and {"no " if tokens.segments is None else ""}segments: use patches of images'
      f'{advice}'
    )
  return tokens.grid


def filled_grid(part: nnx.Module, tokens: Tokens) -> tuple[int, int]:
  """Returns the rows and columns of the grid that the tokens of each row fill; raises UserError as `grid_of` does, or
  if it has other dimensions."""
  sides = grid_of(part, tokens)
  if len(sides) != 2:
    raise UserError(
      f'{type(part).__name__} needs rows and columns, but the tokens have the grid {sides}'
    )
  return sides[0], sides[1]


def resized(
  x: Float[Array, 'batch _ _ features'], sides: tuple[int, int]
) -> Float[Array, 'batch rows columns features']:
  """Interpolates a grid bilinearly between the centres of its elements; beyond them, the nearest element counts."""
  shape = len(x), *sides, x.shape[-1]
  return x if x.shape == shape else jax.image.resize(x, shape, 'linear', antialias=False)


def check_full(part: nnx.Module, call: Call) -> None:
  """Raises UserError if the pattern hides a token from another."""
  if call.pattern.offsets() != Full().offsets():
    raise UserError(
      f'{type(part).__name__} does not support the pattern {call.pattern}: use Full(), or another mixer'
    )
