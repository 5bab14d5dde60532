"""Counts of words and entities against counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_models import ONE, WithLogits, spec
from flax import nnx

from t2x.data import Bytes, TextFiles
from t2x.models import Output
from t2x.tasks import WordClassification

LABELS = ['O', 'B-X', 'I-X']


class ById(WithLogits, nnx.Module):
  """Predicts label i for token id i."""

  def __init__(self):
    self.spec = nnx.static(spec(ONE, 'class logits', num_classes=len(LABELS)))

  def hidden(self, ids, **arguments):
    return Output(jax.nn.one_hot(ids, len(LABELS)))

  def logits(self, x):
    return 5 * x


def test_precision_divides_by_the_predicted_entities_and_recall_by_the_true_ones():
  """Four predicted entities, three true ones, two of them equal; 'B-X I-X' is predicted where 'B-X' is true."""
  predicted, true = [1, 1, 0, 1, 1, 2, 0, 0], [1, 1, 0, 0, 1, 0, 0, 0]
  row, zeros = np.array([predicted]), np.zeros((1, 8), int)
  batch = {
    'tokens': row,
    'types': zeros,
    'segments': zeros + 1,
    'word_positions': np.arange(8)[None],
    'word_labels': np.array([true]),
    'word_weights': zeros + 1,
  }
  task = WordClassification(
    source=TextFiles(train='none'), tokenizer=Bytes(), labels=LABELS, length=8
  )
  pairs = task.sums(ById(), jax.tree.map(jnp.asarray, batch), None).metrics
  means = {name: float(total / count) for name, (total, count) in pairs.items()}
  assert means['entity_precision'] == pytest.approx(2 / 4)
  assert means['entity_recall'] == pytest.approx(2 / 3)
  assert means['entity_f1'] == pytest.approx(4 / 7)
