"""Hyperparameters that are inputs of a step.

Hyperparameters that vary between the trials of a sweep are float32 scalar inputs of a step. A field annotated
`float | Hyperparameter` (`TunableRate` and others in `t2x.base.ranges`) is a number, or a
reference to an input of the step if trials share a compiled program. Read both with `scalar`. Zero is always
a number, because the program skips computation for it; `rate == 0.0` is False for a reference.
"""

import dataclasses
from typing import TYPE_CHECKING, NoReturn

from t2x.base.errors import UserError
from t2x.base.step import step_context

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
  """A reference to a scalar input of the step. It has no value and is never zero.

  Attributes:
    name: the config parameter, as 'scope/Name.param'.
  """

  name: str

  def _refuse(self, *_: object) -> NoReturn:
    raise UserError(
      f'{self.name} varies between trials, but its reference is used as a number: read it with '
      't2x.base.hyperparameters.scalar inside the step, or annotate the parameter as float'
    )

  if not TYPE_CHECKING:  # Type checkers report these uses themselves.
    __bool__ = __float__ = __int__ = __index__ = __round__ = __abs__ = __neg__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    # JAX functions look this up; their own error would not name the parameter.
    __jax_array__ = property(_refuse)


Tunable = float | Hyperparameter


def scalar(value: Tunable) -> 'float | jax.Array':
  """Returns a float unchanged, or the float32 scalar [] of a reference.

  Call it in the function that is traced for the step, not in a constructor and not in a function with its own
  `jax.jit`, which would keep the scalar of its first trace.

  Raises:
    UserError: a reference is read outside of a training step.
  """
  if not isinstance(value, Hyperparameter):
    return value
  scalars = step_context().scalars
  if value.name not in scalars:
    raise UserError(f'{value.name} varies between trials, but is read outside of a training step')
  return scalars[value.name]
