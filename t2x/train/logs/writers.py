"""Metric writers: JSON lines, TensorBoard, the terminal."""

import contextlib
import dataclasses
import io
import json
import logging
import math
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from t2x.base.errors import UserError
from t2x.base.files import write_atomically
from t2x.base.signals import stop_flag
from t2x.base.terminal import console

log = logging.getLogger('t2x')

# File in a run folder with the values of each example in the last evaluation.
EXAMPLES = 'examples.npz'
# Seconds between two flushes of TensorBoard's event file.
FLUSH_SECONDS = 10.0
# Returns the current activity of the loop and its seconds so far, or None.
Waiting = Callable[[], tuple[str, float] | None]


@runtime_checkable
class MetricWriter(Protocol):
  """Receives the metrics of a run."""

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Writes the metrics of a split ('train', 'eval', ...) after `step` optimizer steps."""

  def close(self) -> None:
    """Writes buffered metrics and closes the writer."""


class Silent:
  """Writer and terminal without output, for all processes of a run except the first."""

  width = 80

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    pass

  def text(self, step: int, name: str, text: str) -> None:
    pass

  def image(self, step: int, name: str, image: np.ndarray) -> None:
    pass

  def watch(self, waiting: Waiting) -> None:
    pass

  def step(self, step: int) -> None:
    pass

  def print(self, text: str, *, always: bool = False) -> None:
    pass

  def close(self) -> None:
    pass


class JsonLines:
  """Writes one JSON object per line: step, split and metrics. Values that are not finite become null.

  Each line is flushed.

  Args:
    path: the file; created if it does not exist.
    after: step from which a run resumes. Lines of later steps and an incomplete last line are removed, so
      that the file becomes equal to that of an uninterrupted run. None keeps all complete lines.
    repeated: a split of the step `after` whose line is removed, too, because it will be written again.
  """

  def __init__(self, path: Path | str, after: int | None = None, repeated: str | None = None):
    self.path = Path(path)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    if self.path.exists():
      lines = self.path.read_bytes().splitlines(keepends=True)
      retained = [line for line in lines if _keep(line, after, repeated)]
      if retained != lines:
        write_atomically(self.path, b''.join(retained))
    self._file: IO[str] = self.path.open('a', encoding='utf-8')

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Appends a line.

    Raises:
      UserError: the file cannot be written, for example because the disk is full.
    """
    values = {name: json_value(value) for name, value in metrics.items()}
    line = json.dumps({'step': int(step), 'split': split} | values, ensure_ascii=False)
    try:
      self._file.write(line + '\n')
      self._file.flush()
    except OSError as error:
      with contextlib.suppress(OSError):
        self._file.close()
      raise UserError(
        f'{self.path} cannot be written: {error.strerror}; free disk space, then run the same command to '
        'resume from the last checkpoint',
        exit_code=1,
      ) from error

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def _keep(line: bytes, after: int | None, repeated: str | None) -> bool:
  try:
    fields = json.loads(line) if line.endswith(b'\n') else {}
    if after is None:
      return bool(fields)
    return fields['step'] <= after and (fields['step'], fields['split']) != (after, repeated)
  except (ValueError, KeyError, TypeError):
    return False


def write_examples(folder: Path, examples: Mapping[str, np.ndarray]) -> None:
  """Writes the values of each example by metric (`Evaluation.examples`) to a run folder."""
  file = io.BytesIO()
  arrays: dict[str, Any] = {name: _stored(name, values) for name, values in examples.items()}
  np.savez_compressed(file, **arrays)
  write_atomically(folder / EXAMPLES, file.getvalue())


def _stored(name: str, values: np.ndarray) -> np.ndarray:
  """Returns texts as they are, labels and predictions as integers, and metrics as float32."""
  if values.dtype.kind == 'U':
    return values
  return values.astype(np.int32 if name.endswith(('label', 'prediction')) else np.float32)


def json_value(value: Any) -> Any:
  """Converts a metric for JSON; a number that is not finite becomes None."""
  if isinstance(value, str | bool | int | None):
    return value
  if isinstance(value, list | tuple | Mapping):
    return value
  value = float(value)
  return value if math.isfinite(value) else None


class TensorBoard:
  """Writes TensorBoard events to `folder`/tensorboard, one chart per metric and split.

  Uses the record writer of tensorboardX without the thread and queue of its `SummaryWriter`: on a full
  disk that thread ends, and the queue then blocks its caller. Here the error is logged once and writing
  stops.

  Args:
    folder: the run folder.
    after: step from which a run resumes; TensorBoard hides earlier events of later steps.
  """

  def __init__(self, folder: Path | str, after: int | None = None):
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import RecordWriter

    self._event = Event
    # Nanoseconds, because a process may write two files in one second.
    name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}'
    path = Path(folder) / 'tensorboard' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    self._records: RecordWriter | None = RecordWriter(str(path))
    self._flushed = -math.inf
    events = [Event(wall_time=time.time(), file_version='brain.Event:2')]
    if after:
      log_of_start = SessionLog(status=SessionLog.START)
      events.append(Event(wall_time=time.time(), step=after + 1, session_log=log_of_start))
    self._write(events)

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Adds a point to each chart; ignores texts."""
    from tensorboardX.summary import scalar

    self._write(
      self._event(wall_time=time.time(), step=step, summary=scalar(f'{split}/{name}', float(value)))
      for name, value in metrics.items()
      if not isinstance(value, str | None)
    )

  def text(self, step: int, name: str, text: str) -> None:
    """Adds a text, which TensorBoard shows as Markdown."""
    from tensorboardX.summary import text as text_summary

    self._write([self._event(wall_time=time.time(), step=step, summary=text_summary(name, text))])

  def image(self, step: int, name: str, image: np.ndarray) -> None:
    """Adds an image, uint8 [height, width, 3]."""
    from tensorboardX.summary import image as image_summary

    summary = image_summary(name, image, dataformats='HWC')
    self._write([self._event(wall_time=time.time(), step=step, summary=summary)])

  def _write(self, events: Iterable[Any]) -> None:
    if self._records is None:
      return
    try:
      for event in events:
        self._records.write(event.SerializeToString())
      # Flushing includes an fsync, which may wait until a checkpoint is written.
      if time.monotonic() - self._flushed >= FLUSH_SECONDS:
        self._records.flush()
        self._flushed = time.monotonic()
    except OSError as error:
      log.warning('%s: %s; no more points for TensorBoard', self._records.path, error.strerror)
      with contextlib.suppress(OSError):
        self._records.close()
      self._records = None

  def close(self) -> None:
    """Flushes and closes the event file."""
    self._flushed = -math.inf
    self._write(())
    if self._records is not None:
      self._records.close()
      self._records = None


class _Status(ProgressColumn):
  """The text of a function, on a line that is not wrapped."""

  def __init__(self, text: Callable[[Task], str]):
    super().__init__(Column(no_wrap=True))
    self._text = text

  def render(self, task: Task) -> Text:
    return Text(self._text(task), no_wrap=True, overflow='ellipsis')


@dataclasses.dataclass
class _Narrow:
  """A line with space for the ^C that the terminal echoes: it must not wrap."""

  line: RenderableType

  def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Any]:
    return console.render(self.line, options.update_width(options.max_width - len('^C^C')))


class _LiveLine(Progress):
  def get_renderables(self) -> Iterable[Any]:
    return map(_Narrow, super().get_renderables())


class Terminal:
  """Shows step, loss, speed and remaining time on a live line of stderr.

  Prints plain lines if stderr is not a terminal.

  Args:
    num_steps: last step of the run.
    start: step of the checkpoint that the run starts from.
    unit: unit of the speed, 'tokens' or 'examples'.
    every: minimum seconds between two plain train lines.
    file: output stream; None for stderr.
    quiet: shows no live line, and writes texts to the log file only, except results and warnings.
  """

  def __init__(
    self,
    num_steps: int,
    start: int = 0,
    unit: str = 'tokens',
    *,
    every: float = 10.0,
    file: IO[str] | None = None,
    quiet: bool = False,
  ):
    self.num_steps, self.unit, self.every = num_steps, unit, every
    self._metrics_text = self._train_line = ''
    self._printed = -math.inf
    self._stopping = stop_flag()
    self._waiting: Waiting = lambda: None
    # sys.stderr is read at each use: a test or a notebook may replace it.
    self._file = file
    self._console = console() if file is None else Console(file=file, highlight=False)
    self._quiet = quiet
    self._live = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet
    self._progress = _LiveLine(
      TextColumn('step {task.completed}/{task.total}'),
      BarColumn(None, table_column=Column(max_width=20)),
      _Status(self._status),
      console=self._console,
      transient=True,
      refresh_per_second=2,
      speed_estimate_period=math.inf,
      redirect_stdout=file is None,
      redirect_stderr=file is None,
      disable=not self._live,
    )
    # The first step compiles: the estimated time starts after it.
    self._task = self._progress.add_task('', total=num_steps, completed=start)
    self._progress.start()

  @property
  def width(self) -> int:
    """Width of texts in columns: that of the terminal, but at least 60 and at most 100."""
    return min(max(self._console.width, 60), 100)

  def watch(self, waiting: Waiting) -> None:
    """Shows activities longer than a second, as returned by `waiting`, on the live line."""
    self._waiting = waiting

  def step(self, step: int) -> None:
    """Shows the number of a step that was dispatched to the device."""
    self._progress.update(self._task, completed=step)

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Shows train metrics on the live line and prints all other metrics above it.

    Train metrics are printed, too, before those of an evaluation and after the last step; without a live line also
    every `every` seconds.
    """
    if split != 'train':
      self._print_train()
      items = [f'{name} {format_value(value)}' for name, value in metrics.items()]
      self.print(wrap(f'step {step} {split}: ', items, self.width))
      return
    rate = metrics.get(f'{self.unit}_per_second')
    self._metrics_text = f'loss {metrics.get("loss", math.nan):.4f}'
    if rate is not None:
      self._metrics_text += f'  {rate:,.0f} {self.unit}/s'
    if 'mfu' in metrics:
      self._metrics_text += f'  MFU {metrics["mfu"]:.1%}'
    if self._live:
      self._train_line = f'step {step} train: {self._metrics_text}'
    else:
      items = [self._metrics_text, *_remaining(self._progress.tasks[0])]
      self._train_line = f'step {step}/{self.num_steps}  {"  ".join(items)}'
    is_due = not self._live and time.monotonic() - self._printed >= self.every
    if is_due or step == self.num_steps:
      self._print_train()

  def _print_train(self) -> None:
    """Prints the last train metrics, unless they are printed already."""
    if self._train_line:
      self.print(self._train_line)
      self._train_line, self._printed = '', time.monotonic()

  def _status(self, task: Task) -> str:
    """Returns loss and speed, and the current activity or the remaining time."""
    items, waiting = [self._metrics_text], self._waiting()
    if waiting is not None and waiting[1] >= 1.0:
      items.append(f'{waiting[0]} ({clock(waiting[1])})')
    else:
      items += _remaining(task)
    if self._stopping():
      items.append('interrupted: saving and stopping')
    return '  '.join(filter(None, items))

  def print(self, text: str, *, always: bool = False) -> None:
    """Prints a text above the live line; if quiet, only what is `always` printed."""
    if self._quiet and not always:
      log.debug(text)
      return
    print(text, file=self._file or sys.stderr, flush=True)

  def close(self) -> None:
    """Removes the live line."""
    self._progress.stop()


def _remaining(task: Task) -> list[str]:
  """Returns the remaining time of a task as an item of a line; [] if it is unknown or has passed."""
  return [f'{clock(task.time_remaining)} left'] if task.time_remaining else []


def format_value(value: str | float | None) -> str:
  """Formats a metric with four digits, large numbers with thousands separators."""
  if value is None or isinstance(value, str):
    return str(value)
  return f'{value:,.0f}' if 1e4 <= abs(value) < 1e10 else f'{value:.4g}'


def wrap(head: str, items: Sequence[str], width: int) -> str:
  """Joins a head and items, wrapped between items; further lines are indented by two."""
  lines, line = [], head
  for item in items:
    if line.strip() and len(line) + len(item) > width and line != head:
      lines.append(line.rstrip())
      line = '  '
    line += f'{item}  '
  return '\n'.join([*lines, line.rstrip()])


def clock(seconds: float) -> str:
  """Formats seconds as 0:05 or 1:02:03."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{seconds:02}' if hours else f'{minutes}:{seconds:02}'
