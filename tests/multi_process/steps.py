"""Run by test_watch.py: joins, counts steps until a signal comes to any process, prints the last step.

SIGUSR1 makes a process fail, as in a signal handler that interrupts a flush of stdout.
"""

import argparse
import io
import signal
import sys
import time

from t2x.base.errors import UserError
from t2x.base.signals import handle_signals
from t2x.parallel import connect
from t2x.parallel.processes import Cluster


class Interrupted(io.StringIO):
  """A stream whose flush was interrupted by a signal handler."""

  def flush(self):
    raise RuntimeError('reentrant call inside <_io.BufferedWriter>')


def fail():
  sys.stdout = Interrupted()
  processes.fail('no such file', 2)


parser = argparse.ArgumentParser()
parser.add_argument('address')
parser.add_argument('count', type=int)
parser.add_argument('index', type=int)
parser.add_argument('lost_after', type=float)
args = parser.parse_args()

try:
  processes = connect(
    Cluster(args.address, args.count, args.index), wait=60, lost_after=args.lost_after
  )
except UserError as error:
  sys.exit(f't2x: {error}')
# Tests may run under nohup.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGUSR1, lambda number, frame: fail())
with handle_signals(lambda number, frame: processes.ask_to_stop()):
  print('joined', flush=True)
  step = 0
  while not processes.reached_stop(step := step + 1):
    time.sleep(0.002 * (1 + processes.index))
print(step, flush=True)
processes.finish()
