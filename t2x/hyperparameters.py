"""Hyperparameters that the trials of a sweep vary: float32 scalars in the argument of a step.

A field annotated `float | Hyperparameter` (`TunableRate` and others in `t2x.ranges`) holds a number. Where
trials share a program, it holds a reference to a scalar of the step's argument instead. Both are read
with `scalar`. Zero is always a number: it leaves computation out, so that the program is another one,
and `rate == 0.0` is False for a reference.
"""

import contextlib
import contextvars
import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from t2x.errors import UserError

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
  """A reference to a scalar of the step's argument. It has no value of its own and is never zero.

  Attributes:
    name: the parameter of the config, as 'scope/Name.param'.
  """

  name: str

  def _refuse(self, *_: Any) -> NoReturn:
    raise UserError(
      f'{self.name} varies between trials, and its reference is used as a number: read it with '
      't2x.hyperparameters.scalar inside the step, or annotate the parameter as float'
    )

  if not TYPE_CHECKING:  # Type checkers report these uses themselves.
    __bool__ = __float__ = __int__ = __index__ = __round__ = __abs__ = __neg__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    __jax_array__ = property(
      _refuse
    )  # Looked up by functions of JAX, whose own error names nothing.


Tunable = float | Hyperparameter

_SCALARS: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar(
  'scalars', default=types.MappingProxyType({})
)


@contextlib.contextmanager
def given(scalars: Mapping[str, Any]) -> Iterator[None]:
  """Sets the scalars that references are read from, by name.

  Entered inside the traced function with one of its arguments, so that the values are inputs of what
  is compiled.
  """
  token = _SCALARS.set(scalars)
  try:
    yield
  finally:
    _SCALARS.reset(token)


def scalar(value: Tunable) -> 'float | jax.Array':
  """Returns a float as it is, and the float32 scalar [] that a reference names.

  Call it in the function that is traced for the step, not in a constructor, and outside of functions
  that are jitted on their own: they would keep the scalar of the first trace.

  Raises:
    UserError: the reference is read outside of a step.
  """
  if not isinstance(value, Hyperparameter):
    return value
  scalars = _SCALARS.get()
  if value.name not in scalars:
    raise UserError(f'{value.name} varies between trials and is read outside of a training step')
  return scalars[value.name]
