"""The number of the current train step, for parts whose random choices change during training."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_STEP: contextvars.ContextVar[Any] = contextvars.ContextVar('step', default=None)


@contextlib.contextmanager
def use_step(step: Any) -> Iterator[None]:
  """Sets `Call.step` of the calls with a random key that bodies make inside the context.

  Enter it inside the traced function with one of its arguments, so that the step is an input of the compiled
  program. The train step of t2x enters it.

  Args:
    step: number of train steps taken, int32 [].
  """
  token = _STEP.set(step)
  try:
    yield
  finally:
    _STEP.reset(token)


def current_step() -> Any:
  """Returns the step of the innermost `use_step`; None outside of it."""
  return _STEP.get()
