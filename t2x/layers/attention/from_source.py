"""Sublayers that attend to the source of the call."""

from collections.abc import Callable

from flax import nnx

from t2x.base.errors import UserError
from t2x.layers.building import given
from t2x.layers.interfaces import Sublayer

__all__ = ['FromSource']


def FromSource(d_model: int, *, sublayer: Callable[..., Sublayer], rngs: nnx.Rngs) -> Sublayer:
  """Builds a sublayer whose attention reads the source instead of its own tokens; `Block.cross` is built by it.

  Its constructor gets the keyword reads_source = True if it accepts it; parts around it pass it on (`given`).

  Args:
    d_model: width of the input and output.
    sublayer: builds the sublayer, such as `MultiHeadAttention`.
    rngs: random keys of the initial parameters.

  Raises:
    UserError: the sublayer does not read a source.
  """
  part = given(sublayer, reads_source=True)(d_model, rngs=rngs)
  if 'source' not in part.reads:
    raise UserError(
      f'{type(part).__name__} does not attend to a source: use MultiHeadAttention for cross-attention, or let its '
      'constructor accept the keyword reads_source and pass it to the attention that it builds'
    )
  return part
