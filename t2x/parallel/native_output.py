"""Filters what XLA and Gloo write to stderr.

Runs as a separate program that copies stdin to stderr line by line. It drops routine connection messages,
and replaces the stack trace that XLA prints when the coordinator is lost with a one-line message.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

ROUTINE = re.compile(
  r'^\[Gloo\] Rank|coordination_service(_agent)?\.cc:\d+\]|^The tasks have crashed|^RPC: /|^\s*$'
)
FATAL = 'Terminating process because the JAX distributed service detected fatal errors'


def filter_native_output() -> None:
  """Redirects the output of native code on this process's stdout and stderr through the filter.

  Python's `sys.stdout` and `sys.stderr` keep their destinations.
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


def translate(lines: Iterator[str], out: IO[str]) -> None:
  """Copies `lines` to `out` without routine messages, up to the stack trace after a fatal line."""
  for line in lines:
    if FATAL in line:
      reason = line.split('absl::Status: ')[-1].split('. ')[0].strip()
      out.write(f't2x: lost the connection to process 0, the coordinator ({reason})\n')
      break
    if not ROUTINE.search(line):
      out.write(line)
      out.flush()
  for _ in lines:
    pass


if __name__ == '__main__':
  # The filter must not end before the process that writes to it.
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  sys.stdin.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]
  translate(sys.stdin, sys.stderr)
