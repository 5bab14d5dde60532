"""Values that a step passes to its parts without an argument."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError


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

  A program may be traced for devices that this machine does not have: `in_step(target='tpu')`. What is compiled inside
  a function with its own `jax.jit` keeps the platform of its first trace.
  """
  own = step_context().target
  if own is None:
    import jax

    return jax.default_backend()
  return own


def plain_operations() -> contextlib.AbstractContextManager[None]:
  """Replaces operations with gradients of their own by plain ones in everything traced in the context, which then has
  forward-mode derivatives too (`jax.jvp`).

  Enter it inside a traced function: a compiled function is not traced again.
  """
  return in_step(plain=True)


def is_plain() -> bool:
  """Returns whether the program is traced with `plain_operations`."""
  return step_context().plain


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
