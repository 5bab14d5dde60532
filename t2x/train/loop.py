"""The training loop of every task: train, log, checkpoint, evaluate."""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t2x.base.errors import Interrupted
from t2x.base.files import write_atomically
from t2x.data import Batches, Skipping
from t2x.data.prepared_folders import FINGERPRINTS
from t2x.parallel import Processes, check_shardings
from t2x.run_folder.status import recorded
from t2x.train.checks import check_data, check_splits
from t2x.train.experiment import Experiment, Trainer
from t2x.train.faults import Fault, Spike
from t2x.train.interruptions import Clock, Watchdog, interruptible
from t2x.train.logs.profiler import Profiler
from t2x.train.logs.run_logger import RunLogger
from t2x.train.params import Params
from t2x.train.program import Program
from t2x.train.recovery import read_skips, record_fault, roll_back
from t2x.train.run import TrainingRun

__all__ = ['train']


def train(
  experiment: Experiment,
  folder: Path,
  config_text: str,
  verbose: bool = False,
  processes: Processes | None = None,
  program: Program | None = None,
  quiet: bool = False,
) -> dict[str, Any]:
  """Trains a model; resumes from the last checkpoint if the run folder has one.

  Args:
    experiment: model, task, trainer and mesh.
    folder: the run folder; created if it does not exist.
    config_text: the resolved config, written to config.gin.
    verbose: also prints the table of parameters.
    processes: the processes of this run; None for a single process.
    program: compiled functions, shared by runs that differ only in the seed; None compiles them.
    quiet: prints only the results and warnings.

  Returns:
    The metrics of the last evaluation.

  Raises:
    Interrupted: SIGTERM, SIGINT or SIGHUP was received, or the time limit was reached; the state is saved.
    UserError: the config, the data or the checkpoint is invalid, or training diverged.
  """
  start_time, processes = time.monotonic(), processes or Processes()
  _, task, trainer = experiment.complete()
  with contextlib.ExitStack() as stack:
    if processes.first:
      status = recorded(
        folder, num_steps=trainer.num_steps, metric=task.best_metric, mode=task.best_mode
      )
      stack.enter_context(status)
    run = TrainingRun(experiment, folder, processes, program)
    return _run(run, config_text, start_time, verbose, quiet)


def _run(
  run: TrainingRun, config_text: str, start_time: float, verbose: bool, quiet: bool
) -> dict[str, Any]:
  """Trains from the last checkpoint; repeats steps after a loss spike."""
  if run.processes.first:
    run.folder.mkdir(parents=True, exist_ok=True)
    # Atomic: a resumed run would reject a truncated config as that of another run.
    write_atomically(run.folder / 'config.gin', config_text.encode())
  check_splits(run)
  rows = run.rows(run.task.train_split)
  batches = run.batches(rows)
  check_data(run, rows, batches)
  with (
    run.checkpoints_closed(),
    interruptible(run.processes, run.trainer.max_minutes, start_time) as stop_requested,
  ):
    while True:
      skips = read_skips(run)
      try:
        return _train(run, rows, batches, skips, stop_requested, verbose, quiet)
      except Spike as spike:
        roll_back(run, spike, skips)
      except Fault as fault:
        raise record_fault(run, batches, fault, skips) from fault


def _train(
  run: TrainingRun,
  rows: Sequence[Mapping[str, Any]],
  batches: Batches,
  skips: list[tuple[int, int]],
  stop_requested: Callable[..., bool],
  verbose: bool,
  quiet: bool,
) -> dict[str, Any]:
  """Trains from the last checkpoint to the last step, or until `stop_requested()` or early stopping."""
  trainer = run.trainer

  def evaluate(step: int) -> dict[str, float]:
    params = run.program.eval_params(state, frozen)
    stop = functools.partial(stop_requested, time_limit=False)
    return _evaluate(run, step, params, logger, watchdog, stop)

  handle, frozen, saved = run.init_or_restore(batches)
  start, state = int(handle.step), handle
  train_step, metrics = run.program.train_step(), dict(saved.get('metrics', {}))
  # The process may have ended between the checkpoint of a step and its evaluation.
  eval_pending = _is_eval_step(trainer, start) and run.checkpoints.metrics(start) is None
  with (
    RunLogger(run, start, saved, eval_pending, quiet) as logger,
    Profiler(run, start, logger) as profiler,
    Watchdog(
      60 * trainer.stall_minutes, warn=functools.partial(logger.terminal.print, always=True)
    ) as watchdog,
    contextlib.closing(run.train_batches(Skipping(batches, skips), start)) as device_batches,
  ):
    if not eval_pending and next(run.steps(start), None) is None:
      logger.nothing_to_do()
    else:
      logger.start_screen(rows, verbose)
    logger.terminal.watch(watchdog.current)
    clock = Clock(run.processes, trainer.checkpoint_minutes)
    if eval_pending:
      metrics = evaluate(start)
    for step in run.steps(start):
      with watchdog.waiting(f'the batch of step {step}'):
        num_units, batch = next(device_batches)
      last = step == trainer.num_steps
      should_log = last or step % trainer.log_every == 0
      activity = f'compiling step {step}' if step == start + 1 else f'step {step}'
      with watchdog.waiting(activity), profiler.step(step), _no_copies():
        handle, sums = train_step(handle, frozen, batch)
        if step == start + 1:
          check_shardings(run.program.abstract, run.program.state(handle))
        logger.step(step, sums, num_units, log=should_log)
      should_stop = stop_requested() and not last
      # An interrupted run evaluates this step when it is resumed.
      should_evaluate = _is_eval_step(trainer, step) and not should_stop
      should_save = _is_due(trainer.checkpoint_every, step) or _is_due(trainer.keep_every, step)
      if not (should_evaluate or should_save or should_stop or (should_log and clock.due())):
        continue
      state = run.program.state(handle)
      with logger.paused():
        saved = {'data': batches.fingerprint, 'fingerprints': FINGERPRINTS, 'metrics': metrics}
        saved |= logger.state()
        save_time = time.monotonic()
        with watchdog.waiting(f'the checkpoint of step {step}'):
          run.save(step, state, saved)
        logger.checkpoint(step, time.monotonic() - save_time)
        clock.restart()
      if should_evaluate:
        metrics = evaluate(step)
      if should_stop:
        run.checkpoints.finish()
        raise Interrupted(f'interrupted and saved at step {step}')
    run.checkpoints.finish()
    logger.end_screen(metrics)
  return metrics


def _no_copies() -> contextlib.AbstractContextManager[None]:
  # Only `jax.device_get` may copy an array to the host.
  return jax.transfer_guard_device_to_host('disallow')


def _is_eval_step(trainer: Trainer, step: int) -> bool:
  return step > 0 and (step == trainer.num_steps or _is_due(trainer.eval_every, step))


def _evaluate(
  run: TrainingRun,
  step: int,
  params: Params,
  logger: RunLogger,
  watchdog: Watchdog,
  stop_requested: Callable[[], bool],
) -> dict[str, float]:
  """Evaluates the parameters of a saved step. Logs the metrics and adds them to the step's checkpoint.

  Raises:
    Interrupted: `stop_requested()` after a batch. A resumed run repeats the evaluation.
  """

  def watched(items: Iterable) -> Iterator:
    iterator = iter(items)
    for number in itertools.count(1):
      with watchdog.waiting(f'batch {number} of the evaluation of step {step}'):
        try:
          item = next(iterator)
        except StopIteration:
          return
        yield item  # Also watches the work of the loop body.
      if stop_requested():
        run.checkpoints.finish()
        raise Interrupted(f'interrupted in the evaluation of step {step}, which is saved')

  with logger.paused():
    result = run.evaluate_step(params, step, watched)
    logger.evaluation(step, result)
    # Texts, such as the signature of a metric, are in metrics.jsonl only.
    metrics = {name: value for name, value in result.metrics.items() if not isinstance(value, str)}
    run.attach(step, metrics)
  return metrics


def _is_due(interval: int, step: int) -> bool:
  return interval > 0 and step % interval == 0
