"""Rate and memory of the preparation of generated text, and of reading batches of it, by size and number of workers.

python experiments/speed/preparation.py                                        # 50 MB, 1, 2 and 4 workers
python experiments/speed/preparation.py --megabytes 2000 --workers 4           # rows take 4 bytes per token

Each preparation runs in a new process with an empty cache, and each reading in a new process. Memory in MB, highest of
samples taken every 0.2 s: `main` and `worker` are the allocated memory (anonymous pages) of the main process and of the
largest worker, `RSS` and `PSS` the sums over all processes. They include pages of memory-mapped files, which the system
can evict; PSS counts a page of several processes once. `main CPU` and `workers CPU` are CPU seconds, which depend less
on the load than `seconds`: workers divide theirs among them, the main process packs.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

LENGTH, BATCH_SIZE = 512, 64
TOKENIZERS = ('bpe', 'bytes')


def generate(path: Path, megabytes: float) -> None:
  """Writes documents of 20 to 1000 words, drawn from 50,000 words by Zipf's law."""
  rng = np.random.default_rng(0)
  letters = np.array(list('etaoinshrdlucmfwypvbgkjqxz'))
  weights = 1 / np.arange(1, 27)
  words = np.array(
    [
      ''.join(rng.choice(letters, n, p=weights / weights.sum()))
      for n in rng.integers(2, 12, 50_000)
    ],
    dtype=object,
  )
  size = 0
  with path.open('w') as file:
    while size < megabytes * 1e6:
      ranks = (50_000 ** rng.random(1 << 20)).astype(int) - 1
      stop = 0
      while stop < len(ranks):
        start, stop = stop, stop + int(rng.integers(20, 1000))
        size += file.write(json.dumps({'text': ' '.join(words[ranks[start:stop]])}) + '\n')


def source_of(folder: Path) -> Any:
  """Returns the source of the text in a folder."""
  from t2x.data import JsonLines

  return JsonLines(train=str(folder / 'text.jsonl'))


def tokenizer_of(folder: Path, kind: str) -> Any:
  """Returns a tokenizer, which is trained at the first call."""
  from t2x.data import BPE, Bytes

  config = BPE(16_000, sample_megabytes=1) if kind == 'bpe' else Bytes()
  return config.fit(
    lambda: (example['text'] for example in source_of(folder).load('train')), folder / 'tokenizer'
  )


def prepared(folder: Path, kind: str) -> tuple[Any, float, float]:
  """Returns the rows of the text in a folder; seconds and this process's CPU seconds of their preparation."""
  from t2x.data import ConcatenateAndSplit, token_rows

  tokenizer, plan = tokenizer_of(folder, kind), ConcatenateAndSplit(LENGTH)
  began, cpu = time.perf_counter(), time.process_time()
  rows = token_rows(source_of(folder), 'train', tokenizer, plan, folder / 'cache')
  return rows, time.perf_counter() - began, time.process_time() - cpu


def prepare(folder: Path, kind: str) -> dict:
  """Returns the rate of the preparation with $T2X_WORKERS workers."""
  rows, seconds, cpu = prepared(folder, kind)
  children = resource.getrusage(resource.RUSAGE_CHILDREN)
  return {
    'seconds': round(seconds, 1),
    'main CPU': round(cpu, 1),
    'workers CPU': round(children.ru_utime + children.ru_stime, 1),
    'MB/s': round(rows.info['bytes'] / 1e6 / seconds, 2),
    'tokens/s': round(rows.info['tokens'] / seconds),
  }


def read(folder: Path, kind: str, workers: int, batches: int) -> dict:
  """Returns the rate at which shuffled batches of prepared rows are read by loader workers."""
  from t2x.data import Batches, prefetch

  rows, _, _ = prepared(folder, kind)
  stream = prefetch(
    Batches(rows, batch_size=BATCH_SIZE, seed=0), 0, batches + 2 * (workers or 1), workers
  )
  for _ in range(2 * (workers or 1)):
    next(stream)
  began = time.perf_counter()
  count = sum(1 for _ in stream)
  seconds = time.perf_counter() - began
  rate = count * BATCH_SIZE * LENGTH / seconds
  info = rows.info
  uncached = info['tokens'] / (info['seconds'] + info['tokens'] / rate)
  return {'tokens/s cached': round(rate), 'tokens/s uncached': round(uncached)}


def memory(pid: int) -> dict[str, float]:
  """Returns the anonymous, resident and proportional memory of a process in MB."""
  fields = dict.fromkeys(('Anonymous', 'Rss', 'Pss'), 0.0)
  try:
    for line in Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()[1:]:
      name, value = line.split(':')
      if name in fields:
        fields[name] = int(value.split()[0]) / 1e3
  except (OSError, ValueError):  # It has ended.
    pass
  return fields


def children(pid: int) -> list[int]:
  """Returns the child processes of a process."""
  try:
    tasks = Path(f'/proc/{pid}/task').iterdir()
    return [int(child) for task in tasks for child in (task / 'children').read_text().split()]
  except OSError:
    return []


def measured(command: list[str], workers: int | None) -> dict:
  """Runs this script with other arguments; returns what it prints, and the memory of its processes."""
  environment = dict(os.environ) | ({} if workers is None else {'T2X_WORKERS': str(workers)})
  process = subprocess.Popen(
    [sys.executable, __file__, *command], stdout=subprocess.PIPE, text=True, env=environment
  )
  peak = dict.fromkeys(('main', 'worker', 'RSS', 'PSS'), 0.0)
  ended = threading.Event()

  def watch() -> None:
    while not ended.wait(0.2):
      main, parts = memory(process.pid), [memory(child) for child in children(process.pid)]
      values = {
        'main': main['Anonymous'],
        'worker': max((part['Anonymous'] for part in parts), default=0.0),
        'RSS': sum(part['Rss'] for part in (main, *parts)),
        'PSS': sum(part['Pss'] for part in (main, *parts)),
      }
      peak.update({name: max(peak[name], value) for name, value in values.items()})

  thread = threading.Thread(target=watch)
  thread.start()
  output, _ = process.communicate()
  ended.set()
  thread.join()
  if process.returncode:
    raise SystemExit(f'{" ".join(command)} failed')
  load = {'load': round(os.getloadavg()[0], 1)}
  return json.loads(output) | {name: round(value) for name, value in peak.items()} | load


def compare(folder: Path, args: argparse.Namespace) -> None:
  """Prints one line per measurement."""
  generate(folder / 'text.jsonl', args.megabytes)
  tokenizer_of(folder, args.tokenizer)
  print(json.dumps({'megabytes': args.megabytes, 'tokenizer': args.tokenizer}), flush=True)
  common = [str(folder), '--tokenizer', args.tokenizer]
  for workers in args.workers:
    shutil.rmtree(folder / 'cache', ignore_errors=True)
    result = measured(['--prepare', *common], workers)
    print(json.dumps({'prepare, workers': workers} | result), flush=True)
  for workers in args.readers:
    command = ['--read', str(workers), '--batches', str(args.batches), *common]
    print(json.dumps({'read, workers': workers} | measured(command, None)), flush=True)


def main() -> None:
  """Prints one JSON object per measurement."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('folder', nargs='?', type=Path, help='of the text; default: a temporary one')
  parser.add_argument('--megabytes', type=float, default=50, help='of generated text')
  parser.add_argument('--workers', type=int, nargs='+', default=[1, 2, 4], help='of preparation')
  parser.add_argument('--readers', type=int, nargs='+', default=[0, 1, 2, 4], help='of reading')
  parser.add_argument('--batches', type=int, default=1000, help='to read')
  parser.add_argument('--tokenizer', choices=TOKENIZERS, default='bpe')
  parser.add_argument('--prepare', action='store_true', help=argparse.SUPPRESS)
  parser.add_argument('--read', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.prepare:
    print(json.dumps(prepare(args.folder, args.tokenizer)))
  elif args.read is not None:
    print(json.dumps(read(args.folder, args.tokenizer, args.read, args.batches)))
  else:
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
      compare(Path(folder), args)


if __name__ == '__main__':
  main()
