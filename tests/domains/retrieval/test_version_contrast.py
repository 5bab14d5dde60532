"""A text against versions of itself: the rows, and the loss against a formula in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from flax import nnx
from loss_terms import Bag, gradient

from t2x.base.errors import UserError
from t2x.data import Batches, DeleteTokens, ReplaceTokens, ShuffleTokens
from t2x.domains.retrieval import VersionContrast
from t2x.layers import Input
from t2x.models import ModelSpec


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  task = tiny_tasks.make(folder)['VersionContrast']
  return task.bound(task.fit_tokenizer())


LENGTH = 32


@pytest.fixture(scope='module')
def batch(task):
  batch = Batches(task.rows('train'), task.transform(train=True), batch_size=8, seed=0)[0]
  # A version that equals its text, a text without other versions, and padding of an evaluation.
  ids = batch['tokens'].reshape(8, 3, LENGTH)
  ids[0, 1], ids[1], batch['weight'][1] = ids[0, 2], ids[1, 2], 0
  return {name: jnp.asarray(np.concatenate([a[:6], 0 * a[6:]])) for name, a in batch.items()}


def test_versions_have_the_special_tokens_and_the_words_of_the_text(task):
  rows, tokenizer = task.rows('train'), task.fitted
  batch = Batches(rows, task.transform(train=True), batch_size=8, seed=0)[0]
  again = Batches(rows, task.transform(train=True), batch_size=8, seed=0)
  assert (batch['tokens'] != again[1]['tokens']).any()
  np.testing.assert_array_equal(batch['tokens'], again[0]['tokens'])
  assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {
    n: (s.shape, s.dtype) for n, s in task.spec(8).items()
  }
  assert batch['weight'].all() and not batch['types'].any()
  for texts, segments in zip(
    *(batch[name].reshape(8, 3, LENGTH) for name in ('tokens', 'segments')), strict=True
  ):
    *versions, ids = texts
    np.testing.assert_array_equal(segments[:2], segments[[2, 2]])
    special, count = tokenizer.special[ids], np.count_nonzero(segments[2])
    for version in versions:
      np.testing.assert_array_equal(version[special], ids[special])
      assert not version[count:].any()
    np.testing.assert_array_equal(np.sort(versions[0]), np.sort(ids))
    changed = np.count_nonzero(versions[1] != ids)
    assert changed == np.ceil(0.15 * np.count_nonzero(~special[:count]))


class Scores(Bag):
  """One score, linear in the mean vector and in that of the first word, so that the order matters."""

  def classify(self, x, segments, key):
    return (x.mean(axis=1) + x[:, 1]) @ self.classes[...][:, :1]


def test_loss_and_gradient_equal_the_formula_in_float64(task, batch, compared):
  """-log exp(s) / (exp(s) + sum of exp(s of each version that differs)), the mean over texts with such versions."""
  model = Scores(512, nnx.Rngs(0))
  table, vector = (np.asarray(p[...], np.float64) for p in (model.table, model.classes))
  ids = np.asarray(batch['tokens']).reshape(8, 3, LENGTH)
  losses, right, above, slopes = [], 0, np.zeros(2), np.zeros_like(vector)
  for row in (0, 2, 3, 4, 5):
    features = np.array([table[v].mean(axis=0) + table[v][1] for v in ids[row]])
    kept = [0, 2] if row == 0 else [0, 1, 2]
    scores = features[kept] @ vector[:, 0]
    p = np.exp(scores) / np.exp(scores).sum()
    losses.append(-np.log(p[-1]))
    slopes[:, 0] += (p - np.eye(len(p))[-1]) @ features[kept] / 5
    right += scores[-1] > scores[:-1].max()
    above[kept[:-1]] += scores[-1] > scores[:-1]
  for parts in (1, 4):
    grads, metrics = gradient(task, model, batch, parts)
    system = 'contrast of versions', 'NumPy, float64'
    assert float(metrics['loss'][1]) == 5
    compared(*system, metrics['loss'][0], sum(losses))
    compared(*system, grads.classes[...], slopes, of='gradients')
    assert [float(n) for n in metrics['accuracy']] == [right, 5]
    assert [float(n) for n in metrics['shuffled']] == [above[0], 5]
    assert [float(n) for n in metrics['replaced']] == [above[1], 4]


def test_equal_scores_are_wrong(task, batch):
  model = Scores(512, nnx.Rngs(0))
  model.classes[...] = jnp.zeros_like(model.classes[...])
  metrics = jax.jit(lambda batch: task.sums(model, batch, None).metrics)(batch)
  assert float(metrics['accuracy'][0]) == float(metrics['shuffled'][0]) == 0


def test_heads_of_several_classes_are_refused(task):
  class Model:
    spec = ModelSpec(
      inputs={'tokens': Input(vocab_size=512)},
      outputs=frozenset({'class logits'}),
      patterns=(),
      num_classes=2,
    )

  with pytest.raises(UserError, match='2 classes, but VersionContrast needs 1'):
    task.check_model(Model())


def test_a_text_without_other_versions_has_no_weight(task):
  row = {'tokens': np.array([60, 0]), 'segments': np.array([1, 0])}
  same = dataclasses.replace(task, versions={'shuffled': ShuffleTokens()}).transform(train=True)
  assert same(row, np.random.default_rng(0))['weight'] == 0


def test_versions_of_other_lengths_are_padded(task):
  other = VersionContrast(
    source=task.source,
    tokenizer=task.tokenizer,
    length=task.length,
    versions={'deleted': DeleteTokens(rate=0.5), 'replaced': ReplaceTokens()},
  )
  batch = Batches(other.rows('train'), other.transform(train=True), batch_size=4, seed=0)[0]
  counts = batch['segments'].reshape(4, 3, LENGTH).sum(axis=2)
  assert (counts[:, 0] < counts[:, 1]).all()
  np.testing.assert_array_equal(counts[:, 1], counts[:, 2])
  np.testing.assert_array_equal(batch['tokens'] != 0, batch['segments'] != 0)
