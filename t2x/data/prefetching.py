"""Batches prepared ahead, by a thread or by processes, in order."""

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol, runtime_checkable

from t2x.data.batches import Batch
from t2x.errors import UserError


@runtime_checkable
class ByStep(Protocol):
  """Anything that gives the batch of a step."""

  def __getitem__(self, step: int, /) -> Batch: ...


def prefetch(
  batches: ByStep,
  start: int,
  stop: int,
  num_workers: int = 0,
  buffer: int = 2,
  then: Callable[[Batch], Any] = lambda batch: batch,
) -> Iterator[Any]:
  """then(batches[start]), ..., then(batches[stop - 1]), prepared ahead of their use.

  Closing the generator stops thread and processes.

  Args:
    batches: `Batches`, evaluation batches, or a list; picklable where there are workers.
    start: first step: to resume is to start where one stopped.
    stop: the step after the last.
    num_workers: 0 prepares in a thread of this process, N in N processes; same batches.
    buffer: batches kept ready.
    then: what is done with each batch in a thread of this process, such as to put it on devices.

  Raises:
    RuntimeError: a worker died, or failed (with its traceback); UserError stays UserError.
  """
  made = contextlib.nullcontext(batches[step] for step in range(start, stop))
  source = _from_workers(batches, start, stop, num_workers) if num_workers else made
  ready: queue.Queue[Any] = queue.Queue(maxsize=max(buffer, 1))
  closed = threading.Event()

  def fill() -> None:
    try:
      for batch in stream:
        ready.put(then(batch))
        if closed.is_set():
          return
      ready.put(None)
    except BaseException as error:
      ready.put(error)

  thread = threading.Thread(target=fill, name='t2x-prefetch', daemon=True)
  try:
    with source as stream:
      thread.start()
      while (item := ready.get()) is not None:
        if isinstance(item, BaseException):
          raise item
        yield item
  finally:
    closed.set()
    _emptied(ready)
    if thread.ident is not None:
      thread.join()


def _emptied(ready: queue.Queue) -> None:
  """Makes room, so that a thread that waits for it goes on and sees that it is to end."""
  with contextlib.suppress(queue.Empty):
    while True:
      ready.get_nowait()


@contextlib.contextmanager
def _from_workers(
  batches: ByStep, start: int, stop: int, num_workers: int
) -> Iterator[Iterator[Batch]]:
  """Worker w prepares steps start + w, start + w + N, ...; the pipes are read in turn."""
  context = multiprocessing.get_context('spawn')
  workers: list[tuple[Any, Connection]] = []

  def end() -> None:
    # Workers ignore signals, and may be blocked in a pipe that nobody reads.
    for process, _ in workers:
      process.kill()
      process.join()

  # Registered after multiprocessing's own, hence run before it waits for its processes.
  atexit.register(end)
  try:
    for worker in range(min(num_workers, max(stop - start, 0))):
      ours, theirs = context.Pipe(duplex=False)
      steps = range(start + worker, stop, num_workers)
      process = context.Process(
        target=_work, args=(batches, steps, theirs), name=f't2x-data-{worker}', daemon=True
      )
      process.start()
      theirs.close()
      workers.append((process, ours))
    yield (_received(*workers[step % len(workers)], step + start) for step in range(stop - start))
  finally:
    end()
    atexit.unregister(end)


def _work(batches: ByStep, steps: range, connection: Connection) -> None:
  """A worker's whole life. Signals to the group are the main process's to answer."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  for step in steps:
    message: tuple[Batch | None, str | None, str | None]
    try:
      message = (batches[step], None, None)
    except Exception as error:
      user_error = str(error) if isinstance(error, UserError) else None
      message = (None, user_error, traceback.format_exc())
    try:
      connection.send(message)
    except BrokenPipeError:
      return
    if message[0] is None:
      return


def _received(process: Any, connection: Connection, step: int) -> Batch:
  try:
    batch, user_error, trace = connection.recv()
  except (EOFError, OSError) as error:
    process.join(timeout=5)
    raise RuntimeError(
      f'the data worker {process.name} died at step {step} (exit code {process.exitcode}): '
      'out of memory? Trainer.num_workers = 0 prepares batches in the main process'
    ) from error
  if user_error is not None:
    raise UserError(user_error)
  if trace is not None:
    raise RuntimeError(f'the data worker {process.name} failed at step {step}:\n{trace}')
  return batch
