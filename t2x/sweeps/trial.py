"""One trial: an ordinary training in its run folder, and a note of how it ended."""

import contextlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t2x import config as config_lib
from t2x.errors import EXIT_INTERRUPTED, UserError
from t2x.files import locked
from t2x.run_folder import claimed
from t2x.sweeps.records import Outcome, read_outcome, write_outcome
from t2x.train import Diverged, Program, train

__all__ = ['Busy', 'Programs', 'run_trial']

log = logging.getLogger('t2x')


class Busy(Exception):
  """Another process runs the trial."""


class Programs:
  """What was compiled last, for the trials of one identity, which follow each other."""

  def __init__(self):
    self._identity, self._program = '', None

  def of(self, identity: str, make: Callable[[], Program]) -> Program:
    """The program of an identity; `make` makes it where it is another than the last one's."""
    if self._program is None or identity != self._identity:
      self._program = None  # Let go of the last one's memory first.
      self._identity, self._program = identity, make()
    return self._program


def run_trial(
  folder: Path, load: Callable[..., config_lib.Config], programs: Programs | None = None
) -> Outcome:
  """Trains the config.gin of a run folder, or what is left of it, and notes the outcome.

  What the training says is in log.txt.

  Args:
    folder: OUT/trials/ID, with its config.gin.
    load: reads gin files.
    programs: what earlier trials of this process compiled.

  Raises:
    Busy: another process is at it.
    Interrupted: the process was asked to stop; the trial goes on next time.
  """
  with locked(folder / '.trial', _busy):
    outcome = read_outcome(folder)
    if outcome is None:
      with _told_to(folder / 'log.txt'):
        outcome = _train(folder, load, programs or Programs())
      write_outcome(folder, outcome)
    return outcome


def _busy() -> None:
  raise Busy


def _train(folder: Path, load: Callable[..., config_lib.Config], programs: Programs) -> Outcome:
  began = time.monotonic()
  try:
    config = load([folder / 'config.gin'])
    experiment = config.build()
    identity = folder.name.rpartition('-')[0]
    with claimed(folder, config, load, fresh=False):
      program = programs.of(identity, lambda: Program(experiment))
      metrics = train(experiment, folder, config_lib.render(config), program=program)
    memory = program.memory_bytes()
  except Exception as error:
    if getattr(error, 'exit_code', None) == EXIT_INTERRUPTED:
      raise
    log.error('%s: %s', type(error).__name__, error, exc_info=not isinstance(error, UserError))
    seconds = time.monotonic() - began
    if isinstance(error, Diverged):
      return Outcome(status='diverged', reason=error.reason, seconds=seconds)
    return Outcome(status='failed', reason=_line(error), seconds=seconds)
  timing = _lines(folder / 'timing.jsonl')
  rates = [
    value
    for line in _lines(folder / 'metrics.jsonl')
    if line['split'] == 'train'
    for name, value in line.items()
    if name.endswith('_per_second')
  ]
  return Outcome(
    status='finished',
    metrics=metrics,
    seconds=max((line['seconds'] for line in timing), default=0.0),
    tokens_per_second=statistics.median(rates) if rates else None,
    memory_bytes=memory,
  )


def _line(error: Exception) -> str:
  """The first line of what an error says, with its kind where it is no user's mistake."""
  text = (str(error).splitlines() or [''])[0]
  return text if isinstance(error, UserError) else f'{type(error).__name__}: {text}'


def _lines(path: Path) -> list[dict]:
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def _told_to(path: Path) -> Iterator[None]:
  """What is printed and logged meanwhile goes to the end of a file."""
  handlers = [one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler]
  streams = [one.stream for one in handlers]
  with (
    path.open('a', encoding='utf-8') as file,
    contextlib.redirect_stdout(file),
    contextlib.redirect_stderr(file),
  ):
    for handler in handlers:
      handler.setStream(file)
    try:
      yield
    finally:
      for handler, stream in zip(handlers, streams, strict=True):
        handler.setStream(stream)
