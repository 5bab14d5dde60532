"""The loss of a student and its teacher, against PyTorch."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_terms import TASKS, assert_close, batch_of, gradient, model_of

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Hyperparameter
from t2x.base.step import in_step
from t2x.config.type_check import is_tunable
from t2x.tasks import Distillation, HiddenCosine, MixUp

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
from torch.nn import functional  # noqa: E402

ALPHA, TEMPERATURE = 0.3, 3.0
DISTILLATION = Distillation(alpha=ALPHA, temperature=TEMPERATURE)
LABELS = {
  'causal_lm': 'tokens',
  'masked_lm': 'labels',
  'image_classification': 'label',
  'sequence_classification': 'label',
}
DISTILLED = {
  name: dataclasses.replace(TASKS[name], distillation=DISTILLATION)
  for name in [*LABELS, 'with_token_modelling']
}


def models(task):
  """A student and a teacher with other parameters."""
  student = model_of(task)
  return student, jax.tree.map(lambda a: jnp.flip(a) + 0.1, student)


def total(task, output, batch):
  weights = task.weights(batch)
  assert weights.keys() == output.terms.keys()
  return sum(float(term / weights[name]) for name, term in output.terms.items())


def logits_of(task, model, batch):
  return torch.tensor(np.asarray(task.predictions(model, batch, None)[0], np.float64))


@pytest.mark.parametrize('name', LABELS)
def test_the_loss_equals_that_of_pytorch(name):
  task = DISTILLED[name]
  batch, (student, teacher) = batch_of(task), models(task)
  output = task.sums(student, batch, jax.random.key(0), teacher)
  ours, theirs = (logits_of(task, model, batch) for model in (student, teacher))
  labels = torch.tensor(np.asarray(batch[LABELS[name]], np.int64))
  weights = torch.tensor(np.asarray(task.target_weights(batch), np.float64))
  smoothing = 0.1 if name == 'image_classification' else 0.0
  hard = functional.cross_entropy(
    ours.flatten(0, -2), labels.flatten(), reduction='none', label_smoothing=smoothing
  )
  soft = functional.kl_div(
    *((one / TEMPERATURE).log_softmax(-1) for one in (ours, theirs)),
    reduction='none',
    log_target=True,
  ).sum(-1)
  losses = (1 - ALPHA) * hard.view_as(weights) + ALPHA * TEMPERATURE**2 * soft
  expected = (losses * weights).sum() / weights.sum()
  assert total(task, output, batch) == pytest.approx(float(expected), rel=1e-6)
  # What is reported is the loss of the labels.
  reported, weight = output.metrics['loss']
  label_loss = (hard.view_as(weights) * weights).sum() / weights.sum()
  assert float(reported / weight) == pytest.approx(float(label_loss), rel=1e-6)


def test_gradients_equal_those_of_pytorch_and_do_not_reach_the_teacher():
  rng = np.random.default_rng(0)
  student, teacher = (rng.normal(size=(5, 7)).astype(np.float32) for _ in range(2))
  ours = jax.grad(lambda *a: DISTILLATION.divergence(*a).sum(), argnums=(0, 1))(student, teacher)
  leaf = torch.tensor(student, dtype=torch.float64, requires_grad=True)
  one, other = (a / TEMPERATURE for a in (leaf, torch.tensor(teacher, dtype=torch.float64)))
  loss = functional.kl_div(one.log_softmax(-1), other.softmax(-1), reduction='sum')
  (TEMPERATURE**2 * loss).backward()
  np.testing.assert_allclose(ours[0], leaf.grad, rtol=0, atol=1e-6)
  np.testing.assert_array_equal(ours[1], 0.0)


def test_evaluation_and_a_teacher_equal_to_the_student_give_only_the_loss_of_the_labels():
  task, plain = DISTILLED['causal_lm'], TASKS['causal_lm']
  batch, (student, _) = batch_of(task), models(task)
  alone = plain.sums(student, batch, None)
  for name, pair in task.sums(student, batch, None).metrics.items():
    np.testing.assert_array_equal(pair, alone.metrics[name])
  same = task.sums(student, batch, jax.random.key(0), student)
  expected = (1 - ALPHA) * float(alone.metrics['loss'][0] / alone.metrics['loss'][1])
  assert total(task, same, batch) == pytest.approx(expected, rel=1e-6)


def test_the_teacher_reads_the_mixed_images():
  mixing = MixUp(alpha=1.0)
  task = dataclasses.replace(DISTILLED['image_classification'], mixing=mixing)
  plain = dataclasses.replace(task, mixing=None)
  batch, (student, teacher) = batch_of(task), models(task)
  seen = []

  class Watched(type(teacher)):
    def __call__(self, images, key=None):
      seen.append(images)
      return super().__call__(images, key)

  watched = Watched.__new__(Watched)
  vars(watched).update(vars(teacher))
  mixed = task.batch(batch, jax.random.key(0))
  output = task.sums(student, mixed, jax.random.key(0), watched)
  np.testing.assert_array_equal(seen[0], mixed['image'])
  assert not np.array_equal(mixed['image'], batch['image'])
  expected = plain.sums(student, mixed, jax.random.key(0), teacher).terms['distillation']
  np.testing.assert_allclose(output.terms['distillation'], expected, rtol=1e-6)


HIDDEN = dataclasses.replace(DISTILLATION, hidden={'cosine': HiddenCosine(weight=0.4)})


@pytest.mark.parametrize('name', ['masked_lm', 'sequence_classification'])
def test_the_loss_of_hidden_vectors_is_the_mean_over_tokens_that_are_not_padding(name):
  task = dataclasses.replace(TASKS[name], distillation=HIDDEN)
  batch, (student, teacher) = batch_of(task), models(task)
  output = task.sums(student, batch, jax.random.key(0), teacher)
  x, y = (
    torch.tensor(np.asarray(task.predictions(model, batch, None)[1].x, np.float64))
    for model in (student, teacher)
  )
  cosine = functional.cosine_similarity(x, y, dim=-1)[np.asarray(batch['segments']) != 0]
  found = output.terms['distillation_cosine'] / task.weights(batch)['distillation_cosine']
  assert float(found) == pytest.approx(float(0.4 * (1 - cosine).mean()), rel=1e-5)
  weighted = dict(batch) | {'loss_weight': jnp.arange(8.0)}
  assert float(task.weights(weighted)['distillation_cosine']) == pytest.approx(
    float((np.arange(8) * (np.asarray(batch['segments']) != 0).sum(axis=1)).sum())
  )


def test_hidden_vectors_of_another_width_and_tasks_without_them_are_refused(monkeypatch):
  task = dataclasses.replace(TASKS['masked_lm'], distillation=HIDDEN)
  student, teacher = models(task)
  for name in ('masked_lm', 'image_classification'):
    monkeypatch.setattr(type(TASKS[name]), 'check_model', lambda *_: None)
  wide = jax.tree.map(lambda a: a, teacher)
  wide.table, wide.out = wide.table[...].repeat(2, axis=1), wide.out[...].repeat(2, axis=0)
  with pytest.raises(UserError, match=r'has hidden vectors of width 8, but .* have 4'):
    task.check_teacher(student, wide)
  task = dataclasses.replace(TASKS['image_classification'], distillation=HIDDEN)
  student, teacher = models(task)
  with pytest.raises(
    UserError, match=r'has no hidden vectors of tokens: leave out Distillation\.hidden'
  ):
    task.check_teacher(student, teacher)


@pytest.mark.parametrize('name', ['causal_lm', 'with_token_modelling'])
def test_micro_batches_of_different_weights_give_the_gradient_of_the_whole_batch(name):
  task = DISTILLED[name]
  batch, (student, teacher) = batch_of(task), models(task)
  whole, sums = gradient(task, student, batch, teacher=teacher)
  parts, same = gradient(task, student, batch, accumulate=4, teacher=teacher)
  assert_close(parts, whole)
  np.testing.assert_allclose(same['distillation'], sums['distillation'], rtol=1e-6)


def test_alpha_and_the_temperature_may_vary_between_trials():
  hints = typing.get_type_hints(Distillation, include_extras=True)
  assert is_tunable(hints['alpha']) and is_tunable(hints['temperature'])
  task = DISTILLED['sequence_classification']
  references = Distillation(alpha=Hyperparameter('a'), temperature=Hyperparameter('t'))
  varied = dataclasses.replace(task, distillation=references)
  batch, (student, teacher) = batch_of(task), models(task)

  @jax.jit
  def terms(scalars):
    with in_step(scalars=scalars):
      return varied.sums(student, batch, jax.random.key(0), teacher).terms

  found = terms({'a': jnp.float32(ALPHA), 't': jnp.float32(TEMPERATURE)})
  expected = task.sums(student, batch, jax.random.key(0), teacher).terms
  assert found.keys() == expected.keys() == {'loss', 'distillation'}
  for name, term in expected.items():
    np.testing.assert_allclose(found[name], term, rtol=1e-6)


def test_a_teacher_that_the_task_does_not_read_and_a_missing_one_are_refused():
  plain, task = TASKS['image_classification'], DISTILLED['image_classification']
  student, teacher = models(task)
  with pytest.raises(UserError, match=r'Experiment\.teacher is set, but .*distillation is not'):
    plain.check_teacher(student, teacher)
  with pytest.raises(UserError, match=r'distillation is set, but Experiment\.teacher is not'):
    task.check_teacher(student, None)
  with pytest.raises(UserError, match='Translation does not support distillation'):
    TASKS['translation'].check_teacher(student, teacher)
  plain.check_teacher(student, None)
