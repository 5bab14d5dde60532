"""Regression on texts: the loss and the correlations against scipy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluating import evaluated
from fake_models import ONE, WithLogits, spec
from flax import nnx
from loss_terms import assert_close, gradient
from scipy import stats

from t2x.base.errors import UserError
from t2x.data import Bytes, Source
from t2x.decode import Greedy
from t2x.layers import normal, param
from t2x.models import Output
from t2x.tasks import Correlations, TextRegression
from t2x.train import Experiment
from t2x.train.evaluation import Inference


class Scored(Source):
  """Texts with numbers, some of which are equal."""

  def __init__(self, count=23):
    rng = np.random.default_rng(0)
    self.examples = [
      {'text': 'x' * int(rng.integers(1, 6)), 'rating': float(rng.integers(0, 8) / 3)}
      for _ in range(count)
    ]

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return self.examples

  def fingerprint(self):
    return f'scored {self.examples[0]["rating"]}'


class Mean(WithLogits, nnx.Module):
  """The mean of a number per token."""

  def __init__(self):
    self.table = param(normal(1.0), (512, 1), ('vocab', 'embed'), nnx.Rngs(0), kind='table')
    self.spec = nnx.static(spec(ONE, 'class logits', num_classes=1, vocab_size=512))

  @property
  def head(self):
    return self

  def hidden(self, ids, **settings):
    place = jnp.arange(ids.shape[1])[:, None]
    return Output(self.table[...][ids] * (1 + place))

  def classify(self, x, segments, key):
    return (x * (segments != 0)[..., None]).sum(axis=1) / 9


class Shifted(Mean):
  """The same, plus a constant."""

  def __init__(self, mean):
    super().__init__()
    self.mean = mean

  def classify(self, x, segments, key):
    return super().classify(x, segments, key) + self.mean


@pytest.fixture
def task(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  task = TextRegression(source=Scored(), tokenizer=Bytes(), length=8, score='rating')
  return task.bound(Bytes().train([]))


def batch_of(task, rows):
  columns = {name: np.stack([row[name] for row in rows]) for name in task.spec(1)}
  shapes = {name: (array.dtype, array.shape) for name, array in columns.items()}
  expected = {name: (s.dtype, s.shape) for name, s in task.spec(len(rows)).items()}
  assert shapes == expected
  return jax.tree.map(jnp.asarray, columns)


def numbers(task, model, rows):
  """The predictions and the numbers, in float64 from the texts."""
  table = np.asarray(model.table[...], np.float64)[:, 0]
  x = [
    sum((1 + i) * table[t] for i, t in enumerate(row['tokens']) if row['segments'][i]) / 9
    for row in rows
  ]
  return np.array(x), np.array([example['rating'] for example in task.source.examples])


def test_the_correlations_equal_those_of_scipy(task):
  model, rows = Mean(), task.rows('validation')
  x, y = numbers(task, model, rows)
  run = evaluated(task, model, rows, 4)
  result = Correlations()(run)
  assert result.metrics['examples'] == 23
  assert result.metrics['pearson'] == pytest.approx(stats.pearsonr(x, y)[0], rel=1e-5)
  assert result.metrics['spearman'] == pytest.approx(stats.spearmanr(x, y)[0], rel=1e-5)
  np.testing.assert_allclose(result.examples['squared_error'], (x - y) ** 2, rtol=1e-5)
  few = Correlations(num_examples=9)(run).metrics
  some = [i * 23 // 9 for i in range(9)]
  assert few['pearson'] == pytest.approx(stats.pearsonr(x[some], y[some])[0], rel=1e-5)


def test_the_correlations_with_a_constant_are_0(task):
  rows = task.rows('validation')
  same = [dict(row) | {'target': np.float32(0.1)} for row in rows]
  constant = Mean()
  constant.table[...] = jnp.zeros_like(constant.table[...])
  for model, part in ((constant, rows), (Mean(), same)):
    metrics = Correlations()(evaluated(task, model, part, 4)).metrics
    assert [metrics['pearson'], metrics['spearman']] == pytest.approx([0, 0], abs=1e-9)


@pytest.mark.parametrize('batch_size', [8, 23])
@pytest.mark.parametrize('mean', [0, 1000])
def test_the_metric_of_several_batches_is_the_correlation_of_all_examples(task, mean, batch_size):
  source = Scored()
  source.examples = [e | {'rating': e['rating'] + mean} for e in source.examples]
  task = dataclasses.replace(task, source=source)
  x, y = numbers(task, Mean(), task.rows('validation'))
  experiment = Experiment(model=lambda rngs: Shifted(mean), task=task)
  inference = Inference(experiment, task.fitted, batch_size=batch_size)
  params = inference.program.blueprint.params(Shifted(mean))
  result = inference.evaluation(params, 'validation')
  assert result.metrics.keys() == {'loss', 'pearson', 'eval_examples'}
  assert result.metrics['pearson'] == pytest.approx(stats.pearsonr(x, y)[0], rel=1e-4)
  assert result.metrics['loss'] == pytest.approx(np.mean((x + mean - y) ** 2), rel=1e-3)
  assert result.examples.keys() == {'loss'}


@pytest.mark.parametrize('mean', [0, 1000])
def test_the_correlation_of_a_training_batch_is_that_of_its_rows_without_padding(task, mean):
  rows = list(task.rows('validation'))[:8]
  rows = [row | {'target': np.float32(row['target'] + mean)} for row in rows]
  x, _ = numbers(task, Mean(), rows)
  y = [float(row['target']) for row in rows]
  # A padded row does not count.
  rows.append(rows[-1] | {'weight': 0 * rows[-1]['weight'], 'target': np.float32(99)})
  sums = task.sums(Shifted(mean), batch_of(task, rows), None).metrics
  metrics = task.summarise({name: tuple(map(float, pair)) for name, pair in sums.items()})
  assert metrics.keys() == {'loss', 'pearson'}
  assert metrics['pearson'] == pytest.approx(stats.pearsonr(x, y)[0], rel=1e-4)


def test_the_gradient_is_that_of_the_mean_squared_error(task):
  model, rows = Mean(), list(task.rows('validation'))[:8]
  batch = batch_of(task, rows)

  def expected(model):
    x = model.classify(model.hidden(batch['tokens']).x, batch['segments'], None)[:, 0]
    return jnp.mean((x - batch['target']) ** 2)

  grads = jax.grad(expected)(model)
  for parts in (1, 4):
    assert_close(gradient(task, model, batch, parts)[0], grads)


def test_a_prompt_is_answered_with_its_number(task):
  model = Mean()
  answers = task.generate(model, ['xx', 'x'], strategy=Greedy(), max_new_tokens=1)
  rows = [row for row in task.rows('train') if np.count_nonzero(row['segments']) == 4]
  x, _ = numbers(task, model, rows[:1])
  assert float(answers[0][0]['text']) == pytest.approx(x[0], rel=1e-3)
  assert len(answers) == 2


def test_a_number_that_is_missing_or_not_finite_is_an_error(task):
  for value in (None, 'a', float('nan'), True):
    bad = dataclasses.replace(task, source=Scored())
    bad.source.examples[3]['rating'] = value
    bad.source.fingerprint = lambda value=value: f'bad {value}'
    with pytest.raises(UserError, match=r"example 3 has 'rating' = .* which is no finite number"):
      bad.rows('train')


def test_a_head_with_several_logits_is_refused(task):
  model = Mean()
  model.spec = nnx.static(spec(ONE, 'class logits', num_classes=2, vocab_size=512))
  with pytest.raises(UserError, match='has 2 classes, but TextRegression needs 1'):
    task.check_model(model)
