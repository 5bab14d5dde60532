"""Logs a run to files and to the terminal: means of log intervals, evaluations, samples, times.

The device never waits for Python: the sums of a log interval are fetched when the next interval ends.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2x.tasks.evaluators import Evaluation
from t2x.train.faults import Faults
from t2x.train.logs.step_sums import StepSums
from t2x.train.logs.summary import (
  end_screen,
  parameter_screen,
  sample_markdown,
  sample_text,
  start_screen,
  tracker_summary,
)
from t2x.train.logs.trackers import Guarded
from t2x.train.logs.writers import (
  JsonLines,
  MetricWriter,
  Silent,
  TensorBoard,
  Terminal,
  write_examples,
)
from t2x.train.program import peak_flops, step_flops
from t2x.train.run import TrainingRun


class Interval:
  """Sums of the steps of one log interval, on the device until `totals` is called.

  Args:
    faults: checks each step.
    saved: (sum, weight) by name from a checkpoint in the middle of the interval.

  Attributes:
    steps: (number, sums) of each step that `totals` has not fetched yet.
    units: tokens or examples of the steps since the process started.
    num_steps: number of these steps.
    layer_norms: norms by layer of the last step that `totals` has fetched; {} without `Trainer.layer_norms`.
    end_time: time.monotonic() at which `poll` first found the last step finished; None before.
  """

  def __init__(self, faults: Faults, saved: Mapping[str, Any] | None = None):
    self.faults = faults
    self.sums = {name: np.array(pair, np.float64) for name, pair in (saved or {}).items()}
    self.steps: list[tuple[int, StepSums]] = []
    self.units = self.num_steps = 0
    self.end_time: float | None = None
    self.layer_norms: dict[str, float] = {}

  def poll(self) -> None:
    """Sets `end_time` if the last step is finished; does not wait."""
    if self.end_time is None and self.steps[-1][1].values.is_ready():
      self.end_time = time.monotonic()

  def totals(self) -> dict[str, tuple[float, float]]:
    """Fetches the steps, checks them for faults, and returns (sum, weight) by name over the interval.

    Sums are float64, in the order of the steps, so that a resumed interval has bitwise the same results.
    """
    steps, self.steps = jax.device_get(self.steps), []
    if steps:
      self.layer_norms = steps[-1][1].layer_norms
    for step, packed in steps:
      sums = packed.sums
      finite, _ = sums.pop('finite')
      self.faults.check(step, bool(finite), sums, packed.norms)
      for name, pair in sums.items():
        self.sums[name] = self.sums.get(name, np.zeros(2)) + np.array(pair, np.float64)
    return {name: (float(pair[0]), float(pair[1])) for name, pair in self.sums.items()}


class RunLogger(contextlib.AbstractContextManager):
  """Writes metrics, samples, times and norms to JSON lines, TensorBoard, the terminal and trackers.

  Only the first process writes. timing.jsonl has the seconds of training (without pauses between
  restarts) at each line of metrics.jsonl, and the seconds that each checkpoint blocked the loop (`waited`,
  also in TensorBoard). Times have their own file because they are not reproducible.

  Args:
    run: the run to log.
    start: step of the checkpoint that the run starts from; lines of later steps are removed.
    saved: `state` at that checkpoint: sums of an unfinished log interval, state of the fault detection, and
      seconds of training.
    eval_pending: whether the evaluation of the step `start` will be repeated; its lines are then removed.
    quiet: whether only results and warnings are printed.
  """

  terminal: Terminal | Silent
  samples: JsonLines | Silent
  timing: JsonLines | Silent
  norms: JsonLines | Silent
  tensorboard: TensorBoard | Silent

  def __init__(
    self,
    run: TrainingRun,
    start: int,
    saved: Mapping[str, Any],
    eval_pending: bool = False,
    quiet: bool = False,
  ):
    self.run, self.start, self.last = run, start, start
    self.start_time = time.monotonic() - saved.get('seconds', 0.0)
    self.schedule = run.trainer.schedule.build(run.trainer.num_steps)
    self.peak = peak_flops(run.program)
    trainer = run.trainer
    self.faults = Faults(sorted(run.program.groups.trained), trainer.nonfinite, trainer.rollback)
    self.faults.restore(saved.get('faults', {}))
    self.current = Interval(self.faults, saved.get('interval'))
    self.unwritten: tuple[int, Interval] | None = None
    self.terminal = self.samples = self.timing = self.norms = self.tensorboard = Silent()
    self.trackers: list[Guarded] = []
    self.writers: list[MetricWriter] = []
    if run.processes.first:
      repeated = 'eval' if eval_pending else None
      metrics, self.samples, self.timing = (
        JsonLines(run.folder / f'{name}.jsonl', start, repeated)
        for name in ('metrics', 'samples', 'timing')
      )
      self.tensorboard = TensorBoard(run.folder, after=start)
      if trainer.layer_norms:
        self.norms = JsonLines(run.folder / 'norms.jsonl', start)
      self.trackers = [Guarded(writer, run.folder) for writer in trainer.writers]
      # Created last: a writer that raises must not leave a live line on the screen.
      self.terminal = Terminal(trainer.num_steps, start, run.task.unit, quiet=quiet)
      self.writers = [metrics, self.tensorboard, self.terminal, *self.trackers]
    # Start of the time that the next interval's rate counts.
    self.interval_start = time.monotonic()

  def __exit__(self, *error: object) -> None:
    for writer in (*self.writers, self.samples, self.timing, self.norms):
      writer.close()

  def start_screen(self, rows: Sequence[Mapping[str, Any]], verbose: bool) -> None:
    """Prints the summary of the run, and the table of parameters if `verbose`; summary.txt has both."""
    if not self.run.processes.first:
      return
    screen = start_screen(self.run, rows, self.start, self.terminal.width)
    table = parameter_screen(self.run)
    (self.run.folder / 'summary.txt').write_text(f'{screen}\n{table}')
    self.terminal.print(f'{table}\n{screen}' if verbose else screen)

  def nothing_to_do(self) -> None:
    """Prints that the run was finished before; summary.txt keeps the start screen of its last training."""
    self.terminal.print(
      f'{self.run.folder} is finished: nothing to do; --fresh starts over', always=True
    )

  def end_screen(self, metrics: Mapping[str, float]) -> None:
    """Prints the results of the run and the next commands, and sends the summary to the trackers."""
    if self.run.processes.first:
      seconds = self._seconds()
      if self.trackers:
        summary = tracker_summary(self.run, metrics, seconds)
        for tracker in self.trackers:
          tracker.finish(summary)
      screen = end_screen(self.run, self.last, metrics, seconds, self.terminal.width)
      self.terminal.print(screen, always=True)

  def step(self, step: int, sums: StepSums, num_units: int, log: bool) -> None:
    """Adds a step to the current log interval.

    Args:
      step: number of the step.
      sums: results of the step, on the device.
      num_units: tokens or examples in its batch.
      log: whether the step is the last of its log interval.

    Raises:
      Fault, Spike: as `Faults.check`.
    """
    self.last = step
    self.current.steps.append((step, sums))
    self.current.units += num_units
    self.current.num_steps += 1
    self.terminal.step(step)
    if self.unwritten is not None:
      # Python may be far ahead of the device: an interval ends when the device has finished it.
      self.unwritten[1].poll()
    if log:
      # The device has finished the previous interval: fetching its sums does not wait.
      self._write_interval()
      self.unwritten, self.current = (step, self.current), Interval(self.faults)

  def _write_interval(self) -> None:
    """Writes the metrics of the interval that is complete and not written yet, if there is one."""
    if self.unwritten is None:
      return
    (step, interval), self.unwritten = self.unwritten, None
    totals = interval.totals()
    end_time = interval.end_time or time.monotonic()
    metrics = self.run.task.summarise(totals)
    metrics['learning_rate'] = self._learning_rate(step)
    seconds = end_time - self.interval_start
    metrics[f'{self.run.task.unit}_per_second'] = interval.units / seconds
    if self.peak is not None:
      metrics['mfu'] = interval.num_steps * step_flops(self.run.program) / seconds / self.peak
    self._write(step, 'train', metrics, end_time)
    if interval.layer_norms:
      for writer in (self.norms, self.tensorboard, *self.trackers):
        writer.write(step, 'norms', interval.layer_norms)
    self.interval_start = end_time

  def _learning_rate(self, step: int) -> float:
    """Computes the learning rate of the last update up to a step, the last that `faults` has checked.

    It is computed on the CPU, because an accelerator would finish queued steps first.
    """
    # The optimizer does not count skipped steps.
    num_updates = step - self.faults.num_skipped
    try:
      device = jax.local_devices(backend='cpu')[0]
    except RuntimeError:  # JAX_PLATFORMS excludes CPUs.
      device = None
    with jax.default_device(device):
      return float(jax.device_get(self.schedule(max(num_updates - 1, 0))))

  def _write(self, step: int, split: str, metrics: Mapping[str, Any], at: float) -> None:
    for writer in self.writers:
      writer.write(step, split, metrics)
    self.timing.write(step, split, {'seconds': round(at - self.start_time, 3)})

  def _seconds(self) -> float:
    return time.monotonic() - self.start_time

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Writes the unwritten interval and excludes the time in the context from the training speed."""
    self._write_interval()
    jax.block_until_ready(self.current.steps[-1:])
    before = time.monotonic()
    yield
    self.interval_start += time.monotonic() - before

  def checkpoint(self, step: int, seconds: float) -> None:
    """Writes the seconds that a checkpoint blocked the loop."""
    waited = {'waited': round(seconds, 3)}
    self.timing.write(step, 'checkpoint', {'seconds': round(self._seconds(), 3)} | waited)
    self.tensorboard.write(step, 'checkpoint', waited)

  def state(self) -> dict[str, Any]:
    """Returns the sums of the current interval, the seconds of training, and the fault detection's state."""
    interval = self.current.totals()
    return {'interval': interval, 'seconds': self._seconds(), 'faults': self.faults.state()}

  def evaluation(self, step: int, result: Evaluation) -> None:
    """Writes the metrics, samples and images of an evaluation; prints the first three samples.

    Also writes the values of each example in the last evaluation of the run.
    """
    last = step == self.run.trainer.num_steps or self.run.stopping.stops
    if result.examples and last and self.run.processes.first:
      write_examples(self.run.folder, result.examples)
    self._write(step, 'eval', {**result.metrics, **self.run.weights}, time.monotonic())
    for number, sample in enumerate(result.samples):
      self.samples.write(step, 'eval', sample)
      self.tensorboard.text(step, f'samples/{number}', sample_markdown(sample))
    for name, image in result.images.items():
      self.tensorboard.image(step, name, image)
    for sample in result.samples[:3]:
      self.terminal.print(sample_text(sample, self.terminal.width))
