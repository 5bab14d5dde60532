"""What a run tells: interval means, evaluations and samples, to files and to the terminal.

The device never waits for Python: the means of a log interval are fetched when the next one ends.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from t2x.tasks.evaluators import Evaluation
from t2x.train.faults import Faults
from t2x.train.step import StepSums
from t2x.train.summary import end_screen, parameter_screen, sample_text, start_screen
from t2x.train.writers import JsonLines, MetricWriter, Silent, TensorBoard, Terminal

if TYPE_CHECKING:
  from t2x.train.run import TrainingRun


class Interval:
  """Sums of the steps of one log interval, still on the device until `totals` is asked.

  `saved` is what a checkpoint in the middle of the interval had summed so far.

  Attributes:
    steps: number and sums of each.
    units: tokens or images of its steps since the process began.
    done: when its last step was, of time.monotonic(); None: it was not when last looked at.
  """

  def __init__(self, faults: Faults, saved: Mapping[str, Any] | None = None):
    self.faults = faults
    self.totalled = {name: np.array(pair, np.float64) for name, pair in (saved or {}).items()}
    self.steps: list[tuple[int, StepSums]] = []
    self.units = 0
    self.done: float | None = None

  def look(self) -> None:
    """Notes whether its last step is done, without waiting."""
    if self.done is None and self.steps[-1][1].values.is_ready():
      self.done = time.monotonic()

  def totals(self) -> dict[str, tuple[float, float]]:
    """(sum, weight) by name over the whole interval, summed in float64 in the order of the steps,
    so that an interrupted interval gives the very same numbers. Each step is looked at for faults."""
    steps, self.steps = jax.device_get(self.steps), []
    for step, packed in steps:
      sums = packed.sums
      finite, _ = sums.pop('finite')
      self.faults.look(step, bool(finite), sums, packed.norms)
      for name, pair in sums.items():
        self.totalled[name] = self.totalled.get(name, np.zeros(2)) + np.array(pair, np.float64)
    return {name: (float(pair[0]), float(pair[1])) for name, pair in self.totalled.items()}


class RunLogger(contextlib.AbstractContextManager):
  """Writes metrics.jsonl, samples.jsonl, TensorBoard events and the live line of a run.

  Of several processes the first one alone writes.

  timing.jsonl says after how many seconds of running (pauses between restarts left out) what each
  line of metrics.jsonl tells was done, and how long the loop stood still for each checkpoint (`waited`, in
  TensorBoard too); it is apart from the metrics, which are the same at every repetition.

  Args:
    run: the run.
    start: the step it starts from; lines of later steps, left by a killed process, are dropped.
    saved: what `state` gave when the checkpoint was saved: the sums of a log interval that it cut
      in two, and the seconds so far.
  """

  def __init__(self, run: 'TrainingRun', start: int, saved: Mapping[str, Any]):
    self.run, self.start = run, start
    self.began = time.monotonic() - saved.get('seconds', 0.0)
    self.schedule = run.trainer.schedule.build(run.trainer.num_steps)
    self.terminal: Terminal | Silent = Silent()
    self.samples: MetricWriter = Silent()
    self.timing: MetricWriter = Silent()
    self.board: MetricWriter = Silent()
    self.writers: list[MetricWriter] = []
    if run.processes.first:
      self._open_writers()
    trainer = run.trainer
    self.faults = Faults(sorted(run.program.groups.trained), trainer.nonfinite, trainer.rollback)
    self.faults.restore(saved.get('faults', {}))
    self.current = Interval(self.faults, saved.get('interval'))
    self.late: tuple[int, Interval] | None = None
    # Up to when the time is accounted for.
    self.clock = time.monotonic()

  def _open_writers(self) -> None:
    run, start = self.run, self.start
    self.samples = JsonLines(run.folder / 'samples.jsonl', after=start)
    self.timing = JsonLines(run.folder / 'timing.jsonl', after=start)
    self.board = TensorBoard(run.folder, after=start)
    metrics = JsonLines(run.folder / 'metrics.jsonl', after=start)
    others = [writer(run.folder) for writer in run.trainer.writers]
    # Last: a writer that raises must not leave a live line on the screen.
    self.terminal = Terminal(run.trainer.num_steps, start, run.task.unit)
    self.writers = [metrics, self.board, self.terminal, *others]

  def __exit__(self, *error: object) -> None:
    for writer in (*self.writers, self.samples, self.timing):
      writer.close()

  def start_screen(self, rows: Any, verbose: bool) -> None:
    """Prints the summary of the run; summary.txt, and stderr if `verbose`, list every parameter, too."""
    if not self.run.processes.first:
      return
    screen = start_screen(self.run, rows, self.start, self.terminal.width)
    table = parameter_screen(self.run)
    (self.run.folder / 'summary.txt').write_text(f'{screen}\n{table}')
    self.terminal.print(f'{table}\n{screen}' if verbose else screen)

  def end_screen(self, metrics: Mapping[str, float]) -> None:
    """Prints the outcome of the run and the next commands."""
    if self.run.processes.first:
      self.terminal.print(end_screen(self.run, metrics, self._seconds(), self.terminal.width))

  def step(self, step: int, sums: StepSums, count: int, log: bool) -> None:
    """Takes a step's sums and how many units it worked on; `log` ends an interval.

    Raises:
      Fault, Spike: see `Faults`.
    """
    self.current.steps.append((step, sums))
    self.current.units += count
    self.terminal.step(step)
    if self.late is not None:
      # Python may be far ahead of the device: an interval ends when the device is done.
      self.late[1].look()
    if log:
      # The interval before this one is surely done: reading it does not wait for the device.
      self._write_late()
      self.late, self.current = (step, self.current), Interval(self.faults)

  def _write_late(self) -> None:
    if self.late is None:
      return
    (step, interval), self.late = self.late, None
    totals = interval.totals()
    done = interval.done or time.monotonic()
    metrics = self.run.task.summarise(totals)
    metrics['learning_rate'] = self._learning_rate(step)
    metrics[f'{self.run.task.unit}_per_second'] = interval.units / (done - self.clock)
    self._write(step, 'train', metrics, done)
    self.clock = done

  def _learning_rate(self, step: int) -> float:
    """The rate of a step, computed on the CPU: the device would finish its other work first."""
    with jax.default_device(jax.local_devices(backend='cpu')[0]):
      return float(jax.device_get(self.schedule(step - 1)))

  def _write(self, step: int, split: str, metrics: Mapping[str, Any], at: float) -> None:
    for writer in self.writers:
      writer.write(step, split, metrics)
    self.timing.write(step, split, {'seconds': round(at - self.began, 3)})

  def _seconds(self) -> float:
    return time.monotonic() - self.began

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Writes what is late; what happens inside does not count as training time."""
    self._write_late()
    jax.block_until_ready(self.current.steps[-1:])
    before = time.monotonic()
    yield
    self.clock += time.monotonic() - before

  def saved(self, step: int, seconds: float) -> None:
    """Notes how long the loop stood still for a checkpoint."""
    waited = {'waited': round(seconds, 3)}
    self.timing.write(step, 'checkpoint', {'seconds': round(self._seconds(), 3)} | waited)
    self.board.write(step, 'checkpoint', waited)

  def state(self) -> dict[str, Any]:
    """What a checkpoint keeps: the sums of the interval under way, the seconds so far."""
    interval = self.current.totals()
    return {'interval': interval, 'seconds': self._seconds(), 'faults': self.faults.state()}

  def evaluation(self, step: int, found: Evaluation) -> None:
    """Writes an evaluation's metrics, and shows some of what the model generated."""
    self._write(step, 'eval', {**found.metrics, **self.run.weights}, time.monotonic())
    for sample in found.samples:
      self.samples.write(step, 'eval', sample)
    for sample in found.samples[:3]:
      self.terminal.print(sample_text(sample, self.terminal.width))
