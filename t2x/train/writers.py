"""Where metrics go: a file of JSON lines, TensorBoard, the terminal, Weights & Biases."""

import contextlib
import json
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from t2x.errors import UserError
from t2x.files import write_whole
from t2x.signals import asked_to_stop
from t2x.terminal import console

log = logging.getLogger('t2x')

# Seconds between two flushes of TensorBoard's event file.
FLUSH_SECONDS = 10.0
# Returns the name of the current wait and its seconds so far, or None.
Waiting = Callable[[], tuple[str, float] | None]


@runtime_checkable
class MetricWriter(Protocol):
  """What the loop hands metrics to."""

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Takes the metrics of a split ('train', 'eval', ...) after `step` optimizer steps."""

  def close(self) -> None:
    """Writes what is left."""


class Silent:
  """Writes and shows nothing: what a process has that is not the first of its run."""

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Drops the metrics."""

  width = 80

  def watch(self, waiting: Waiting) -> None:
    """Shows nothing."""

  def step(self, step: int) -> None:
    """Shows nothing."""

  def print(self, text: str) -> None:
    """Shows nothing."""

  def close(self) -> None:
    """Has nothing to close."""


class JsonLines:
  """One JSON object a line, flushed: step, split, and the metrics. What is not finite is null.

  Args:
    path: the file; made when missing.
    after: the step that a resumed run starts from: lines of later steps, and a last line cut off
      by a kill, are dropped, so that the file ends as that of an uninterrupted run. None keeps all.
  """

  def __init__(self, path: Path | str, after: int | None = None):
    self.path = Path(path)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self.truncate_after(after)
    self._file: IO[str] = self.path.open('a', encoding='utf-8')

  def truncate_after(self, step: int | None) -> None:
    """Drops lines of steps after `step`, and what is no whole line."""
    if not self.path.exists():
      return
    with self.path.open('rb') as file:
      lines = list(file)
    kept = [line for line in lines if _keep(line, step)]
    if kept != lines:
      write_whole(self.path, b''.join(kept))

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Adds a line.

    Raises:
      UserError: the disk is full, or gone.
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
        f'{self.path} cannot be written: {error.strerror}; make room, then run the same command '
        'again to go on from the last checkpoint',
        exit_code=1,
      ) from error

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def _keep(line: bytes, step: int | None) -> bool:
  try:
    return line.endswith(b'\n') and (step is None or json.loads(line)['step'] <= step)
  except (ValueError, KeyError, TypeError):
    return False


def json_value(value: Any) -> Any:
  """Converts a metric for JSON; a number that is not finite becomes None."""
  if isinstance(value, str | bool | int | None):
    return value
  if isinstance(value, list | tuple | Mapping):
    return value
  value = float(value)
  return value if math.isfinite(value) else None


class TensorBoard:
  """TensorBoard events under `folder`/tensorboard, one chart per metric and split.

  Uses tensorboardX's record writer, but not the thread and queue of its `SummaryWriter`: on a full
  disk that thread dies, and the queue then blocks its caller. Here the error is logged once, and no
  more points are written.

  Args:
    folder: the run folder.
    after: the step that a resumed run starts from; TensorBoard hides what was written after it.
  """

  def __init__(self, folder: Path | str, after: int | None = None):
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import RecordWriter

    self._event = Event
    # With nanoseconds: a process may write two files in one second.
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
    """Adds a point to each chart; text is left out."""
    from tensorboardX.summary import scalar

    self._write(
      self._event(wall_time=time.time(), step=step, summary=scalar(f'{split}/{name}', float(value)))
      for name, value in metrics.items()
      if not isinstance(value, str | None)
    )

  def _write(self, events: Iterable[Any]) -> None:
    if self._records is None:
      return
    try:
      for event in events:
        self._records.write(event.SerializeToString())
      # Flushing includes an fsync, which may wait for a checkpoint that is being written.
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


class WandB:
  """Weights & Biases; needs the extra `wandb`. A resumed run goes on as the same one there.

  Args:
    folder: the run folder, whose name the run gets.
    project: the project.
    entity: the user or team; None: your default.
    name: another name for the run.
    mode: 'online', 'offline' or 'disabled'.

  Raises:
    UserError: the package is not installed.
  """

  def __init__(
    self,
    folder: Path | str,
    *,
    project: str = 't2x',
    entity: str | None = None,
    name: str | None = None,
    mode: str = 'online',
  ):
    try:
      import wandb
    except ImportError as error:
      message = "WandB needs the package wandb: pip install 't2x[wandb]'"
      raise UserError(message) from error
    folder = Path(folder)
    kept = folder / 'wandb_id'
    run_id = kept.read_text().strip() if kept.exists() else os.urandom(8).hex()
    kept.write_text(run_id)
    self._run = wandb.init(
      project=project,
      entity=entity,
      name=name or folder.name,
      dir=str(folder),
      mode=mode,
      id=run_id,
      resume='allow',
    )

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Logs the metrics as `split`/name."""
    self._run.log({f'{split}/{name}': value for name, value in metrics.items()}, step=step)

  def close(self) -> None:
    """Marks the run as finished."""
    self._run.finish()


class Terminal:
  """The live line on stderr: step, loss, speed, time left. Plain lines where stderr is no terminal.

  Args:
    num_steps: steps of the whole run.
    start: the step it starts from.
    unit: what speed counts: 'tokens' or 'examples'.
    every: seconds at least between two plain train lines.
    file: another stream than stderr.
  """

  def __init__(
    self,
    num_steps: int,
    start: int = 0,
    unit: str = 'tokens',
    *,
    every: float = 10.0,
    file: Any = None,
  ):
    self.num_steps, self.unit, self.every = num_steps, unit, every
    self._step, self._first = start, (start, 0.0)
    self._about = self._left = ''
    self._printed = -math.inf
    self._stopping = asked_to_stop()
    self._waiting: Waiting = lambda: None
    # Streams are looked up when used: a test or a notebook may have replaced them.
    self._file = file
    self._console = console() if file is None else Console(file=file, highlight=False)
    self._live: Live | None = None
    if self._console.is_terminal and not self._console.is_dumb_terminal:
      self._live = Live(
        get_renderable=self._line,
        console=self._console,
        transient=True,
        refresh_per_second=2,
        redirect_stdout=file is None,
        redirect_stderr=file is None,
      )
      self._live.start()

  @property
  def width(self) -> int:
    """Columns of text: those of the terminal, between 60 and 100."""
    return min(max(self._console.width, 60), 100)

  def watch(self, waiting: Waiting) -> None:
    """Shows the current wait on the live line."""
    self._waiting = waiting

  def step(self, step: int) -> None:
    """A step has been handed to the device."""
    now = time.monotonic()
    if not self._first[1]:
      self._first = step, now  # The first step compiles: time left is reckoned from its end.
    self._step, self._left = step, self._time_left(step, now)

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Train metrics go to the live line, all others above it."""
    if split != 'train':
      items = [f'{name} {in_short(value)}' for name, value in metrics.items()]
      self.print(wrap(f'step {step} {split}: ', items, self.width))
      return
    rate = metrics.get(f'{self.unit}_per_second')
    self._about = f'loss {metrics.get("loss", math.nan):.4f}'
    if rate is not None:
      self._about += f'  {rate:,.0f} {self.unit}/s'
    now = time.monotonic()
    if self._live is None and (now - self._printed >= self.every or step == self.num_steps):
      self._printed = now
      left = f'  {self._left} left' if step < self.num_steps and self._left else ''
      self.print(f'step {step}/{self.num_steps}  {self._about}{left}')

  def _line(self) -> Table:
    """Returns the live line: step, bar, loss and speed, current wait or time left."""
    head = f'step {self._step}/{self.num_steps}'
    waiting = self._waiting()
    items = [self._about]
    if waiting is not None and waiting[1] >= 1.0:
      items.append(f'{waiting[0]} ({clock(waiting[1])})')
    elif self._left:
      items.append(f'{self._left} left')
    if self._stopping():
      items.append('interrupted: stops when saved')
    tail = '  '.join(filter(None, items))
    # Room for the ^C that the terminal echoes: the line must not wrap.
    room = self._console.width - len(head) - len(tail) - 2 - len('^C^C')
    bar = ProgressBar(self.num_steps, self._step, width=min(room, 20)) if room >= 5 else ''
    line = Table.grid(padding=(0, 1))
    line.add_row(Text(head), bar, Text(tail, no_wrap=True, overflow='ellipsis'))
    return line

  def _time_left(self, step: int, now: float) -> str:
    first, since = self._first
    if step <= first or step >= self.num_steps:
      return ''
    return clock((now - since) / (step - first) * (self.num_steps - step))

  def print(self, text: str) -> None:
    """Text above the live line."""
    print(text, file=self._file or sys.stderr, flush=True)

  def close(self) -> None:
    """Ends the live line."""
    if self._live is not None:
      self._live.stop()
      self._live = None


def in_short(value: Any) -> str:
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
