"""A command in a pseudo-terminal, and what a person would see there."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence

import pyte


class PseudoTerminal(contextlib.AbstractContextManager):
  """Runs a command in a terminal of its own.

  Args:
    command: with its arguments.
    columns: of the terminal.
    environment: variables beside those of this process.
  """

  def __init__(
    self, command: Sequence[str], columns: int = 80, environment: Mapping[str, str] | None = None
  ):
    self.screen = pyte.Screen(columns, 200)
    self._stream = pyte.ByteStream(self.screen)
    self._master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 200, columns, 0, 0))
    settings = {'TERM': 'xterm-256color'} | dict(environment or {})
    variables = {name: os.environ[name] for name in os.environ if name not in ('COLUMNS', 'LINES')}
    # A program in between takes the terminal: to fork a process that has threads is not safe.
    take = (
      'import os, signal, sys; os.login_tty(int(sys.argv[1])); '
      # What runs the tests may ignore it.
      'signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[2], sys.argv[2:])'
    )
    self.process = subprocess.Popen(
      [sys.executable, '-c', take, str(slave), *command],
      env=variables | settings,
      pass_fds=[slave],
    )
    os.close(slave)

  def __exit__(self, *error: object) -> None:
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait()
    self.hang_up()

  @property
  def lines(self) -> list[str]:
    """What is on the screen, without the empty lines below."""
    text = '\n'.join(line.rstrip() for line in self.screen.display).rstrip()
    return text.splitlines()

  def read_until(self, seen: Callable[[list[str]], bool], seconds: float = 120.0) -> list[str]:
    """Reads what is written until the screen shows something, or the command ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      if select.select([self._master], [], [], 0.1)[0]:
        try:
          data = os.read(self._master, 1 << 16)
        except OSError:  # The other side is closed.
          break
        self._stream.feed(data)
      if seen(self.lines):
        return self.lines
    return self.lines

  def wait(self, seconds: float = 120.0) -> int:
    """Reads to the end. Returns the exit code."""
    self.read_until(lambda lines: False, seconds)
    return self.process.wait(timeout=10)

  def type(self, keys: bytes) -> None:
    """Types into the terminal: b'\\x03' is Ctrl-C."""
    os.write(self._master, keys)

  def hang_up(self) -> None:
    """Closes the terminal."""
    if self._master >= 0:
      os.close(self._master)
      self._master = -1
