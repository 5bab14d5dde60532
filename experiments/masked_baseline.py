"""Masked accuracy of always predicting the most frequent token, on the masks of a run.

t2x train configs/runs/stdlib_mlm.gin
python experiments/masked_baseline.py runs/stdlib_mlm
"""

import argparse
from pathlib import Path

import numpy as np

from t2x.data import evaluation_batches
from t2x.experiments import read_config
from t2x.train import TrainingRun


def main() -> None:
  """Prints the baseline's accuracy on the evaluation split."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('run', type=Path, help='a run folder of a masked language model')
  folder = parser.parse_args().run
  run = TrainingRun(read_config([folder / 'config.gin']).build(), folder)
  train, held_out = run.rows(run.task.train_split), run.rows(run.task.eval_split)
  counts = np.zeros(run.tokenizer.vocab_size, np.int64)
  for row in train:
    counts += np.bincount(row['tokens'][row['segments'] != 0], minlength=len(counts))
  guess = int(counts[5:].argmax()) + 5
  correct = total = 0.0
  transform = run.task.transform(train=False)
  for batch in evaluation_batches(held_out, transform, run.trainer.batch_size):
    correct += float(((batch['labels'] == guess) * batch['weights']).sum())
    total += float(batch['weights'].sum())
  piece = run.tokenizer.pieces([guess])[0]
  print(f'always {piece!r}: masked accuracy {correct / total:.4f} over {total:.0f} masked tokens')


if __name__ == '__main__':
  main()
