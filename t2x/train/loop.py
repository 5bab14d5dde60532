"""The training loop: one for every task, read from top to bottom."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t2x.data import Batches
from t2x.errors import UserError
from t2x.parallel import Processes
from t2x.train.experiment import Experiment
from t2x.train.report import Report
from t2x.train.run import Run
from t2x.train.state import TrainState

__all__ = ['EXIT_INTERRUPTED', 'Interrupted', 'train']

EXIT_INTERRUPTED = 75


class Interrupted(UserError):
  """The run was told to stop; it saved and can be run again."""

  def __init__(self, step: int):
    super().__init__(
      f'interrupted and saved at step {step}: run the same command again to go on',
      EXIT_INTERRUPTED,
    )


@contextlib.contextmanager
def interruptible(processes: Processes) -> Iterator[Callable[[int], bool]]:
  """SIGTERM and SIGINT are noted, and the step is finished.

  Yields `due(step)`: whether to stop after this step, which all processes answer alike when one of
  them has the signal.
  """
  seen: list[int] = []

  def note(number, frame):
    seen.append(number)
    processes.ask_to_stop()

  before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}

  def due(step: int) -> bool:
    return bool(seen) if processes.count == 1 else processes.reached_stop(step)

  try:
    yield due
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def train(
  experiment: Experiment,
  folder: Path,
  config_text: str,
  notes: Sequence[str] = (),
  processes: Processes | None = None,
) -> dict[str, Any]:
  """Trains, or goes on where the folder's last checkpoint stands.

  Args:
    experiment: the config's root.
    folder: the run folder; made when missing.
    config_text: the resolved config, kept as config.gin.
    notes: lines for the start screen.
    processes: those that are this run; None: this one alone.

  Returns:
    The last evaluation's metrics.

  Raises:
    Interrupted: SIGTERM or SIGINT came; the state is saved.
    UserError: a config, data or checkpoint that does not fit, or a loss that is not finite.
  """
  run = Run(experiment, folder, processes)
  trainer = run.trainer
  _keep_config(run, config_text)
  rows = run.rows(run.task.train_split)
  if not len(rows):
    raise UserError(f"the split '{run.task.train_split}' of {run.task.source} is empty")
  batches = run.batches(rows)
  state, saved = _start(run, batches)
  start = int(state.step)
  metrics: dict[str, float] = saved.get('metrics', {})

  with Report(run, start, saved) as report, interruptible(run.processes) as interrupted:
    report.start_screen(rows, notes)
    for step, (count, batch) in enumerate(run.train_batches(batches, start), start + 1):
      state, sums = run.train_step(state, batch)
      last = step == trainer.num_steps
      report.step(step, sums, count, log=last or step % trainer.log_every == 0)

      evaluates = last or _every(trainer.eval_every, step)
      stops = interrupted(step) and not last
      if not (evaluates or _every(trainer.checkpoint_every, step) or stops):
        continue
      with report.paused():
        if evaluates:
          limit = None if last else trainer.eval_batches
          generated = run.task.eval_examples
          metrics, samples = run.evaluate(state, max_batches=limit, max_generated=generated)
          report.evaluation(step, metrics, samples)
        saved = {'data': batches.fingerprint, 'metrics': metrics} | report.state()
        run.checkpoints.save(step, state, saved, metrics if evaluates else None)
      if stops:
        run.checkpoints.wait()
        raise Interrupted(step)
    run.checkpoints.wait()
  return metrics


def _keep_config(run: Run, text: str) -> None:
  if run.processes.first:
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / 'config.gin').write_text(text)


def _start(run: Run, batches: Batches) -> tuple[TrainState, dict[str, Any]]:
  """A new state, or the last checkpoint's and what was saved beside it."""
  if run.checkpoints.latest_step() is None:
    return run.init(), {}
  state, saved = run.restore('last')
  if saved['data'] != batches.fingerprint:
    raise UserError(
      f'the data of {run.folder} changed since its checkpoint was saved: '
      'use --fresh to start again, or another --out'
    )
  return state, saved


def _every(interval: int, step: int) -> bool:
  return interval > 0 and step % interval == 0
