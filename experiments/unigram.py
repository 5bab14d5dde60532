"""Loss of predicting every target from token frequencies, in nats: a model that has learned is below it.

python experiments/unigram.py experiments/narang2021/base.gin

The frequencies are those of the targets of training batches (with 0.1 added to each count).
"""

import argparse

import numpy as np

from t2x.data import Batches, evaluation_batches
from t2x.experiments import read_config

# Targets of masked language models, of encoder-decoders and of causal language models.
TARGETS = ('labels', 'target', 'tokens')


def counts(task, batches, size: int) -> np.ndarray:
  """Counts the targets of batches by id."""
  total = np.zeros(size)
  for batch in batches:
    targets = next(batch[name] for name in TARGETS if name in batch)
    weights = np.asarray(task.target_weights(batch))
    total += np.bincount(targets.ravel(), weights.ravel(), minlength=size)
  return total


def main() -> None:
  """Prints the cross-entropy of the held-out targets under the frequencies of the training targets."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('config', help='gin file of an experiment on text')
  parser.add_argument('--batches', type=int, default=500, help='training batches (default: 500)')
  args = parser.parse_args()
  experiment = read_config([args.config]).build()
  task = experiment.task.bound(experiment.task.fit_tokenizer())
  size, trainer = task.vocab_size, experiment.trainer
  rows = task.rows(task.train_split)
  train = Batches(rows, task.transform(train=True), batch_size=trainer.batch_size, seed=0)
  count = counts(task, (train[step] for step in range(args.batches)), size)
  held_out = task.rows(task.eval_split)
  batches = evaluation_batches(held_out, task.transform(train=False), trainer.batch_size)
  targets = counts(task, batches, size)
  frequencies = (count + 0.1) / (count + 0.1).sum()
  loss = -(targets * np.log(frequencies)).sum() / targets.sum()
  print(f'{loss:.3f} nats per target over {targets.sum():.0f} held-out targets')


if __name__ == '__main__':
  main()
