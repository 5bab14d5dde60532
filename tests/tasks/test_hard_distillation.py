"""Distillation of decisions, models with a head for the teacher, and images without labels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import PartlyLabelled, PrepareImage
from t2x.models import LogitMean, Output, ProbabilityMean
from t2x.samples import Digits
from t2x.tasks import HardDistillation, ImageClassification, MixUp

CLASSES = 7
rng = np.random.default_rng(0)
WEIGHTS = rng.normal(size=(3, 16, CLASSES)).astype(np.float32)
LABELS = np.array([3, -1, 6, 2, -1, 1])
BATCH = {
  'image': rng.normal(size=(6, 4, 4, 1)).astype(np.float32),
  'label': LABELS,
  'weight': np.float32([1, 1, 1, 1, 1, 0]),
}
TASK = ImageClassification(
  source=Digits(),
  image_shape=(4, 4, 1),
  num_classes=CLASSES,
  distillation=HardDistillation(alpha=0.3),
)


class Linear:
  """Logits that are linear in the pixels; with several matrices, of several heads."""

  num_classes = CLASSES

  def __init__(self, *weights):
    self.weights = weights

  def __call__(self, images, key=None):
    logits = [jnp.asarray(images).reshape(len(images), -1) @ one for one in self.weights]
    heads = dict(zip(('labels', 'teacher'), logits, strict=True)) if len(logits) == 2 else {}
    return Output(sum(logits) / len(logits), heads=heads)


def losses(logits, labels):
  """-log p(label) in float64."""
  logits = np.asarray(logits, np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return -log_p[np.arange(len(labels)), labels]


def logits_of(images, head):
  return np.asarray(images, np.float64).reshape(6, -1) @ WEIGHTS[head]


def means(task, model, batch, key, teacher=None):
  """The loss terms of a batch over their weights."""
  batch = jax.tree.map(jnp.asarray, batch)
  output, weights = task.sums(model, batch, key, teacher), task.weights(batch)
  assert output.terms.keys() == weights.keys()
  return {name: float(term / weights[name]) for name, term in output.terms.items()}


def test_each_head_has_its_own_labels_and_images_without_a_label_those_of_the_teacher():
  found = means(TASK, Linear(*WEIGHTS[:2]), BATCH, jax.random.key(0), teacher=Linear(WEIGHTS[2]))
  own, weights = LABELS >= 0, BATCH['weight']
  expected = (losses(logits_of(BATCH['image'], 0), LABELS) * weights)[own].sum()
  assert found['loss'] == pytest.approx(0.7 * expected / weights[own].sum(), rel=1e-5)
  decisions = logits_of(BATCH['image'], 2).argmax(-1)
  expected = (losses(logits_of(BATCH['image'], 1), decisions) * weights).sum() / weights.sum()
  assert found['distillation'] == pytest.approx(0.3 * expected, rel=1e-5)


def test_mixed_images_without_a_label_leave_the_weight_of_the_other():
  task = dataclasses.replace(TASK, mixing=MixUp(alpha=1.0))
  arrays = {name: jnp.asarray(array) for name, array in BATCH.items()}
  batch = task.batch(arrays, jax.random.key(5))
  found = means(task, Linear(WEIGHTS[0]), batch, jax.random.key(0), teacher=Linear(WEIGHTS[2]))
  share, other, total, weight = np.asarray(batch['share']), np.asarray(batch['other_label']), 0, 0
  assert {-1} < set(other)
  for labels, part in ((LABELS, share), (other, 1 - share)):
    part = part * (labels >= 0) * BATCH['weight']
    total += (losses(logits_of(batch['image'], 0), labels) * part).sum()
    weight += part.sum()
  assert found['loss'] == pytest.approx(0.7 * total / weight, rel=1e-5)


def test_evaluation_predicts_the_mean_of_both_heads():
  batch = jax.tree.map(jnp.asarray, BATCH | {'label': np.maximum(LABELS, 0)})
  output = TASK.sums(Linear(*WEIGHTS[:2]), batch, None)
  mean = (logits_of(BATCH['image'], 0) + logits_of(BATCH['image'], 1)) / 2
  expected = (losses(mean, batch['label']) * BATCH['weight']).sum()
  np.testing.assert_allclose(output.metrics['loss'][0], expected, rtol=1e-5)
  assert not output.further


def test_a_head_for_a_teacher_is_refused_in_training_without_distillation():
  batch = jax.tree.map(jnp.asarray, BATCH)
  plain = dataclasses.replace(TASK, distillation=None)
  with pytest.raises(UserError, match=r'ImageClassification\.distillation is not set'):
    plain.sums(Linear(*WEIGHTS[:2]), batch, jax.random.key(0))
  plain.sums(Linear(*WEIGHTS[:2]), batch, None)


def test_gradients_are_those_of_the_teachers_class_and_do_not_reach_the_teacher():
  loss, logits = TASK.distillation.divergence, jnp.asarray(WEIGHTS[:2, :5])
  of_student, of_teacher = jax.grad(lambda *a: loss(*a).sum(), argnums=(0, 1))(*logits)
  student, teacher = np.asarray(logits, np.float64)
  odds = np.exp(student)
  expected = odds / odds.sum(-1, keepdims=True) - np.eye(CLASSES)[teacher.argmax(-1)]
  np.testing.assert_allclose(of_student, expected, atol=1e-6)
  np.testing.assert_array_equal(of_teacher, 0.0)


def test_means_of_heads_are_of_logits_or_of_probabilities():
  a, b = jnp.asarray(WEIGHTS[:2, :3])
  np.testing.assert_allclose(LogitMean()(a, b), WEIGHTS[:2, :3].mean(0), rtol=1e-6)
  odds = np.exp(WEIGHTS[:2, :3].astype(np.float64))
  odds /= odds.sum(-1, keepdims=True)
  np.testing.assert_allclose(np.exp(ProbabilityMean()(a, b)), odds.mean(0), rtol=1e-5)


def test_a_part_of_the_training_labels_stays_and_others_are_refused_without_a_teacher():
  source = PartlyLabelled(source=Digits(), labelled=0.25)
  rows = source.load('train')
  labelled = [i for i in range(len(rows)) if 'label' in rows[i]]
  assert 0.2 < len(labelled) / len(rows) < 0.3
  assert rows[labelled[0]]['label'] == Digits().load('train')[labelled[0]]['label']
  assert all('label' in row for row in source.load('test'))
  bare = next(row for row in rows if 'label' not in row)
  draw = np.random.default_rng(0)
  assert TASK.transform(train=True)(bare, draw)['label'] == -1
  plain = dataclasses.replace(TASK, distillation=None)
  for transform in (PrepareImage(), TASK.transform(train=False), plain.transform(train=True)):
    with pytest.raises(UserError, match=r'no label.*ImageClassification\.distillation'):
      transform(bare, draw)
