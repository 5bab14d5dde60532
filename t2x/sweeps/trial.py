"""One trial: an ordinary training in its run folder, and a note of how it ended."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t2x import config as config_lib
from t2x.api import read_config
from t2x.errors import Interrupted, UserError, in_a_line, printable
from t2x.files import locked
from t2x.run_folder import claimed
from t2x.sweeps.json_files import is_number, metric_lines
from t2x.sweeps.plan import SEED, identity_of
from t2x.sweeps.provenance import modules, origin
from t2x.sweeps.records import Outcome, Trial, usable_outcome, write_outcome
from t2x.sweeps.timing import Compilation, conditions, median_rate, step_seconds
from t2x.train import Diverged, TrainProgram, train

log = logging.getLogger('t2x')


class Busy(Exception):
  """Another process runs the trial."""


class Programs:
  """What was compiled last, for trials of one program, which follow each other.

  The hyperparameters in which they differ are inputs of it whether or not there are others: so a
  trial's metrics are the same, bit for bit, whoever runs it and after whom. (To the constants that
  `t2x train` compiles they are equal to rounding.)
  """

  def __init__(self):
    self._name, self._program = '', None

  def of(self, trial: Trial, config: config_lib.Config) -> TrainProgram:
    """The program of a trial, made anew where it is another than the last one's."""
    if self._program is None or trial.program != self._name:
      self._program = None  # Let go of the last one's memory first.
      experiment = config.build(trial.numbers)
      # Its runs fit the same tokenizer, and keep it in their folders.
      tokenizer = experiment.task.fit_tokenizer()
      self._program = TrainProgram(experiment.bound(tokenizer), trial.numbers)
      self._name = trial.program
    return self._program.at(trial.numbers)


def run_trial(
  trial: Trial,
  folder: Path,
  programs: Programs | None = None,
) -> Outcome:
  """Trains the config.gin of a trial's run folder, or what is left of it, and notes the outcome.

  What the training says is in log.txt.

  Args:
    trial: which one.
    folder: OUT/trials, with its run folder and config.gin.
    programs: what earlier trials of this process compiled.

  Raises:
    Busy: another process is at it.
    Interrupted: the process was asked to stop; the trial goes on next time.
  """
  run = folder / trial.folder
  shared = programs or Programs()
  with held(run):
    outcome = usable_outcome(run)
    if outcome is None:
      with told_to(run / 'log.txt'):
        outcome = train_trial(trial, run, functools.partial(shared.of, trial))
    return outcome


@contextlib.contextmanager
def held(run: Path) -> Iterator[None]:
  """Keeps other processes from a trial; raises Busy where one has it."""

  def busy():
    raise Busy

  with locked(run / '.trial', busy):
    # Of a process that was killed while it wrote. (A planning one may be writing config.gin.)
    for path in run.glob('*.json*.tmp'):
      path.unlink(missing_ok=True)
    yield


def train_trial(
  trial: Trial,
  run: Path,
  program_of: Callable[[config_lib.Config], TrainProgram],
  passes: tuple[type[Exception], ...] = (),
  together: int = 1,
) -> Outcome:
  """Trains in a run folder that is held, and writes the outcome there.

  `together` is the number of trials that each step is one of.

  Raises:
    Interrupted: the process was asked to stop.
    passes: errors that are the caller's to mend, and no outcome.
  """
  with conditions() as found:
    outcome = _trained(trial, run, program_of, passes, together)
  outcome = dataclasses.replace(outcome, together=together, conditions=found[0])
  write_outcome(run, outcome)
  return outcome


def _trained(
  trial: Trial,
  run: Path,
  program_of: Callable,
  passes: tuple[type[Exception], ...],
  together: int,
) -> Outcome:
  began = time.monotonic()
  # Now: the source code may have changed when the trial ends.
  made_by = origin()
  try:
    with Compilation() as compilation:
      config = config_of(trial, run)
      made_by = made_by | modules(config)
      with claimed(run, config, fresh=False):
        program = program_of(config)
        metrics = train(config.build(), run, config_lib.render(config), program=program)
    memory = program.memory_bytes()
  except Exception as error:
    if isinstance(error, (Interrupted, *passes)):
      raise
    log.error('%s: %s', type(error).__name__, error, exc_info=not isinstance(error, UserError))
    seconds = (time.monotonic() - began) / together
    if isinstance(error, Diverged):
      reason = printable(error.reason)
      return Outcome(status='diverged', reason=reason, seconds=seconds, made_by=made_by)
    reason = printable(in_a_line(error))
    return Outcome(status='failed', reason=reason, seconds=seconds, made_by=made_by)
  timing = metric_lines(run / 'timing.jsonl')
  ends = [line['seconds'] for line in timing if is_number(line.get('seconds'))]
  step, rate = step_seconds(timing), median_rate(metric_lines(run / 'metrics.jsonl'))
  return Outcome(
    status='finished',
    metrics=metrics,
    seconds=max(ends, default=0.0) / together,
    step_seconds=None if step is None else step / together,
    compile_seconds=compilation.seconds() / together,
    tokens_per_second=None if rate is None else rate * together,
    memory_bytes=None if memory is None else memory // together,
    made_by=made_by,
  )


def config_of(trial: Trial, run: Path) -> config_lib.Config:
  """The config of a run folder.

  Raises:
    UserError: it is not that of the trial: another version of t2x wrote it, or someone changed it.
  """
  file = run / 'config.gin'
  if identity_of([file]) != trial.identity:
    raise UserError(
      f'{file} does not resolve to the config of trial {trial.folder}: run the same `t2x sweep` '
      'command again'
    )
  return read_config([file], [f'{SEED}={trial.seed}'])


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
