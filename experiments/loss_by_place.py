"""Prints the loss of causal language models by the place in the segment, for segments of a given length.

    t2x train configs/runs/stdlib_xl.gin
    t2x train configs/runs/stdlib_xl.gin --out runs/stdlib_xl_alone --gin.Segments.memory=0
    python experiments/loss_by_place.py runs/stdlib_xl runs/stdlib_xl_alone

The first segment of each row, which has no memory, has a line of its own.
"""

import argparse
import itertools
import math

import jax
import numpy as np
import optax

import t2x
from t2x.parallel import runs_model

# Places in a segment at which ranges begin.
BORDERS = (0, 4, 16, 64)


def losses(folder: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the sums of losses in bits and the numbers of tokens of the evaluation split, [segments, places]."""
  loaded = t2x.load(folder)
  task, model = loaded.task, loaded.model

  @jax.jit
  @runs_model
  def by_place(model, batch):
    logits, _ = task.predictions(model, batch, None)
    weights = task.target_weights(batch)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch['tokens']) / math.log(2.0)
    return (loss * weights).sum(0), weights.sum(0)

  rows = loaded.inference.rows(task.eval_split)
  sums = [by_place(model, batch) for batch in loaded.inference.evaluation_batches(rows, task)]
  total = np.sum([[np.asarray(a, np.float64) for a in pair] for pair in sums], axis=0)
  loss, count = total.reshape(2, -1, model.model.body.stack.length)
  return loss, count


def main() -> None:
  """Prints one line per range of places and one column per run."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('runs', nargs='+', help='run folders of models with Segments')
  folders = parser.parse_args().runs
  columns = [losses(folder) for folder in folders]
  length = columns[0][0].shape[1]
  lines = {
    'first segment': (slice(0, 1), slice(None)),
    'other segments': (slice(1, None), slice(None)),
  }
  for start, end in itertools.pairwise((*BORDERS, length)):
    lines[f'  places {start} to {end - 1}'] = slice(1, None), slice(start, end)
  print('bits per token'.ljust(20), *(folder.rjust(24) for folder in folders))
  for name, where in lines.items():
    print(name.ljust(20), *(f'{loss[where].sum() / n[where].sum():24.3f}' for loss, n in columns))


if __name__ == '__main__':
  main()
