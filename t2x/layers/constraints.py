"""Where activations are split over devices, said by what their dimensions mean.

A layer names the logical axes of an array: `constrain(x, 'batch', 'length', 'embed')`. What that
means on a mesh is the `Layout` under which the step is traced; without one nothing is added to the
program. Constraints instead of annotations on every operation are those of GSPMD
(https://arxiv.org/abs/2105.04663).
"""

import contextlib
import contextvars
from collections.abc import Iterator
from types import EllipsisType
from typing import Protocol, runtime_checkable

from jaxtyping import Array

Axis = str | EllipsisType | None


@runtime_checkable
class Layout(Protocol):
  """What becomes of the logical axes of activations."""

  def constrain(self, x: Array, axes: tuple[Axis, ...]) -> Array:
    """`x`, laid out as `axes` ask."""

  def num_parts(self, axis: str) -> int:
    """Over how many devices an axis is split."""


_LAYOUT: contextvars.ContextVar[Layout | None] = contextvars.ContextVar('layout', default=None)


@contextlib.contextmanager
def laid_out(layout: Layout | None) -> Iterator[None]:
  """What is traced inside follows `layout`; None leaves every array to the compiler."""
  token = _LAYOUT.set(layout)
  try:
    yield
  finally:
    _LAYOUT.reset(token)


def constrain(x: Array, *axes: Axis) -> Array:
  """`x`, whose dimensions are the logical `axes`, laid out as the layout in force says.

  Args:
    x: an activation.
    axes: a name for each dimension, or None for one that stays whole. A leading `...` leaves the
      dimensions before to the compiler.

  Raises:
    UserError: a dimension that does not divide over the devices that it is split over.
  """
  layout = _LAYOUT.get()
  return x if layout is None else layout.constrain(x, axes)


def num_parts(axis: str) -> int:
  """Over how many devices activations are split along a logical axis; 1 without a layout."""
  layout = _LAYOUT.get()
  return 1 if layout is None else layout.num_parts(axis)
