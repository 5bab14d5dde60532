"""Scores of predicted classes against scikit-learn."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from evaluating import evaluated
from fake_models import ONE, WithLogits, spec
from flax import nnx
from sklearn import metrics as sklearn

from t2x.base.errors import UserError
from t2x.data import Bytes, Source
from t2x.layers import normal, param
from t2x.models import Output
from t2x.tasks import ClassScores, SequenceClassification, TextRegression
from t2x.tasks.class_scores import scores


def confusion(labels, predicted, num_classes):
  counts = np.zeros((num_classes, num_classes), int)
  for label, prediction in zip(labels, predicted, strict=True):
    counts[label, prediction] += 1
  return counts


def expected(labels, predicted, num_classes):
  with warnings.catch_warnings(action='ignore'):
    metrics = {
      'accuracy': sklearn.accuracy_score(labels, predicted),
      'macro_f1': sklearn.f1_score(labels, predicted, average='macro'),
      'matthews': sklearn.matthews_corrcoef(labels, predicted),
    }
    if num_classes == 2:
      metrics['f1'] = sklearn.f1_score(labels, predicted, pos_label=1, zero_division=0)
  return metrics


@pytest.mark.parametrize('num_classes', [2, 4])
def test_random_and_constant_classes_have_the_scores_of_scikit_learn(num_classes):
  rng = np.random.default_rng(num_classes)
  for size in (1, 2, 7, 200):
    labels, predicted = rng.integers(num_classes, size=(2, size))
    constant = np.full(size, num_classes - 1)
    for pair in (
      (labels, predicted),
      (labels, constant),
      (constant, predicted),
      (constant, constant),
    ):
      found = scores(confusion(*pair, num_classes))
      assert found == pytest.approx(expected(*pair, num_classes), abs=1e-12)
  assert scores(confusion([1, 0], [1, 1], 2))['matthews'] == 0.0


class Labelled(Source):
  """Texts with one of three labels."""

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    rng = np.random.default_rng(0)
    return [{'text': 'abcdefg'[i % 7], 'label': 'xyz'[rng.integers(3)]} for i in range(23)]

  def fingerprint(self):
    return 'labelled'


class Table(WithLogits, nnx.Module):
  """The logits of the second token, the first of the text."""

  def __init__(self):
    self.table = param(normal(1.0), (512, 3), ('vocab', 'embed'), nnx.Rngs(0), kind='table')
    self.spec = nnx.static(spec(ONE, 'class logits', num_classes=3, vocab_size=512))

  @property
  def head(self):
    return self

  def hidden(self, ids, **settings):
    return Output(self.table[...][ids])

  def classify(self, x, segments, key):
    return x[:, 1]


def test_the_evaluator_scores_the_examples_of_the_split(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  task = SequenceClassification(
    source=Labelled(), tokenizer=Bytes(), length=4, labels=['x', 'y', 'z']
  ).bound(Bytes().train([]))
  model, rows = Table(), task.rows('validation')
  result = ClassScores()(evaluated(task, model, rows, 4))
  predicted = [int(jnp.argmax(model.table[int(row['tokens'][1])])) for row in rows]
  labels = ['xyz'.index(example['label']) for example in task.source.load('validation')]
  assert len(set(predicted)) > 1
  assert result.metrics == pytest.approx({'examples': 23.0, **expected(labels, predicted, 3)})
  np.testing.assert_array_equal(result.examples['accuracy'], np.equal(labels, predicted))
  few = ClassScores(num_examples=9)(evaluated(task, model, rows, 4))
  assert few.metrics['examples'] == 9.0
  regression = TextRegression(source=Labelled(), tokenizer=Bytes(), length=4, score='label')
  with pytest.raises(UserError, match='ClassScores evaluates @SequenceClassification'):
    ClassScores().check(regression, model)
