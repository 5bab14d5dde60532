"""One trial: an ordinary training in its run folder, and a note of how it ended."""

import contextlib
import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t2x import config as config_lib
from t2x.errors import Interrupted, UserError, in_a_line
from t2x.files import locked
from t2x.run_folder import claimed
from t2x.sweeps.records import Outcome, Trial, metric_lines, read_outcome, write_outcome
from t2x.train import Diverged, Program, train
from t2x.train.numbers import Fixed, Number, blamed

__all__ = [
  'Busy',
  'Programs',
  'held',
  'run_trial',
  'told_to',
  'train_alone',
  'train_trial',
]

log = logging.getLogger('t2x')


class Busy(Exception):
  """Another process runs the trial."""


class Programs:
  """What was compiled last, for trials of one program, which follow each other.

  The numbers in which they differ are inputs of it whether or not there are others: so a trial's
  metrics are the same, bit for bit, whoever runs it and after whom. (To the constants that `t2x train`
  compiles they are equal to rounding.)
  """

  def __init__(self):
    self._name, self._program = '', None
    # Names of the programs whose numbers are constants after all.
    self.apart: set[str] = set()

  def of(self, trial: Trial, config: config_lib.Config) -> Program:
    """The program of a trial, made anew where it is another than the last one's.

    Raises:
      Fixed: its numbers cannot be inputs; see `part`.
    """
    apart = trial.program in self.apart
    name, numbers = (trial.identity, {}) if apart else (trial.program, trial.numbers)
    if self._program is None or name != self._name:
      self._program = None  # Let go of the last one's memory first.
      with blamed(numbers):
        self._program = Program(config.build({key: Number(key) for key in numbers}))
      self._name = name
    return self._program.at(numbers)

  def part(self, trial: Trial, error: Fixed) -> None:
    """From now on the numbers of the trial's program are constants."""
    log.warning('%s: compiled apart', error)
    self.apart.add(trial.program)


def run_trial(
  trial: Trial,
  folder: Path,
  load: Callable[..., config_lib.Config],
  programs: Programs | None = None,
) -> Outcome:
  """Trains the config.gin of a trial's run folder, or what is left of it, and notes the outcome.

  What the training says is in log.txt.

  Args:
    trial: which one.
    folder: OUT/trials, with its run folder and config.gin.
    load: reads gin files.
    programs: what earlier trials of this process compiled.

  Raises:
    Busy: another process is at it.
    Interrupted: the process was asked to stop; the trial goes on next time.
  """
  run = folder / trial.folder
  shared = programs or Programs()
  with held(run):
    outcome = read_outcome(run)
    if outcome is None:
      with told_to(run / 'log.txt'):
        outcome = train_alone(trial, run, load, shared)
    return outcome


def train_alone(
  trial: Trial, run: Path, load: Callable[..., config_lib.Config], programs: Programs
) -> Outcome:
  """`train_trial` with the trial's program: with constants where its numbers cannot be inputs."""
  try:
    return train_trial(run, load, lambda config: programs.of(trial, config), passes=(Fixed,))
  except Fixed as error:
    programs.part(trial, error)
  return train_trial(run, load, lambda config: programs.of(trial, config))


def held(run: Path) -> contextlib.AbstractContextManager[None]:
  """Keeps other processes from a trial; raises Busy where one has it."""

  def busy():
    raise Busy

  return locked(run / '.trial', busy)


def train_trial(
  run: Path,
  load: Callable[..., config_lib.Config],
  program_of: Callable[[config_lib.Config], Program],
  passes: tuple[type[Exception], ...] = (),
  together: int = 1,
) -> Outcome:
  """Trains in a run folder that is held, and writes the outcome there.

  `together` is the number of trials that each step is one of.

  Raises:
    Interrupted: the process was asked to stop.
    passes: errors that are the caller's to mend, and no outcome.
  """
  outcome = _trained(run, load, program_of, passes, together)
  write_outcome(run, outcome)
  return outcome


def _trained(
  run: Path,
  load: Callable,
  program_of: Callable,
  passes: tuple[type[Exception], ...],
  together: int,
) -> Outcome:
  began = time.monotonic()
  try:
    config = load([run / 'config.gin'])
    experiment = config.build()
    with claimed(run, config, load, fresh=False):
      text = config_lib.render(config)
      program = program_of(config)
      metrics = train(experiment, run, text, program=program)
    memory = program.memory_bytes()
  except Exception as error:
    if isinstance(error, (Interrupted, *passes)):
      raise
    log.error('%s: %s', type(error).__name__, error, exc_info=not isinstance(error, UserError))
    seconds = (time.monotonic() - began) / together
    if isinstance(error, Diverged):
      ended = Outcome(status='diverged', reason=error.reason)
    else:
      ended = Outcome(status='failed', reason=in_a_line(error))
    return dataclasses.replace(ended, seconds=seconds, together=together)
  timing = metric_lines(run / 'timing.jsonl')
  rates = [
    value
    for line in metric_lines(run / 'metrics.jsonl')
    if line['split'] == 'train'
    for name, value in line.items()
    if name.endswith('_per_second')
  ]
  return Outcome(
    status='finished',
    metrics=metrics,
    seconds=max((line['seconds'] for line in timing), default=0.0) / together,
    tokens_per_second=statistics.median(rates) * together if rates else None,
    memory_bytes=None if memory is None else memory // together,
    together=together,
  )


@contextlib.contextmanager
def told_to(path: Path) -> Iterator[None]:
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
