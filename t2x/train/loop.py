"""The training loop: one for every task, read from top to bottom."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from t2x.data import Batches, Skipping
from t2x.errors import Interrupted, UserError
from t2x.files import write_whole
from t2x.parallel import Processes, check_shardings
from t2x.train.check import check_data, check_splits
from t2x.train.experiment import Experiment, Trainer
from t2x.train.faults import (
  Fault,
  Spike,
  forget_evaluation,
  go_back,
  kept_for_replay,
  skips_of,
)
from t2x.train.interruptions import Clock, Watchdog, interruptible
from t2x.train.params import Params
from t2x.train.program import TrainProgram
from t2x.train.run import TrainingRun
from t2x.train.run_logger import RunLogger
from t2x.train.step import TrainState


def train(
  experiment: Experiment,
  folder: Path,
  config_text: str,
  verbose: bool = False,
  processes: Processes | None = None,
  program: TrainProgram | None = None,
) -> dict[str, Any]:
  """Trains, or goes on where the folder's last checkpoint stands.

  Args:
    experiment: the config's root.
    folder: the run folder; made when missing.
    config_text: the resolved config, kept as config.gin.
    verbose: prints the table of parameters, too.
    processes: those that are this run; None: this one alone.
    program: what runs that differ in the seed alone have compiled already.

  Returns:
    The last evaluation's metrics.

  Raises:
    Interrupted: SIGTERM, SIGINT or SIGHUP came; the state is saved.
    UserError: a config, data or checkpoint that does not fit, or a loss that is not finite.
  """
  began = time.monotonic()
  run = TrainingRun(experiment, folder, processes, program)
  _keep_config(run, config_text)
  check_splits(run)
  rows = run.rows(run.task.train_split)
  batches = run.batches(rows)
  check_data(run, rows, batches)
  with (
    _saves_ended(run),
    interruptible(run.processes, run.trainer.max_minutes, began) as interrupted,
  ):
    while True:
      skips = skips_of(run)
      try:
        return _train(run, rows, batches, skips, interrupted, verbose)
      except Spike as spike:
        go_back(run, spike, skips)
      except Fault as fault:
        raise kept_for_replay(run, batches, fault, skips) from fault


def _train(
  run: TrainingRun,
  rows: Any,
  batches: Batches,
  skips: list[tuple[int, int]],
  interrupted: Callable[[int], bool],
  verbose: bool,
) -> dict[str, Any]:
  """From the last checkpoint to the end, or until `interrupted(step)`."""
  trainer = run.trainer
  held, frozen, saved = _start(run, batches)
  start, state = int(held.step), held
  train_step, metrics = run.train_step, dict(saved.get('metrics', {}))
  # Whether the process ended after it had saved an evaluated step, and before it had evaluated it.
  pending = _evaluates(trainer, start) and run.checkpoints.metrics(start) is None
  if pending:
    forget_evaluation(run, start)
  with (
    RunLogger(run, start, saved) as logger,
    Watchdog(60 * trainer.stall_minutes, say=logger.terminal.print) as watchdog,
    contextlib.closing(run.train_batches(Skipping(batches, skips), start)) as prepared,
  ):
    logger.start_screen(rows, verbose)
    logger.terminal.watch(watchdog.current)
    clock = Clock(run.processes, trainer.checkpoint_minutes)
    if pending:
      metrics = _evaluated(run, start, run.program.evaluated(state, frozen), logger, watchdog)
    for step in range(start + 1, trainer.num_steps + 1):
      with watchdog.waiting(f'the batch of step {step}'):
        count, batch = next(prepared)
      last = step == trainer.num_steps
      logs = last or step % trainer.log_every == 0
      doing = f'compiling step {step}' if step == start + 1 else f'step {step}'
      with watchdog.waiting(doing), jax.transfer_guard_device_to_host('disallow'):
        held, sums = train_step(held, frozen, batch)
        if step == start + 1:
          check_shardings(run.program.abstract, run.program.state(held))
        logger.step(step, sums, count, log=logs)
      stops = interrupted(step) and not last
      # A run that is asked to stop leaves the evaluation to its next start.
      evaluates = _evaluates(trainer, step) and not stops
      saves = _every(trainer.checkpoint_every, step) or _every(trainer.keep_every, step)
      if not (evaluates or saves or stops or (logs and clock.due())):
        continue
      state = run.program.state(held)
      with logger.paused():
        saved = {'data': batches.fingerprint, 'metrics': metrics} | logger.state()
        began = time.monotonic()
        with watchdog.waiting(f'the checkpoint of step {step}'):
          run.save(step, state, saved)
        logger.saved(step, time.monotonic() - began)
        clock.restart()
      if evaluates:
        metrics = _evaluated(run, step, run.program.evaluated(state, frozen), logger, watchdog)
      if stops:
        run.checkpoints.wait()
        raise Interrupted(f'interrupted and saved at step {step}')
    run.checkpoints.wait()
    logger.end_screen(metrics)
  return metrics


def _evaluates(trainer: Trainer, step: int) -> bool:
  return step > 0 and (step == trainer.num_steps or _every(trainer.eval_every, step))


def _evaluated(
  run: TrainingRun, step: int, params: Params, logger: RunLogger, watchdog: Watchdog
) -> dict[str, float]:
  """Evaluates the parameters of a state that is saved already. Returns the metrics, and adds them to its checkpoint."""

  def watched(items: Iterable) -> Iterator:
    iterator = iter(items)
    for number in itertools.count(1):
      with watchdog.waiting(f'batch {number} of the evaluation of step {step}'):
        try:
          item = next(iterator)
        except StopIteration:
          return
        yield item  # And what is done with it.

  with logger.paused():
    found = run.evaluate(params, step, watched)
    logger.evaluation(step, found)
    # What says how a metric was computed is in metrics.jsonl.
    metrics = {name: value for name, value in found.metrics.items() if not isinstance(value, str)}
    run.attach(step, metrics)
  return metrics


@contextlib.contextmanager
def _saves_ended(run: TrainingRun) -> Iterator[None]:
  """However a run ends, what it is saving comes to the disk. (Not where a lost process would have to
  take part.)"""
  try:
    yield
  finally:
    if run.processes.count == 1:
      with contextlib.suppress(UserError):
        run.checkpoints.close()


def _keep_config(run: TrainingRun, text: str) -> None:
  if run.processes.first:
    run.folder.mkdir(parents=True, exist_ok=True)
    # Renamed when whole: a config that a kill had cut off would be that of another run.
    write_whole(run.folder / 'config.gin', text.encode())


def _start(run: TrainingRun, batches: Batches) -> tuple[TrainState, Params, dict[str, Any]]:
  """A new state, or the last checkpoint's; the frozen parameters; what was saved beside the state."""
  if run.checkpoints.latest_step() is None:
    return *run.init(), {}
  state, frozen, saved = run.restore('last')
  if saved['data'] != batches.fingerprint:
    raise UserError(
      f'the data of {run.folder} changed since its checkpoint was saved: '
      'use --fresh to start again, or another --out'
    )
  metrics = run.checkpoints.metrics(int(state.step)) or saved.get('metrics', {})
  return state, frozen, saved | {'metrics': metrics}


def _every(interval: int, step: int) -> bool:
  return interval > 0 and step % interval == 0
