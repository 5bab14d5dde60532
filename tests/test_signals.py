"""Signals reach what threads train."""

import os
import signal
import threading

from t2x.signals import answered_by, passed_on


def test_threads_hear_of_a_signal_that_came_before_they_began():
  heard = []

  def run():
    with answered_by(lambda number, frame: heard.append(number)):
      pass

  with passed_on():
    os.kill(os.getpid(), signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert heard == [signal.SIGTERM]
  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert len(heard) == 1
