"""Where metrics go: a file of JSON lines, TensorBoard, the terminal, Weights & Biases."""

import contextlib
import json
import logging
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from t2x.errors import UserError
from t2x.files import write_whole

__all__ = ['JsonLines', 'MetricWriter', 'Silent', 'TensorBoard', 'Terminal', 'WandB']

log = logging.getLogger('t2x')


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
    values = {name: _json_value(value) for name, value in metrics.items()}
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


def _json_value(value: Any) -> Any:
  if isinstance(value, str | bool | int | None):
    return value
  if isinstance(value, list | tuple | Mapping):
    return value
  value = float(value)
  return value if math.isfinite(value) else None


class TensorBoard:
  """TensorBoard events under `folder`/tensorboard, one chart a metric and split.

  Written at once, without the thread and queue of TensorBoard's own writers: on a disk that is full
  the thread dies, and the queue then blocks whoever fills it. Here that is told, once, and the
  charts end there.

  Args:
    folder: the run folder.
    after: the step that a resumed run starts from; TensorBoard hides what was written after it.
  """

  def __init__(self, folder: Path | str, after: int | None = None):
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    self._event = Event
    name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}'
    path = Path(folder) / 'tensorboard' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    self._file: IO[bytes] | None = path.open('ab', buffering=0)
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
    if self._file is None:
      return
    records = b''.join(_record(event.SerializeToString()) for event in events)
    try:
      written = self._file.write(records)
      if written < len(records):  # The rest says why.
        self._file.write(records[written:])
    except OSError as error:
      log.warning('%s: %s; no more points for TensorBoard', self._file.name, error.strerror)
      self.close()

  def close(self) -> None:
    """Closes the event file."""
    if self._file is not None:
      self._file.close()
      self._file = None


def _record(data: bytes) -> bytes:
  """A TFRecord: length, its checksum, data, its checksum."""
  from tensorboardX.record_writer import masked_crc32c

  size = struct.pack('<Q', len(data))
  sums = [struct.pack('<I', masked_crc32c(part)) for part in (size, data)]
  return size + sums[0] + data + sums[1]


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
  """The live line on stderr: step, loss, speed, time left. Plain lines where it is no terminal.

  Args:
    num_steps: steps of the whole run.
    start: the step it starts from.
    unit: what speed counts: 'tokens' or 'examples'.
    every: seconds at least between two plain train lines.
    file: another place than stderr.
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
    self._first: tuple[int, float] | None = None
    self._said = -math.inf
    # Streams are looked up when used: a test or a notebook may have replaced them.
    self._console = Console(file=file or sys.stderr, soft_wrap=True, highlight=False)
    self._progress: Progress | None = None
    self._task = TaskID(0)
    if self._console.is_terminal:
      columns = TextColumn('step {task.completed}/{task.total}'), BarColumn(20)
      text = TextColumn('{task.fields[about]}')
      self._progress = Progress(
        *columns, text, console=self._console, transient=True, refresh_per_second=2
      )
      self._task = self._progress.add_task('', total=num_steps, completed=start, about='')
      self._progress.start()
    self._about = ''

  def step(self, step: int) -> None:
    """A step has been handed to the device."""
    now = time.monotonic()
    if self._first is None:
      self._first = step, now  # The first step compiles: time left is reckoned from its end.
    if self._progress is not None and (now - self._said >= 0.5 or step == self.num_steps):
      self._said = now
      left = self._left(step)
      about = self._about + (f'  {left} left' if left else '')
      self._progress.update(self._task, completed=step, about=about)

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Train metrics go to the live line, all others above it."""
    told = '  '.join(
      f'{name} {value:.4g}'
      for name, value in metrics.items()
      if not isinstance(value, str | None) and not name.endswith('_per_second')
    )
    if split != 'train':
      self.print(f'step {step} {split}: {told}')
      return
    rate = metrics.get(f'{self.unit}_per_second')
    self._about = f'loss {metrics.get("loss", math.nan):.4f}'
    if rate is not None:
      self._about += f'  {rate:,.0f} {self.unit}/s'
    now = time.monotonic()
    if self._progress is None and (now - self._said >= self.every or step == self.num_steps):
      self._said = now
      left = self._left(step)
      self.print(
        f'step {step}/{self.num_steps}  {self._about}' + (f'  {left} left' if left else '')
      )

  def _left(self, step: int) -> str:
    if self._first is None or step <= self._first[0] or step >= self.num_steps:
      return ''
    seconds = (time.monotonic() - self._first[1]) / (step - self._first[0])
    minutes, seconds = divmod(round(seconds * (self.num_steps - step)), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{seconds:02}' if hours else f'{minutes}:{seconds:02}'

  def print(self, text: str) -> None:
    """Text above the live line."""
    self._console.print(text, markup=False)

  def close(self) -> None:
    """Ends the live line."""
    if self._progress is not None:
      self._progress.stop()
      self._progress = None
