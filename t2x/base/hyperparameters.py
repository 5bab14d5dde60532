"""Values that a step passes to its parts without an argument, and hyperparameters that are inputs of a step.

Hyperparameters that vary between the trials of a sweep are float32 scalar inputs of a step. A field annotated
`float | Hyperparameter` (`TunableRate` and others in `t2x.base.ranges`) is a number, or a
reference to an input of the step if trials share a compiled program. Read both with `scalar`. Zero is always
a number, because the program skips computation for it; `rate == 0.0` is False for a reference.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from t2x.base.errors import UserError

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
  """A reference to a scalar input of the step. It has no value and is never zero.

  Attributes:
    name: the config parameter, as 'scope/Name.param'.
  """

  name: str

  def _refuse(self, *_: Any) -> NoReturn:
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


@dataclasses.dataclass(frozen=True)
class StepContext:
  """Values of the step that is being traced, which its parts read without an argument.

  Attributes:
    scalars: float32 scalars by name of the `Hyperparameter`.
    layout: sharding of the activations, a `t2x.layers.constraints.Layout`; None leaves it to the compiler.
    step: number of train steps taken, int32 []; None outside of a train step.
    plain: whether operations with gradients of their own are replaced by plain ones.
    micro_batches: number of parts into which a train step splits its batch (`Trainer.accumulate`).
    target: platform that the program is traced for, 'cpu', 'gpu' or 'tpu'; None: that of this process. See `target`.
    groups: the part of each row while several parts of one class are applied together, a
      `t2x.layers.grouped.Groups`; None elsewhere.
  """

  scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  layout: Any = None
  step: Any = None
  plain: bool = False
  micro_batches: int = 1
  target: str | None = None
  groups: Any = None


# The only context variable that a step reads.
_DEFAULTS = StepContext()
_CONTEXT: contextvars.ContextVar[StepContext] = contextvars.ContextVar('step', default=_DEFAULTS)


def step_context() -> StepContext:
  """Returns the values of the innermost `in_step`, or the defaults outside of it."""
  return _CONTEXT.get()


@contextlib.contextmanager
def in_step(**fields: Any) -> Iterator[None]:
  """Sets these fields of the `StepContext` inside the context.

  Enter it inside the traced function with its arguments, so that the values are inputs of the compiled program.
  """
  token = _CONTEXT.set(dataclasses.replace(_CONTEXT.get(), **fields))
  try:
    yield
  finally:
    _CONTEXT.reset(token)


def target() -> str:
  """Returns the platform that the traced program is for: 'cpu', 'gpu' or 'tpu'.

  A program may be traced for devices that this machine does not have: `in_step(target='tpu')`. What is compiled inside a
  function with its own `jax.jit` keeps the platform of its first trace.
  """
  own = step_context().target
  if own is None:
    import jax

    return jax.default_backend()
  return own


def check_whole_batch(what: str, instead: str) -> None:
  """Raises UserError in a train step that splits its batch into micro-batches.

  Args:
    what: what depends on all rows of a batch, for the error.
    instead: what to use with micro-batches.
  """
  parts = step_context().micro_batches
  if parts > 1:
    raise UserError(
      f'{what} all tokens of a batch, which Trainer.accumulate = {parts} splits: set it to 1, or {instead}'
    )


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
