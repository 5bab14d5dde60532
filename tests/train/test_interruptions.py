"""The watchdog warns about a long wait, and ends the process when it hangs."""

import os
import subprocess
import sys
import time

import pytest

from t2x.train.interruptions import MIN_WAITS, Watchdog


def watched(patience, last_wait):
  said, ended = [], []
  with Watchdog(
    patience, factor=3.0, min_seconds=0.1, warn=said.append, end=ended.append, interval=0.01
  ) as dog:
    for step in range(MIN_WAITS + 1):
      with dog.waiting(f'step {step}'):
        time.sleep(0.01)
    with dog.waiting('the batch of step 9'):
      time.sleep(last_wait)
  return said, ended


def test_usual_waits_are_not_logged():
  assert watched(patience=60.0, last_wait=0.02) == ([], [])


def test_a_long_wait_is_logged_once_with_its_reason():
  said, ended = watched(patience=60.0, last_wait=0.5)
  assert len(said) == 1
  assert said[0].startswith('the batch of step 9 has taken')
  assert not ended


def test_an_endless_wait_ends_the_process():
  _, ended = watched(patience=0.2, last_wait=0.6)
  assert ended[0].startswith('the batch of step 9')
  assert 'process ended' in ended[0]


def test_the_process_ends_with_exit_code_1():
  script = """
import time
from t2x.train.interruptions import MIN_WAITS, Watchdog
with Watchdog(0.1, min_seconds=0.05, interval=0.01) as dog:
  for _ in range(MIN_WAITS + 1):
    with dog.waiting('a step'):
      pass
  with dog.waiting('step 7'):
    time.sleep(60)
"""
  command = [sys.executable, '-c', script]
  done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
  assert done.returncode == 1
  assert done.stderr.splitlines()[-1].startswith('t2x: step 7 has taken')


def test_a_stalled_data_worker_and_the_process_are_terminated():
  script = """
import multiprocessing, os, signal
import numpy as np
from t2x.data import prefetch
from t2x.train.interruptions import Watchdog

if __name__ == '__main__':
  with Watchdog(2.0, interval=0.05) as dog:
    # More than a pipe holds: the worker cannot be done before it is stopped.
    batches = prefetch([{'x': np.zeros(1 << 16)}] * 1000, 0, 1000, num_workers=1)
    next(batches)
    worker, = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGSTOP)
    print(worker.pid, flush=True)
    with dog.waiting('the batch of step 1'):
      for batch in batches:
        pass
"""
  command = [sys.executable, '-c', script]
  done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
  assert done.returncode == 1
  assert 't2x: the batch of step 1 has taken' in done.stderr
  with pytest.raises(ProcessLookupError):
    for _ in range(200):
      os.kill(int(done.stdout), 0)
      time.sleep(0.05)
