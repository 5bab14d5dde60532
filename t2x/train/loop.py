"""The training loop: one for every task, read from top to bottom."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2x.errors import UserError
from t2x.train.experiment import Experiment
from t2x.train.interval import Interval
from t2x.train.run import Run
from t2x.train.summary import start_screen
from t2x.train.writers import JsonLines, TensorBoard, Terminal

__all__ = ['Interrupted', 'train']

EXIT_INTERRUPTED = 75


class Interrupted(UserError):
  """The run was told to stop; it saved and can be run again."""

  def __init__(self, step: int):
    super().__init__(
      f'interrupted and saved at step {step}: run the same command again to go on',
      EXIT_INTERRUPTED,
    )


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
  """SIGTERM and SIGINT are noted in the list that this yields, and the step is finished."""
  seen: list[int] = []
  before = {
    number: signal.signal(number, lambda number, frame: seen.append(number))
    for number in (signal.SIGTERM, signal.SIGINT)
  }
  try:
    yield seen
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def train(experiment: Experiment, folder: Path, config_text: str, note: str = '') -> dict[str, Any]:
  """Trains, or goes on where the folder's last checkpoint stands.

  Args:
    experiment: the config's root.
    folder: the run folder; made when missing.
    config_text: the resolved config, kept as config.gin.
    note: a line for the start screen.

  Returns:
    The last evaluation's metrics.

  Raises:
    Interrupted: SIGTERM or SIGINT came; the state is saved.
    UserError: a config, data or checkpoint that does not fit, or a loss that is not finite.
  """
  run = Run(experiment, folder)
  task, trainer = run.task, run.trainer
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.gin').write_text(config_text)

  rows = run.rows(task.train_split)
  if not len(rows):
    raise UserError(
      f"the split '{task.train_split}' of {task.source} is empty: nothing to train on"
    )
  batches = run.batches(rows)

  extra: dict[str, Any] = {}
  if run.checkpoints.latest_step() is None:
    state = run.init()
  else:
    state, extra = run.restore('last')
    if extra['data'] != batches.fingerprint:
      raise UserError(
        f'the data of {folder} changed since its checkpoint was saved: '
        'use --fresh to start again, or another --out'
      )
  step = start = int(state.step)

  screen = start_screen(run, rows, start, note)
  (folder / 'summary.txt').write_text(screen)
  terminal = Terminal(trainer.num_steps, start, task.unit)
  terminal.print(screen)
  lines = JsonLines(folder / 'metrics.jsonl', after=start)
  samples = JsonLines(folder / 'samples.jsonl', after=start)
  writers = [lines, TensorBoard(folder, after=start), terminal]
  writers += [writer(folder) for writer in trainer.writers]
  schedule = trainer.schedule.build(trainer.num_steps)

  def write(step: int, split: str, metrics: dict[str, float]) -> None:
    for writer in writers:
      writer.write(step, split, metrics)

  def write_train(step: int, interval: Interval, rate: float) -> None:
    metrics = task.summarise(interval.totals())
    if not math.isfinite(metrics['loss']):
      raise UserError(
        f'the loss is {metrics["loss"]} at or before step {step}: try a lower learning rate or '
        f'longer warm-up; the last good checkpoint is step {run.checkpoints.latest_step()}',
        exit_code=1,
      )
    metrics['learning_rate'] = float(schedule(step - 1))
    write(step, 'train', metrics | {f'{task.unit}_per_second': rate})

  # Checkpoints and evaluations fall on these steps; the last step has both.
  def due(every: int) -> bool:
    return step == trainer.num_steps or bool(every and step % every == 0)

  metrics: dict[str, float] = extra.get('metrics', {})
  interval, late = Interval(extra.get('interval')), None
  units, clock = 0, time.monotonic()
  with interruptible() as interrupted, contextlib.ExitStack() as stack:
    for writer in [*writers, samples]:
      stack.callback(writer.close)
    stack.callback(run.checkpoints.close)
    for count, batch in run.train_batches(batches, start):
      state, sums = run.train_step(state, batch)
      step += 1
      interval.add(sums)
      units += count
      terminal.step(step)
      if due(trainer.log_every):
        # The interval before this one is surely done: reading it does not wait for the device.
        if late is not None:
          write_train(*late)
        rate = units / (time.monotonic() - clock)
        late, interval = (step, interval, rate), Interval()
        units, clock = 0, time.monotonic()
      evaluating = due(trainer.eval_every)
      if not (evaluating or due(trainer.checkpoint_every) or interrupted):
        continue
      paused = time.monotonic()
      if late is not None:
        write_train(*late)
        late = None
      if evaluating:
        last = step == trainer.num_steps
        metrics, outputs = run.evaluate(
          state,
          max_batches=None if last else trainer.eval_batches,
          max_generated=task.eval_examples,
        )
        write(step, 'eval', metrics)
        for output in outputs:
          samples.write(step, 'eval', output)
      saved = {
        'data': batches.fingerprint,
        'interval': interval.totals(),
        'metrics': metrics,
      }
      run.checkpoints.save(step, state, saved, metrics if evaluating else None)
      clock += time.monotonic() - paused
      if interrupted and step < trainer.num_steps:
        run.checkpoints.wait()
        raise Interrupted(step)
    run.checkpoints.wait()
  return metrics
