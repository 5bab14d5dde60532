"""Who answers the signals that ask a run to end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ['answered_by']


@contextlib.contextmanager
def answered_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
  """SIGTERM and SIGINT go to `handler` meanwhile, and afterwards to whom they went before.

  Only the main thread can say so; elsewhere they go where they went.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield
  finally:
    for number, old in before.items():
      signal.signal(number, old)
