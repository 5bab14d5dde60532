"""Who answers the signals that ask a run to end."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from t2x.errors import EXIT_INTERRUPTED

Handler = Callable[[int, Any], None]

# Of threads other than the main one; and what has come to them, for those that begin later.
_threads: list[Handler] = []
_passed: list[int] = []
# All that came to a handler of the main thread, whether or not it could still do something about it.
_received: list[int] = []


def ending_signals() -> list[signal.Signals]:
  """The signals that ask a run to end: SIGTERM, SIGINT, and SIGHUP unless it is ignored (nohup)."""
  numbers = [signal.SIGTERM, signal.SIGINT]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  return numbers


@contextlib.contextmanager
def answered_by(handler: Handler) -> Iterator[None]:
  """Installs `handler` for the signals of `ending_signals`, and restores the old handlers on exit.

  In other threads than the main one they come where that has them `passed_on`, and only there.
  """
  if threading.current_thread() is not threading.main_thread():
    _threads.append(handler)
    for number in tuple(_passed):
      handler(number, None)
    try:
      yield
    finally:
      _threads.remove(handler)
    return

  def answer(number: int, frame: Any) -> None:
    _received.append(number)
    handler(number, frame)

  before = {number: signal.signal(number, answer) for number in ending_signals()}
  try:
    yield
  finally:
    for number, old in before.items():
      signal.signal(number, old)


def asked_to_stop() -> Callable[[], bool]:
  """Returns a function that says whether a signal of `ending_signals` has come since, to any handler.

  A run that is asked in its last step or while it evaluates ends well: what would begin the next
  one looks here.
  """
  before = len(_received)
  return lambda: len(_received) > before


@contextlib.contextmanager
def passed_on() -> Iterator[None]:
  """Passes the signals of `ending_signals` on to the handlers of all other threads."""

  def pass_on(number: int, frame: Any) -> None:
    _passed.append(number)
    for handler in tuple(_threads):
      handler(number, frame)

  with answered_by(pass_on):
    try:
      yield
    finally:
      _passed.clear()


@contextlib.contextmanager
def ended_at_once(end_others: Callable[[str], None]) -> Iterator[None]:
  """Ends this process on the signals of `ending_signals`, with the exit code that asks to run again.

  Inside its loop a run answers them by itself; outside it has nothing to save. Preparing data is
  cut off as by a kill.

  Args:
    end_others: called first, with the message: ends the other processes of a run.
  """
  from t2x.terminal import last_words

  def end(number: int, frame: Any) -> None:
    message = 'interrupted outside the training steps; run the same command to resume'
    end_others(message)
    last_words(f't2x: {message}')
    os._exit(EXIT_INTERRUPTED)

  # The handlers of other threads wait for what is passed on to them; none is needed here.
  in_main = threading.current_thread() is threading.main_thread()
  with answered_by(end) if in_main else contextlib.nullcontext():
    yield
