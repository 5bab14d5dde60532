"""Prepares batches ahead of their use and in order, in a thread or in worker processes."""

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
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, runtime_checkable

from t2x.base.errors import UserError
from t2x.data.batches import Batch
from t2x.process.allocator import set_worker_allocator

__all__ = ['prefetch']


@runtime_checkable
class ByStep(Protocol):
  """Protocol of batches that are indexed by step."""

  def __getitem__(self, step: int, /) -> Batch: ...


def prefetch(
  batches: ByStep,
  start: int,
  stop: int,
  num_workers: int = 0,
  buffer: int = 2,
  then: Callable[[Batch], Any] = lambda batch: batch,
) -> Iterator[Any]:
  """Yields then(batches[start]), ..., then(batches[stop - 1]), prepared ahead of their use.

  Closing the generator stops the thread and the processes.

  Args:
    batches: `Batches`, evaluation batches, or a list; must be picklable if num_workers > 0.
    start: first step; to resume, the next step.
    stop: step after the last.
    num_workers: 0 prepares batches in a thread of this process, N in N processes; the batches are
      the same.
    buffer: number of batches prepared ahead.
    then: function of a batch that runs in a thread of this process, such as a copy to devices.

  Raises:
    RuntimeError: a worker died or failed (with its traceback).
    UserError: a worker raised a UserError.
  """
  in_thread = contextlib.nullcontext(batches[step] for step in range(start, stop))
  source = _from_workers(batches, start, stop, num_workers) if num_workers else in_thread
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
    _drain(ready)
    if thread.ident is not None:
      thread.join()


def _drain(ready: queue.Queue) -> None:
  """Empties the queue, so that a thread blocked in `put` continues and can stop."""
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

  def kill_workers() -> None:
    # Workers ignore signals and may be blocked on a pipe that is no longer read.
    for process, _ in workers:
      process.kill()
      process.join()

  # Handlers run last in, first out: this one runs before multiprocessing joins its processes.
  atexit.register(kill_workers)
  try:
    for worker in range(min(num_workers, max(stop - start, 0))):
      receiver, sender = context.Pipe(duplex=False)
      steps = range(start + worker, stop, num_workers)
      process = context.Process(
        target=_work, args=(batches, steps, sender), name=f't2x-data-{worker}', daemon=True
      )
      process.start()
      sender.close()
      workers.append((process, receiver))
    yield (_receive(*workers[step % len(workers)], step + start) for step in range(stop - start))
  finally:
    kill_workers()
    atexit.unregister(kill_workers)


def _work(batches: ByStep, steps: range, connection: Connection) -> None:
  """Main function of a worker. The main process handles signals to the process group."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  # Batches of images are large: without it, their memory is mapped and faulted in anew for each.
  set_worker_allocator()
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


def _receive(process: BaseProcess, connection: Connection, step: int) -> Batch:
  try:
    batch, user_error, trace = connection.recv()
  except (EOFError, OSError) as error:
    process.join(timeout=5)
    raise RuntimeError(
      f'the data worker {process.name} died at step {step} (exit code {process.exitcode}), perhaps '
      'out of memory: set Trainer.num_workers = 0 to prepare batches in the main process'
    ) from error
  if user_error is not None:
    raise UserError(user_error)
  if trace is not None:
    raise RuntimeError(f'the data worker {process.name} failed at step {step}:\n{trace}')
  return batch
