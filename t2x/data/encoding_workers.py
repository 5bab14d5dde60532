"""Worker processes that encode a split, and the wait for the processes of other hosts.

Workers are started with `subprocess`: unlike those of `multiprocessing`, they do not import the main
module, so that scripts need no `if __name__ == '__main__'`, and `t2x train` prepares data without a
second process that imports JAX.
"""

import collections
import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from t2x.base import interpreter
from t2x.base.errors import UserError, error_line
from t2x.base.files import file_lock
from t2x.data.encoded_split import EncodedSplit

log = logging.getLogger('t2x')

# Maximum default number of worker processes; each takes about 0.1 GB.
MAX_WORKERS = 16
# Seconds between two looks at the state of the workers and of the ranges of other hosts.
INTERVAL = 0.2


def num_workers() -> int:
  """Returns the number of worker processes per host: $T2X_WORKERS, or the number of CPUs, at most 16.

  Raises:
    UserError: $T2X_WORKERS is not a positive number.
  """
  value = os.environ.get('T2X_WORKERS')
  if value is None:
    affinity = getattr(os, 'sched_getaffinity', None)  # Not on macOS.
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MAX_WORKERS)
  if not value.isdecimal() or int(value) < 1:
    raise UserError(
      f"T2X_WORKERS = '{value}': set it to the number of processes that tokenise, at least 1"
    )
  return int(value)


def encode_split(split: EncodedSplit, workers: int, update: Callable[[int], object]) -> None:
  """Encodes all ranges of a split, together with the processes of other hosts that call this.

  Args:
    split: the split.
    workers: number of worker processes of this host; 1 encodes in this process.
    update: called repeatedly with the number of encoded examples.

  Raises:
    UserError: an example is invalid.
    RuntimeError: a worker failed (with its traceback).
  """
  split.create()
  # One process per host starts workers; the others find the ranges that these have encoded.
  lock = split.folder / f'{socket.gethostname()}.lock'
  with (
    split.ignore_removal(),
    file_lock(lock, lambda: log.info('waiting for another process of this host to tokenise')),
  ):
    if min(workers, len(split.ranges)) > 1 and not split.is_complete():
      _encode_in_workers(split, min(workers, len(split.ranges)), update)
    # Without workers, encodes all; otherwise the ranges of workers that died.
    while not split.is_complete():
      for _ in split.encode_free_ranges():
        update(split.num_encoded())
      # Other hosts may still be encoding.
      update(split.num_encoded())
      if not split.is_complete():
        time.sleep(INTERVAL)
    update(split.num_encoded())


def _encode_in_workers(split: EncodedSplit, workers: int, update: Callable[[int], object]) -> None:
  try:
    job = pickle.dumps(split)
  except Exception as error:
    _warn_of_unreadable(f'cannot be pickled: {error_line(error)}')
    return
  log.info('tokenising in %d worker processes (to change: T2X_WORKERS)', workers)
  with _started(workers) as processes:
    for process in processes:
      assert process.stdin is not None
      with contextlib.suppress(BrokenPipeError):
        process.stdin.write(len(job).to_bytes(8, 'big') + job)
        process.stdin.flush()
    del job
    running = list(processes)
    while running:
      time.sleep(INTERVAL)
      update(split.num_encoded())
      for process in running:
        if process.poll() is not None:
          _check_end(process)
      running = [process for process in running if process.returncode is None]


@contextlib.contextmanager
def _started(workers: int) -> Iterator[list[subprocess.Popen]]:
  # Each worker uses one thread: RAYON_NUM_THREADS is also read by `num_threads` of the tokenizers.
  environment = interpreter.environment(RAYON_NUM_THREADS='1', TOKENIZERS_PARALLELISM='false')
  code = 'from t2x.data.encoding_workers import work; work()'
  processes: list[subprocess.Popen] = []
  try:
    for _ in range(workers):
      processes.append(
        subprocess.Popen(
          interpreter.command('-c', code),
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          env=environment,
        )
      )
    yield processes
  finally:
    for process in processes:
      process.kill()
      with contextlib.suppress(BrokenPipeError):
        process.communicate()


def _check_end(process: subprocess.Popen) -> None:
  """Raises the error of a worker that has ended; logs a warning if it was killed."""
  assert process.stdout is not None
  try:
    message = json.loads(process.stdout.read())
  except ValueError:
    log.warning(
      'a worker process that tokenises died (exit code %d), perhaps out of memory: its part is '
      'repeated; to use fewer processes, set T2X_WORKERS',
      process.returncode,
    )
    return
  if 'user_error' in message:
    raise UserError(message['user_error'])
  if 'trace' in message:
    raise RuntimeError(f'a worker process that tokenises failed:\n{message["trace"]}')
  if 'unreadable' in message:
    _warn_of_unreadable(message['unreadable'])


def _warn_of_unreadable(reason: str) -> None:
  log.warning(
    'one process tokenises, because the examples or the tokenizer %s: define their classes in a '
    'module that can be imported',
    reason,
  )


def work() -> None:
  """Main function of a worker, which reads the pickled split from stdin and writes its end to stdout."""
  # The main process handles signals to the process group.
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  # Libraries may print to stdout.
  channel = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  json.dump(_encode(), channel)
  channel.flush()
  # Skips the wait for the thread, which holds the lock of stdin.
  os._exit(0)


def _encode() -> dict[str, str]:
  """Reads a split from stdin and encodes its free ranges. Returns the error, if any."""
  stdin = sys.stdin.buffer
  try:
    split: EncodedSplit = pickle.loads(stdin.read(int.from_bytes(stdin.read(8), 'big')))
  except Exception as error:
    return {'unreadable': f'cannot be read by another process ({error_line(error)})'}
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  try:
    collections.deque(split.encode_free_ranges(), maxlen=0)
    return {}
  except UserError as error:
    return {'user_error': str(error)}
  except Exception:
    return {'trace': traceback.format_exc()[-10000:]}


def _exit_with_parent() -> None:
  """Ends this process when the main process ends, which closes the pipe."""
  sys.stdin.buffer.read(1)
  os._exit(1)
