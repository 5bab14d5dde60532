"""Who answers the signals that ask a run to end."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ['answered_by']


@contextlib.contextmanager
def answered_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
  """SIGTERM and SIGINT go to `handler` meanwhile, and afterwards to whom they went before."""
  before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield
  finally:
    for number, old in before.items():
      signal.signal(number, old)
