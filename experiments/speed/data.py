"""Tokens per second that one process prepares and reads, beside what the small GPT trains on.

python experiments/speed/data.py

Prepares the text of configs/runs/quickstart.gin in an empty cache (tokenizer included), then reads batches of the
prepared rows, and trains the small GPT of train_step.py for comparison. Reading must be at least five times as fast.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from t2x.process.allocator import set_allocator

ROOT = Path(__file__).parents[2]


def preparation(folder: str) -> tuple[dict, object]:
  """Returns the time to prepare the rows and to open them again, and the run."""
  from t2x.experiments import read_config
  from t2x.train import TrainingRun

  config = read_config([str(ROOT / 'configs/runs/quickstart.gin')], [])
  began = time.perf_counter()
  run = TrainingRun(config.build(), Path(folder) / 'run')
  tokenizer = time.perf_counter() - began
  began = time.perf_counter()
  rows = run.rows('train')
  prepared = time.perf_counter() - began
  began = time.perf_counter()
  run.rows('train')
  cached = time.perf_counter() - began
  tokens = len(rows) * run.task.length
  return {
    'tokens': tokens,
    'tokenizer_seconds': round(tokenizer, 1),
    'preparation_seconds': round(prepared, 1),
    'prepared_tokens_per_second': round(tokens / prepared),
    'cached_seconds': round(cached, 3),
  }, run


def reading(run, batches: int) -> float:
  """Returns the tokens per second of CPU time of one process that draws random rows."""
  found = run.batches(run.rows('train'))
  per_batch = run.trainer.batch_size * run.task.length
  rates = []
  for part in range(5):
    began = time.process_time()
    for step in range(part * batches, (part + 1) * batches):
      found[step]
    rates.append(batches * per_batch / (time.process_time() - began))
  return statistics.median(rates)


def training() -> float:
  """Returns the tokens per second on which the small GPT trains, on all cores."""
  from train_step import t2x_steps

  _, take = t2x_steps('small_gpt', 'f32')
  take(3)
  times = []
  for _ in range(5):
    began = time.perf_counter()
    take(20)
    times.append((time.perf_counter() - began) / 20)
  return 12 * 64 / statistics.median(times)


def main() -> None:
  """Prints one JSON object."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batches', type=int, default=500, help='batches per measurement')
  args = parser.parse_args()
  set_allocator()
  with tempfile.TemporaryDirectory() as folder:
    os.environ['T2X_CACHE'] = folder
    result, run = preparation(folder)
    result['read_tokens_per_second'] = round(reading(run, args.batches))
  result['trained_tokens_per_second'] = round(training())
  result['ratio'] = round(result['read_tokens_per_second'] / result['trained_tokens_per_second'], 1)
  print(json.dumps(result | {'load': round(os.getloadavg()[0], 1)}, indent=2))


if __name__ == '__main__':
  main()
