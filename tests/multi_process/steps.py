"""Run by test_watch.py: joins, counts steps until a signal comes to any process, prints the last step.

SIGUSR1 makes a process fail.
"""

import argparse
import signal
import sys
import time

from t2x.errors import UserError
from t2x.parallel import Cluster, connect
from t2x.signals import handle_signals

parser = argparse.ArgumentParser()
parser.add_argument('address')
parser.add_argument('count', type=int)
parser.add_argument('index', type=int)
args = parser.parse_args()

try:
  processes = connect(Cluster(args.address, args.count, args.index), wait=60, lost_after=3)
except UserError as error:
  sys.exit(f't2x: {error}')
# Tests may run under nohup.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGUSR1, lambda number, frame: processes.fail('no such file', 2))
with handle_signals(lambda number, frame: processes.ask_to_stop()):
  print('joined', flush=True)
  step = 0
  while not processes.reached_stop(step := step + 1):
    time.sleep(0.002 * (1 + processes.index))
print(step, flush=True)
processes.finish()
