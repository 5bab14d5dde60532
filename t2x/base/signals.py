"""Handlers of the signals that request termination: SIGTERM, SIGINT and SIGHUP."""

import contextlib
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from t2x.base.errors import EXIT_INTERRUPTED

# Message of a process that a signal ended outside of the training steps.
INTERRUPTED = 'interrupted outside the training steps; run the same command to resume'

Handler = Callable[[int, Any], None]

# Handlers of threads other than the main thread, and the signals forwarded to them, for threads that start
# later.
_threads: list[Handler] = []
_forwarded: list[int] = []
# All signals that the handler of the main thread received, even those too late to have an effect.
_received: list[int] = []


def termination_signals() -> list[signal.Signals]:
  """Returns the signals that request termination: SIGTERM, SIGINT, and SIGHUP unless ignored (nohup)."""
  numbers = [signal.SIGTERM, signal.SIGINT]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  return numbers


@contextlib.contextmanager
def handle_signals(handler: Handler) -> Iterator[None]:
  """Installs a handler for `termination_signals` inside the context.

  In a thread other than the main thread, the handler only gets signals that the main thread forwards with
  `forward_signals`.
  """
  if threading.current_thread() is not threading.main_thread():
    _threads.append(handler)
    for number in tuple(_forwarded):
      handler(number, None)
    try:
      yield
    finally:
      _threads.remove(handler)
    return

  def answer(number: int, frame: types.FrameType | None) -> None:
    _received.append(number)
    handler(number, frame)

  before = {number: signal.signal(number, answer) for number in termination_signals()}
  try:
    yield
  finally:
    for number, old in before.items():
      signal.signal(number, old)


def stop_flag() -> Callable[[], bool]:
  """Returns a function that returns whether any handler received a signal since this call.

  A run that is interrupted in its last step or in evaluation ends normally. The caller checks this function
  before it starts the next run.
  """
  before = len(_received)
  return lambda: len(_received) > before


@contextlib.contextmanager
def forward_signals() -> Iterator[None]:
  """Forwards `termination_signals` to the handlers of all other threads inside the context."""

  def forward(number: int, frame: types.FrameType | None) -> None:
    _forwarded.append(number)
    for handler in tuple(_threads):
      handler(number, frame)

  with handle_signals(forward):
    try:
      yield
    finally:
      _forwarded.clear()


@contextlib.contextmanager
def exit_on_signals(end_others: Callable[[str], None]) -> Iterator[None]:
  """Exits on `termination_signals` with EXIT_INTERRUPTED, without saving.

  The training loop installs its own handler; outside the loop there is nothing to save.

  Args:
    end_others: called first with the message, to end the other processes of a run.
  """
  from t2x.base.terminal import print_final_line

  def end(number: int, frame: types.FrameType | None) -> None:
    end_others(INTERRUPTED)
    print_final_line(f't2x: {INTERRUPTED}')
    os._exit(EXIT_INTERRUPTED)

  # Only the main thread can install handlers.
  in_main = threading.current_thread() is threading.main_thread()
  with handle_signals(end) if in_main else contextlib.nullcontext():
    yield
