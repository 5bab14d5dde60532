"""Standard streams of long-running commands.

Printed lines appear above live displays and are copied to a log file. Write errors, such as those of a closed
terminal or pipe, are ignored.
"""

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
from rich.live import Live

from t2x.base.errors import UserError

_ESCAPES = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
_ERASE_LINE, _LINE_UP, _SHOW_CURSOR = '\r\x1b[2K', '\x1b[1A', '\x1b[?25h'


class _Stream(io.TextIOBase):
  """A text stream that ignores write errors, such as those of a closed pipe or terminal."""

  def __init__(self, stream: TextIO):
    # Python sets a stream to None if it is closed at startup.
    self.stream = stream or open(os.devnull, 'w')  # noqa: SIM115

  def write(self, text: str) -> int:
    with self._errors_ignored():
      try:
        self.stream.write(text)
      except UnicodeEncodeError:
        self.stream.write(text.encode('ascii', 'backslashreplace').decode())
    return len(text)

  def flush(self) -> None:
    with self._errors_ignored():
      self.stream.flush()

  @contextlib.contextmanager
  def _errors_ignored(self) -> Iterator[None]:
    try:
      yield
    except BlockingIOError:
      pass  # A full pipe in non-blocking mode: later writes may succeed.
    except (OSError, ValueError):
      self._discard()

  def _discard(self) -> None:
    """Redirects the file descriptor to /dev/null, also for native code and buffered text."""
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

  @property
  def errors(self) -> str | None:  # type: ignore[override]
    return self.stream.errors

  @property
  def buffer(self) -> Any:
    """The underlying binary stream."""
    return self.stream.buffer

  def reconfigure(self, **settings: Any) -> None:
    """Changes settings of the stream, as `io.TextIOWrapper.reconfigure` does."""
    cast(io.TextIOWrapper, self.stream).reconfigure(**settings)


class _Console(Console):
  """A console that counts its active live displays (progress bars)."""

  num_lives = 0

  def set_live(self, live: Live) -> bool:
    self.num_lives += 1
    return super().set_live(live)

  def clear_live(self) -> None:
    self.num_lives -= 1
    super().clear_live()


class _Lines:
  """Splits written text into lines; a carriage return discards the line before it."""

  def __init__(self):
    self.rest, self._lock = '', threading.Lock()

  def add(self, text: str) -> list[str]:
    """Returns the lines that `text` completes."""
    with self._lock:
      *lines, rest = (self.rest + text).split('\n')
      self.rest = rest.rpartition('\r')[2]
    return [line.rstrip('\r').rpartition('\r')[2] for line in lines]


class _LogFile(logging.Handler):
  """Appends lines with timestamps to a file, and records that the terminal does not show.

  It is closed after a write error and ignores further lines.
  """

  def __init__(self, path: Path):
    super().__init__(logging.DEBUG)
    self._file: TextIO | None = path.open('a', encoding='utf-8', buffering=1)

  def emit(self, record: logging.LogRecord) -> None:
    if record.levelno < LogHandler.least:
      try:
        self.write(self.format(record))
      except Exception:
        self.handleError(record)

  def write(self, text: str) -> None:
    now = datetime.datetime.now().isoformat(' ', 'seconds')
    for line in map(str.rstrip, _ESCAPES.sub('', text).split('\n')):
      try:
        if self._file is not None and line:
          self._file.write(f'{now}  {line}\n')
      except (OSError, ValueError, RuntimeError):
        # RuntimeError: a signal handler writes while the main thread is writing.
        self.close()

  def close(self) -> None:
    if self._file is not None:
      with contextlib.suppress(OSError, ValueError):
        self._file.close()
      self._file = None


class _Output(FileProxy):
  """Replacement of sys.stdout or sys.stderr that writes lines above a live display and to a log file."""

  def __init__(self, shared: _Console, stream: TextIO):
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
      rest, self._shown.rest = self._shown.rest, ''
      self.stream.write(rest + text)
    return len(text)

  @property
  def encoding(self) -> str:  # type: ignore[override]
    return self.stream.encoding

  def _has_live_display(self) -> bool:
    is_displayed = self.console.file is self.stream or self.stream.isatty()
    return self.console.num_lives > 0 and is_displayed

  def flush(self) -> None:
    # An incomplete line is held back while a live display is active.
    self.stream.flush()


class LogHandler(logging.StreamHandler):
  """Writes records of level `least` and above to the current sys.stderr.

  Attributes:
    least: of all handlers; WARNING if a command is quiet.
  """

  least = logging.INFO

  def __init__(self):
    logging.Handler.__init__(self, logging.INFO)

  def emit(self, record: logging.LogRecord) -> None:
    if record.levelno >= self.least:
      super().emit(record)

  @property
  def stream(self) -> Any:
    return sys.stderr


@contextlib.contextmanager
def wrap_streams() -> Iterator[None]:
  """Replaces sys.stdout and sys.stderr inside the context.

  Writing to them never raises. Lines are written above an active live display of `console()`.
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
      output.write('')  # Writes an incomplete line.
      output.flush()
    sys.stdout, sys.stderr = before


def _open_standard_files() -> None:
  """Opens /dev/null for closed standard streams, so that no other file gets their file descriptors."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
  """Appends printed lines, debug records of t2x and the final error to a file, with timestamps."""
  logger = logging.getLogger('t2x')
  level, log = logger.level, _LogFile(path)
  with wrap_streams():
    outputs = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, _Output)]
    for output in outputs:
      output.log = log
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    try:
      yield
    except BaseException as error:
      is_expected = isinstance(error, UserError)
      log.write(str(error) if is_expected else ''.join(traceback.format_exception(error)))
      raise
    finally:
      logger.removeHandler(log)
      logger.setLevel(level)
      for output in outputs:
        output.log = None
      log.close()


def console() -> Console:
  """Returns the console of sys.stderr, which all live displays use."""
  if isinstance(sys.stderr, _Output):
    return sys.stderr.console
  return Console(stderr=True, highlight=False)


def print_final_line(text: str) -> None:
  """Erases live displays and writes a line to stderr, without locks, before `os._exit`.

  Safe to call in signal handlers and in any thread.
  """
  output = sys.stderr
  if not isinstance(output, _Output):
    print(text, file=sys.stderr, flush=True)
    return
  if output.log is not None:
    output.log.write(text)
  clear = ''
  if output.console.num_lives > 0 and output.stream.isatty():
    # Each live display has one line.
    clear = _LINE_UP.join([_ERASE_LINE] * output.console.num_lives) + _SHOW_CURSOR
  with contextlib.suppress(OSError, ValueError):
    os.write(output.stream.fileno(), f'{clear}{text}\n'.encode())
