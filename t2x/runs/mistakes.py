"""Page of the examples of a split that a classifier gets wrong, with its confusion matrix."""

import collections
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from t2x.base.drawing import png_url
from t2x.base.errors import UserError
from t2x.base.files import output_file
from t2x.base.html_page import html_page
from t2x.loaded import Loaded
from t2x.tasks import ImageClassification, SequenceClassification
from t2x.tasks.classification import Classification
from t2x.tasks.evaluators import Evaluation

# Larger matrices are not drawn; the most frequent confusions are listed for all.
MAX_CLASSES = 40
MAX_PAIRS = 20


def classifier(loaded: Loaded) -> Classification | SequenceClassification:
  """Returns the task of a run; raises UserError if it predicts no class of each example."""
  task = loaded.task
  if not isinstance(task, Classification | SequenceClassification):
    raise UserError(f'--mistakes needs a classifier, but Experiment.task is {type(task).__name__}')
  return task


def write_mistakes(loaded: Loaded, split: str, result: Evaluation, count: int, out: Path) -> None:
  """Writes the page.

  Args:
    loaded: a run of a classifier.
    split: the evaluated split.
    result: its evaluation, with the loss, label and prediction of each example.
    count: number of examples to show, those with the highest loss first.
    out: HTML file.
  """
  task = classifier(loaded)
  names = list(task.class_names) or [str(i) for i in range(task.num_classes)]
  labels, predicted = (result.examples[name].astype(int) for name in ('label', 'prediction'))
  losses = result.examples['loss']
  wrong = np.flatnonzero(labels != predicted)
  worst = wrong[np.argsort(-losses[wrong], kind='stable')][:count]
  rows = loaded.inference.rows(split)
  given = result.examples.get('name')
  matrix = np.zeros((len(names), len(names) + 1), int)
  # The last column is that of no class, -1.
  np.add.at(matrix, (labels, predicted), 1)
  pairs = collections.Counter(zip(labels[wrong].tolist(), predicted[wrong].tolist(), strict=True))
  data = {
    'examples': len(labels),
    'wrong': len(wrong),
    'classes': names,
    'matrix': matrix.tolist() if len(names) <= MAX_CLASSES else [],
    'pairs': [[*pair, number] for pair, number in pairs.most_common(MAX_PAIRS)],
    'worst': [
      {
        'name': str(i if given is None else given[i]),
        'label': int(labels[i]),
        'prediction': int(predicted[i]),
        'loss': float(np.nan_to_num(losses[i])),
      }
      | _shown(loaded, rows[int(i)])
      for i in worst
    ],
  }
  folder = resources.files('t2x.runs')
  page = html_page(
    folder / 'mistakes.html',
    f'Mistakes on {split}',
    styles=(resources.files('t2x.data') / 'report.css',),
    scripts=(resources.files('t2x.base') / 'core.js', folder / 'mistakes.js'),
    data=data,
  )
  with output_file('--mistakes', out) as file:
    file.write(page)


def _shown(loaded: Loaded, row: Mapping[str, Any]) -> dict[str, str]:
  """Returns the image of a row as a URL, or its text."""
  if isinstance(loaded.task, ImageClassification):
    return {'image': png_url(row['image'])}
  if 'tokens' in row and loaded.tokenizer is not None:
    ids: Sequence[int] = row['tokens'][row['segments'] != 0].tolist()
    return {'text': loaded.tokenizer.decode(ids)}
  return {}
