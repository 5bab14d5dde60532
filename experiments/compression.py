"""Compares the bits per byte of a run's held-out files under the model, gzip -9 and xz -9e.

    t2x train configs/runs/stdlib_lm.gin
    python experiments/compression.py runs/stdlib_lm

The compressors and the model both process each file independently.
"""

import argparse
import gzip
import json
import lzma
from pathlib import Path

from t2x.experiments import read_config


def main() -> None:
  """Prints one line per compressor and one per evaluation of the run."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('run', type=Path, help='a run folder of a causal language model')
  folder = parser.parse_args().run
  task = read_config([folder / 'config.gin']).build().task
  files = [example['text'].encode() for example in task.source.load(task.eval_split)]
  total = sum(map(len, files))
  print(f'{len(files)} held-out files, {total:,} bytes')
  for name, size in (
    ('gzip -9', sum(len(gzip.compress(file, 9, mtime=0)) for file in files)),
    ('xz -9e', sum(len(lzma.compress(file, preset=9 | lzma.PRESET_EXTREME)) for file in files)),
  ):
    print(f'{name:24} {8 * size / total:.3f} bits per byte')
  minutes = {
    line['step']: line['seconds'] / 60
    for line in map(json.loads, (folder / 'timing.jsonl').read_text().splitlines())
    if line['split'] == 'eval'
  }
  for line in map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines()):
    if 'bits_per_byte' in line:
      label = f'step {line["step"]}, {minutes[line["step"]]:.1f} min'
      print(f'{label:24} {line["bits_per_byte"]:.3f} bits per byte')


if __name__ == '__main__':
  main()
