"""What XLA and Gloo write to a run's stderr by themselves, turned into what a user can read.

A program of its own: it passes stdin on to stderr line by line, leaves out the chatter of
connections, and tells the abort that follows the loss of the coordinator in one line, where XLA
prints a stack trace.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

CHATTER = re.compile(
  r'^\[Gloo\] Rank|coordination_service(_agent)?\.cc:\d+\]|^The tasks have crashed|^RPC: /|^\s*$'
)
FATAL = 'Terminating process because the JAX distributed service detected fatal errors'


def filter_native_output() -> None:
  """Sends what native code writes to this process's stdout and stderr through the filter.

  Python's own `sys.stdout` and `sys.stderr` go where they went before.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  out, err = os.dup(1), os.dup(2)
  command = [sys.executable, '-I', '-S', __file__]
  child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err)
  assert child.stdin is not None
  for number in (1, 2):
    os.dup2(child.stdin.fileno(), number)
  child.stdin.close()
  sys.stdout = os.fdopen(out, 'w', buffering=1, encoding='utf-8', errors='backslashreplace')
  sys.stderr = os.fdopen(err, 'w', buffering=1, encoding='utf-8', errors='backslashreplace')


def translate(lines: Iterator[str], out: Any) -> None:
  """Copies `lines` to `out` but for the chatter; all behind a fatal line belongs to its trace."""
  for line in lines:
    if FATAL in line:
      why = line.split('absl::Status: ')[-1].split('. ')[0].strip()
      out.write(f't2x: the connection to process 0, the coordinator, is lost: ending ({why})\n')
      break
    if not CHATTER.search(line):
      out.write(line)
      out.flush()
  for _ in lines:
    pass


if __name__ == '__main__':
  # It ends with the process that writes, not before.
  for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
  sys.stdin.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]
  translate(sys.stdin, sys.stderr)
