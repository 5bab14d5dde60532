"""The weights of the loss terms, which a task gives before the forward pass."""

import dataclasses

import jax
import numpy as np
import pytest
from loss_terms import TASKS, batch_of, model_of
from public_classes import public_classes

from t2x.domains.retrieval import CaptionContrast, Contrastive
from t2x.tasks import Distillation, HiddenCosine, MixUp, Task

MIXED = {
  'mixed_images': dataclasses.replace(TASKS['image_classification'], mixing=MixUp(alpha=1.0))
}


def test_every_task_is_among_those_tested():
  concrete = {*public_classes(Task).values()}
  # Losses of pairs cannot be accumulated; see tests/domains/retrieval/test_contrastive.py.
  assert concrete == {type(task) for task in TASKS.values()} | {CaptionContrast, Contrastive}


@pytest.mark.parametrize('name', [*TASKS, *MIXED])
@pytest.mark.parametrize('key', [None, 0], ids=['evaluation', 'training'])
def test_the_weight_of_the_loss_matches_the_reported_loss(name, key):
  task = (TASKS | MIXED)[name]
  batch = batch_of(task)
  key = None if key is None else jax.random.key(key)
  batch = batch if key is None else task.batch(batch, key)
  output = task.sums(model_of(task), batch, key)
  weights = task.weights(batch)
  assert weights.keys() == output.terms.keys()
  np.testing.assert_array_equal(weights['loss'], output.metrics['loss'][1])
  loss = output.coefficient * output.metrics['loss'][0]
  np.testing.assert_array_equal(output.terms['loss'], loss)
  assert 0 < weights['loss'] < task.target_weights(batch).size


LEARNERS = sorted(name for name, task in TASKS.items() if task.learns_from_teacher)


@pytest.mark.parametrize('name', LEARNERS)
def test_the_terms_of_a_teacher_have_the_weights_of_targets_and_of_tokens(name):
  """An example of several texts is one target, and each of its tokens counts once."""
  task = TASKS[name]
  batch = batch_of(task)
  loss = dict.fromkeys(['cosine'], HiddenCosine()) if 'segments' in batch else {}
  task = dataclasses.replace(task, distillation=Distillation(hidden=loss))
  weights = task.weights(batch)
  np.testing.assert_array_equal(weights['distillation'], weights['loss'])
  if loss:
    assert float(weights['distillation_cosine']) == np.count_nonzero(batch['segments'])
