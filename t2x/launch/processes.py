"""Starts a run of several processes on this machine.

  python -m t2x.launch.processes -n 2 -- t2x train configs/runs/quickstart.gin --out runs/two

Passes --coordinator (a free port), --num-processes and --process-id to each process, and prefixes its output lines with
its index. With --gpus K each process uses K different GPUs of those in CUDA_VISIBLE_DEVICES; on a CPU the variable
JAX_NUM_CPU_DEVICES sets the number of devices per process. SIGTERM, SIGHUP and Ctrl-C are forwarded: t2x saves and
exits with code 75, and so does this command. If a process fails, all processes are ended, and this command returns the
exit code of the first that failed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time

# Seconds between the failure of a process and the kill of the remaining processes.
GRACE = 15


def main() -> int:
  """Starts the processes and waits for them. Returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '-n', type=int, default=2, metavar='N', help='number of processes (default: 2)'
  )
  parser.add_argument('--gpus', type=int, metavar='K', help='GPUs per process')
  parser.add_argument('command', nargs='+', metavar='COMMAND', help='after --: t2x train ...')
  args = parser.parse_args()
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  gpus = None if visible is None else [gpu.strip() for gpu in visible.split(',') if gpu.strip()]
  if args.gpus and gpus is not None and args.n * args.gpus > len(gpus):
    parser.error(
      f'{args.n} processes with {args.gpus} GPUs each need more than the {len(gpus)} of CUDA_VISIBLE_DEVICES={visible}'
    )
  coordinator = f'localhost:{_free_port()}'
  processes = [_start(args, coordinator, index, gpus) for index in range(args.n)]
  printers = [
    threading.Thread(target=_print_lines, args=(index, process))
    for index, process in enumerate(processes)
  ]
  for printer in printers:
    printer.start()
  numbers = [signal.SIGTERM, signal.SIGINT]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # Ignored under nohup.
    numbers.append(signal.SIGHUP)
  for number in numbers:
    signal.signal(number, lambda number, frame: _to_all(processes, signal.SIGTERM))
  code = _wait(processes)
  for printer in printers:
    printer.join()
  return code


def _free_port() -> int:
  with socket.socket() as listener:
    listener.bind(('', 0))
    return listener.getsockname()[1]


def _start(
  args: argparse.Namespace, coordinator: str, index: int, gpus: list[str] | None
) -> subprocess.Popen:
  options = [
    '--coordinator',
    coordinator,
    '--num-processes',
    str(args.n),
    '--process-id',
    str(index),
  ]
  environment = dict(os.environ)
  if args.gpus:
    own = range(index * args.gpus, (index + 1) * args.gpus)
    names = map(str, own) if gpus is None else (gpus[i] for i in own)
    environment['CUDA_VISIBLE_DEVICES'] = ','.join(names)
  return subprocess.Popen(
    [*args.command, *options],
    env=environment,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    # The terminal's Ctrl-C must reach the processes only through this one.
    start_new_session=True,
  )


def _print_lines(index: int, process: subprocess.Popen) -> None:
  assert process.stdout is not None
  for line in process.stdout:
    sys.stdout.buffer.write(b'[%d] ' % index + line)
    sys.stdout.buffer.flush()


def _to_all(processes: list[subprocess.Popen], number: int) -> None:
  for process in processes:
    if process.poll() is None:
      process.send_signal(number)


def _wait(processes: list[subprocess.Popen]) -> int:
  """Waits for all processes, and kills them after one failed. Returns the exit code of the first failure."""
  first, since = 0, 0.0
  while any(process.poll() is None for process in processes):
    failed = [process.returncode for process in processes if process.poll()]
    if failed and not first:
      first, since = failed[0], time.monotonic()
    if first and time.monotonic() - since > GRACE:
      _to_all(processes, signal.SIGKILL)
    time.sleep(0.1)
  codes = [process.returncode for process in processes]
  first = first or next((code for code in codes if code), 0)
  return 128 - first if first < 0 else first


if __name__ == '__main__':
  sys.exit(main())
