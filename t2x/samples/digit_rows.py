"""Rows of handwritten digits with the words of their digits, for captioners and readers of text in images."""

import dataclasses

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Size
from t2x.data.prepared_folders import fingerprint
from t2x.samples.digits import Digits
from t2x.samples.fetched import Sample

__all__ = ['DigitRows']

WORDS = ('zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine')
# Number of rows in each of the validation and test splits.
HELD_OUT = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitRows(Sample):
  """Images of 1 to `longest` digits: `source` uint8 [8, 8 * longest, 1], and `target`, such as 'three one four'.

  The digits are those of scikit-learn, drawn with equal probabilities; shorter rows are blank on the right. The splits
  share no image of a digit: validation and test have 1,000 rows of every fifth image each. Their sequences of digits
  may occur in the train split.

  Attributes:
    longest: maximum number of digits of a row.
    train_examples: number of rows in the train split.
  """

  packages = ('sklearn',)

  longest: Size = 4
  train_examples: Count = 20_000

  def __post_init__(self):
    if not self.train_examples:
      raise UserError('DigitRows.train_examples is not set: set a number')

  def examples(self, split):
    test = Digits().load('test')
    others = Digits().load('train')
    images = {
      'train': [e for i, e in enumerate(others) if i % 4 != 3],
      'validation': others[3::4],
      'test': test,
    }[split]
    pixels = np.stack([example['image'] for example in images])
    labels = [example['label'] for example in images]
    number = list(self.split_names).index(split)
    random = np.random.default_rng((20261126, number))
    for _ in range(self.train_examples if split == 'train' else HELD_OUT):
      chosen = random.integers(len(labels), size=random.integers(1, self.longest + 1))
      row = np.zeros((8, 8 * self.longest, 1), np.uint8)
      row[:, : 8 * len(chosen)] = np.concatenate(list(pixels[chosen]), axis=1)
      yield {'source': row, 'target': ' '.join(WORDS[labels[i]] for i in chosen)}

  def fingerprint(self) -> str:
    """Identifies the settings: the data never changes."""
    return fingerprint(self, WORDS, HELD_OUT)
