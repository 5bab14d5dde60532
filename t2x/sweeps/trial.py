"""Trains one trial in its run folder and writes the outcome."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from t2x import config as config_lib
from t2x.base.errors import Interrupted, UserError, error_line, printable
from t2x.base.json_files import is_number
from t2x.experiments import changed_settings, data_of, read_config, record_run
from t2x.run_folder.lines import metric_lines
from t2x.run_folder.ownership import claim_folder
from t2x.sweeps.plan import seed_of
from t2x.sweeps.provenance import origin
from t2x.sweeps.records import Outcome, Trial, usable_outcome, write_outcome
from t2x.sweeps.timing import Compilation, conditions, median_rate, step_seconds
from t2x.train import Diverged, Program, train

log = logging.getLogger('t2x')

# Attempts of a trial whose process is killed before it saves a checkpoint; then the trial has failed.
MAX_ATTEMPTS = 2


class Programs:
  """Cache of the last compiled program, for successive trials that share it.

  The hyperparameters in which trials of a program differ are always inputs of the compiled functions.
  The metrics of a trial are therefore bitwise the same in any process and order of trials. They equal
  those of `t2x train`, which compiles hyperparameters as constants, up to rounding.
  """

  def __init__(self):
    self._name, self._program = '', None

  def of(self, trial: Trial, config: config_lib.Config) -> Program:
    """Returns the program of a trial, building it if it differs from the last one."""
    if self._program is None or trial.program != self._name:
      self._program = None  # Frees the memory of the last program.
      experiment = config.build(trial.numbers)
      # Trials of a program fit the same tokenizer, and save it in their run folders.
      tokenizer = experiment.task.fit_tokenizer()
      self._program = Program(experiment.bound(tokenizer), trial.numbers)
      self._name = trial.program
    return self._program.at(trial.numbers)


def outcome_before(run: Path, deaths: Sequence[str]) -> Outcome | None:
  """Returns the outcome of a trial whose lease this process holds; None if it is to be trained.

  A trial has failed if the processes of its last attempts died (`deaths`) without saving a checkpoint.
  """
  # Left by a process that was killed while writing. (A planner may be writing config.gin now.)
  for path in run.glob('[!.]*.json*.tmp'):
    path.unlink(missing_ok=True)
  outcome = usable_outcome(run)
  if outcome is None and len(deaths) >= MAX_ATTEMPTS:
    memory = ' (memory may be exhausted)' if 'SIGKILL' in deaths else ''
    reason = f'its process was killed in {len(deaths)} attempts: {", ".join(deaths)}{memory}'
    outcome = Outcome(status='failed', reason=reason, made_by=origin())
    write_outcome(run, outcome)
  return outcome


def train_trial(
  trial: Trial,
  run: Path,
  program_of: Callable[[config_lib.Config], Program],
  reraise: tuple[type[Exception], ...] = (),
  together: int = 1,
) -> Outcome:
  """Trains in a locked run folder, and writes the outcome there.

  Args:
    trial: the trial.
    run: its run folder.
    program_of: returns the program to train with.
    reraise: exceptions to raise instead of recording them as an outcome.
    together: number of trials that are trained with each vmapped step.

  Raises:
    Interrupted: the process was asked to stop.
  """
  with conditions() as records:
    outcome = _train(trial, run, program_of, reraise, together)
  outcome = dataclasses.replace(outcome, together=together, conditions=records[0])
  write_outcome(run, outcome)
  return outcome


def _train(
  trial: Trial,
  run: Path,
  program_of: Callable,
  reraise: tuple[type[Exception], ...],
  together: int,
) -> Outcome:
  start = time.monotonic()
  # Determined now, as the source code may change before the trial ends.
  made_by = origin()
  try:
    with Compilation() as compilation:
      config = config_of(trial, run)
      made_by |= {f'module {name}': text for name, text in config.used.digests.items()}
      text, data = config_lib.render(config), functools.cache(lambda: data_of(config.build()))
      changed = functools.partial(changed_settings, config, data)
      with claim_folder(run, text, changed, fresh=False):
        program, experiment = program_of(config), config.build()
        record_run(run, config, data())
        made_by |= {f'data {name}': text for name, text in data().items()}
        metrics = train(experiment, run, text, program=program)
    memory = program.memory_bytes()
  except Exception as error:
    if isinstance(error, (Interrupted, *reraise)):
      raise
    log.error('%s: %s', type(error).__name__, error, exc_info=not isinstance(error, UserError))
    seconds = (time.monotonic() - start) / together
    if isinstance(error, Diverged):
      reason = printable(error.reason)
      return Outcome(status='diverged', reason=reason, seconds=seconds, made_by=made_by)
    reason = printable(error_line(error))
    invalid = isinstance(error, UserError)
    return Outcome(
      status='failed', reason=reason, seconds=seconds, made_by=made_by, invalid=invalid
    )
  timing = metric_lines(run / 'timing.jsonl')
  ends = [line['seconds'] for line in timing if is_number(line.get('seconds'))]
  lines = metric_lines(run / 'metrics.jsonl')
  step, rate = step_seconds(timing), median_rate(lines)
  return Outcome(
    status='finished',
    metrics=metrics,
    seconds=max(ends, default=0.0) / together,
    step_seconds=None if step is None else step / together,
    compile_seconds=compilation.seconds() / together,
    tokens_per_second=None if rate is None else rate * together,
    memory_bytes=None if memory is None else memory // together,
    made_by=made_by,
    num_steps=max((line['step'] for line in lines), default=None),
  )


def config_of(trial: Trial, run: Path) -> config_lib.Config:
  """Reads the config of a run folder.

  Raises:
    UserError: it is not the config of the trial: it was written by another version of t2x, or edited.
  """
  file = run / 'config.gin'
  config = read_config([file])
  seed = seed_of(config)
  settings = config_lib.identity(config, [seed], trial.restated).partition('.')[0]
  if settings != trial.identity.partition('.')[0] and (
    config_lib.older_identity(config, [seed]) != trial.identity
  ):
    raise UserError(
      f'{file} does not resolve to the config of trial {trial.folder}: run the same `t2x sweep` '
      'command again'
    )
  return read_config([file], [f'{seed}={trial.seed}'])


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
  """Redirects printed text and log messages to the end of a file."""
  handlers = [h for h in logging.getLogger().handlers if type(h) is logging.StreamHandler]
  streams = [handler.stream for handler in handlers]
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
