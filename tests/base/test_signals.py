"""Signals reach what threads train."""

import os
import signal
import threading

import pytest

from t2x.base.signals import forward_signals, handle_signals, stop_flag


@pytest.fixture
def hangup():
  """`hangup(action)` sets what SIGHUP does, for the time of a test."""
  before = signal.getsignal(signal.SIGHUP)
  yield lambda action: signal.signal(signal.SIGHUP, action)
  signal.signal(signal.SIGHUP, before)


def test_a_hangup_is_answered_as_sigterm_is(hangup):
  hangup(signal.SIG_DFL)
  heard, stopped = [], stop_flag()
  with handle_signals(lambda number, frame: heard.append(number)):
    signal.raise_signal(signal.SIGHUP)
  assert heard == [signal.SIGHUP]
  assert stopped()
  assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_a_hangup_that_nohup_ignores_stays_ignored(hangup):
  hangup(signal.SIG_IGN)
  heard = []
  handler = lambda number, frame: heard.append(number)  # noqa: E731
  with handle_signals(handler), handle_signals(handler):
    signal.raise_signal(signal.SIGHUP)
  assert heard == []
  assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_threads_hear_of_a_signal_that_came_before_they_began():
  heard = []

  def run():
    with handle_signals(lambda number, frame: heard.append(number)):
      pass

  with forward_signals():
    os.kill(os.getpid(), signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert heard == [signal.SIGTERM]
  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert len(heard) == 1
