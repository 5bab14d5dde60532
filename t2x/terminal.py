"""The terminal of a long command: what is printed stands above live displays, is kept in a log file, and
a terminal that is gone ends nothing."""

import contextlib
import datetime
import io
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.file_proxy import FileProxy

from t2x.errors import UserError

__all__ = ['LogHandler', 'console', 'last_words', 'logged', 'wrapped']

_ESCAPES = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
# Carriage return, erase the line, show the cursor.
_CLEAR = '\r\x1b[2K\x1b[?25h'


class _Stream(io.TextIOBase):
  """A text stream whose reader may vanish: what cannot be written is dropped."""

  def __init__(self, stream: Any):
    # A stream that was closed before the start is None.
    self.stream = stream or open(os.devnull, 'w')  # noqa: SIM115

  def write(self, text: str) -> int:
    try:
      self.stream.write(text)
    except UnicodeEncodeError:
      self.stream.write(text.encode('ascii', 'backslashreplace').decode())
    except BlockingIOError:
      pass  # A slow reader of a stream that does not block: it may read on later.
    except (OSError, ValueError):
      self._discard()
    return len(text)

  def flush(self) -> None:
    try:
      self.stream.flush()
    except BlockingIOError:
      pass
    except (OSError, ValueError):
      self._discard()

  def _discard(self) -> None:
    """Sends the rest to /dev/null, also what native code writes and what is still in buffers."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
      os.dup2(null, self.stream.fileno())
    except (OSError, ValueError):
      self.stream = open(os.devnull, 'w')  # noqa: SIM115
    finally:
      os.close(null)

  def fileno(self) -> int:
    return self.stream.fileno()

  def isatty(self) -> bool:
    try:
      return self.stream.isatty()
    except ValueError:
      return False

  @property
  def encoding(self) -> str:  # type: ignore[override]
    return self.stream.encoding or 'utf-8'

  def __getattr__(self, name: str) -> Any:
    return getattr(self.stream, name)


class _Console(Console):
  """Counts the live displays (progress bars) that are shown."""

  num_lives = 0

  def set_live(self, live: Any) -> bool:
    self.num_lives += 1
    return super().set_live(live)

  def clear_live(self) -> None:
    self.num_lives -= 1
    super().clear_live()


class _Lines:
  """Cuts what is written into lines; of a line that is written over, the last state counts."""

  def __init__(self):
    self._rest, self._lock = '', threading.Lock()

  def add(self, text: str) -> list[str]:
    """The lines that `text` completes."""
    with self._lock:
      *lines, rest = (self._rest + text).split('\n')
      self._rest = rest.rpartition('\r')[2]
    return [line.rstrip('\r').rpartition('\r')[2] for line in lines]

  def take(self) -> str:
    """What is left of a line that has not ended."""
    with self._lock:
      rest, self._rest = self._rest, ''
    return rest


class _LogFile:
  """Lines with their times, appended to a file. A file that cannot be written ends nothing."""

  def __init__(self, path: Path):
    self._file: TextIO | None = path.open('a', encoding='utf-8', buffering=1)

  def write(self, line: str) -> None:
    line = _ESCAPES.sub('', line).rstrip()
    if self._file is None or not line:
      return
    now = datetime.datetime.now().isoformat(' ', 'seconds')
    try:
      self._file.write(f'{now}  {line}\n')
    except (
      OSError,
      ValueError,
      RuntimeError,
    ):  # RuntimeError: from a signal's handler, amid a write.
      self.close()

  def close(self) -> None:
    if self._file is not None:
      with contextlib.suppress(OSError, ValueError):
        self._file.close()
      self._file = None


class _Output(FileProxy):
  """Stands for sys.stdout or sys.stderr: lines go above a live display, and to a log file."""

  def __init__(self, shared: _Console, stream: Any):
    super().__init__(shared, stream)
    self.console, self.stream = shared, stream
    self.log: _LogFile | None = None
    self._shown, self._logged = _Lines(), _Lines()

  def write(self, text: str) -> int:
    if self.log is not None:
      for line in self._logged.add(text):
        self.log.write(line)
    if self._has_live_display():
      for line in self._shown.add(text):
        self.console.out(line, highlight=False)
    else:
      self.stream.write(self._shown.take() + text)
    return len(text)

  @property
  def encoding(self) -> str:  # type: ignore[override]
    return self.stream.encoding

  def _has_live_display(self) -> bool:
    mine = self.console.file is self.stream or self.stream.isatty()
    return self.console.num_lives > 0 and mine

  def flush(self) -> None:
    # What is left of a line is held while a live display follows it.
    self.stream.flush()


class LogHandler(logging.StreamHandler):
  """Writes to what sys.stderr is at the time, from level INFO on."""

  def __init__(self):
    logging.Handler.__init__(self, logging.INFO)

  @property
  def stream(self) -> Any:
    return sys.stderr


class _DebugHandler(logging.Handler):
  """Writes to a log file what the terminal does not show."""

  def __init__(self, log: _LogFile):
    super().__init__(logging.DEBUG)
    self.log = log

  def emit(self, record: logging.LogRecord) -> None:
    if record.levelno >= logging.INFO:
      return
    try:
      for line in self.format(record).splitlines():
        self.log.write(line)
    except Exception:
      self.handleError(record)


@contextlib.contextmanager
def wrapped() -> Iterator[None]:
  """Replaces sys.stdout and sys.stderr, until the end of the context.

  Writing to them never raises. While a live display of `console()` is shown, what they are given is
  written above it, line by line.
  """
  if isinstance(sys.stderr, _Output):
    yield
    return
  _open_standard_files()
  before = sys.stdout, sys.stderr
  stdout, stderr = (cast(Any, _Stream(stream)) for stream in before)
  shared = _Console(file=stderr, highlight=False)
  outputs = _Output(shared, stdout), _Output(shared, stderr)
  sys.stdout, sys.stderr = outputs
  try:
    yield
  finally:
    for output in outputs:
      output.write('')  # A line that has not ended.
      output.flush()
    sys.stdout, sys.stderr = before


def _open_standard_files() -> None:
  """Opens /dev/null where stdin, stdout or stderr are closed: no other file may take their numbers."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
  """Appends to a file, with times, what is printed, the debug lines of t2x, and the error at the end."""
  logger = logging.getLogger('t2x')
  level, log = logger.level, _LogFile(path)
  handler = _DebugHandler(log)
  with wrapped():
    outputs = [one for one in (sys.stdout, sys.stderr) if isinstance(one, _Output)]
    for output in outputs:
      output.log = log
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
      yield
    except BaseException as error:
      is_expected = isinstance(error, UserError)
      text = str(error) if is_expected else ''.join(traceback.format_exception(error))
      for line in text.splitlines():
        log.write(line)
      raise
    finally:
      logger.removeHandler(handler)
      logger.setLevel(level)
      for output in outputs:
        output.log = None
      log.close()


def console() -> Console:
  """The console of stderr that live displays and log lines share."""
  if isinstance(sys.stderr, _Output):
    return sys.stderr.console
  return Console(stderr=True, highlight=False)


def last_words(text: str) -> None:
  """Writes a line to stderr without locks, in place of a live display, just before `os._exit`.

  May be called by a signal's handler and by any thread.
  """
  output = sys.stderr
  if not isinstance(output, _Output):
    print(text, file=sys.stderr, flush=True)
    return
  if output.log is not None:
    output.log.write(text)
  is_live = output.console.num_lives > 0 and output.stream.isatty()
  with contextlib.suppress(OSError, ValueError):
    os.write(output.stream.fileno(), f'{_CLEAR if is_live else ""}{text}\n'.encode())
