"""Pairs of sentences: what they consist of, when they are drawn, and the loss of next sentence prediction."""

import dataclasses
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from loss_terms import Bag, gradient

from t2x.base.errors import UserError
from t2x.data import (
  Bytes,
  HeldOut,
  PairSentences,
  SentenceRows,
  Source,
  Swapped,
  evaluation_batches,
)
from t2x.layers import Input
from t2x.models import ModelSpec
from t2x.tasks import MaskedPairs, Mixture, NextSentence

BYTES = Bytes().train([])
LENGTH = 48


class Stories(Source):
  """Documents of numbered sentences: `3.14.` is sentence 14 of document 3."""

  def __init__(self, count=12):
    self.documents = [
      ''.join(f'<{number}.{i}{"x" * (i % 3)}>. ' for i in range(4 + 3 * number))
      for number in range(count)
    ]

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    documents = self.documents[::2] if split == 'train' else self.documents[1::2]
    return [{'text': text} for text in documents]

  def fingerprint(self):
    return f'stories {len(self.documents)}'


@pytest.fixture
def task(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  task = MaskedPairs(
    source=Stories(),
    tokenizer=Bytes(),
    length=LENGTH,
    rate=0.1,
    auxiliaries={'next': NextSentence()},
  )
  return task.bound(BYTES)


def texts(row):
  """The two texts of a pair."""
  present = row['segments'] != 0
  return [BYTES.decode(row['tokens'][present & (row['types'] == kind)].tolist()) for kind in (0, 1)]


def numbers(text):
  """(document, sentence) of the complete sentences of a text."""
  return [tuple(map(int, pair)) for pair in re.findall(r'<(\d+)\.(\d+)x*>', text)]


def test_rows_hold_each_sentence_once_and_fit_a_pair(task):
  rows = task.rows('train')
  found = []
  for row in rows:
    assert np.count_nonzero(row['segments']) <= LENGTH - 3
    count = np.count_nonzero(row['segments'])
    sentences = numbers(BYTES.decode(row['tokens'][:count].tolist()))
    assert len(sentences) == row['sentence'].max() + 1
    # The split has the documents 0, 2, 4, ...
    assert {number for number, _ in sentences} == {2 * int(row['document'])}
    found += sentences
  assert found == [(n, i) for n in range(0, 12, 2) for i in range(4 + 3 * n)]


def test_half_of_the_second_texts_follow_and_the_others_are_of_another_document(task):
  rows = task.rows('train')
  draw = PairSentences(tokenizer=BYTES, length=LENGTH)
  followed, ends = [], {0: [], 1: []}
  for seed in range(40):
    for index in range(len(rows)):
      pair = draw(rows[index], np.random.default_rng([seed, index]), rows)
      first, second = (numbers(text) for text in texts(pair))
      followed.append(int(pair['next']))
      ends[followed[-1]].append(np.count_nonzero(pair['segments']))
      if pair['next']:
        assert first + second == numbers(BYTES.decode(rows[index]['tokens'].tolist()))
      else:
        assert {n for n, _ in second}.isdisjoint({n for n, _ in first})
      assert pair['tokens'][0] == BYTES.pair[0][0]
      assert pair['tokens'].dtype == pair['types'].dtype == np.int32
      count = np.count_nonzero(pair['segments'])
      assert not pair['tokens'][count:].any()
      assert not pair['types'][count:].any()
  assert abs(np.mean(followed) - 0.5) < 0.05
  # The length does not tell whether the text follows.
  assert abs(np.mean(ends[0]) - np.mean(ends[1])) < 3


def test_half_of_the_pairs_of_sentence_order_are_swapped(task):
  rows = dataclasses.replace(task, source=Stories(40)).rows('train')
  draw = PairSentences(tokenizer=BYTES, length=LENGTH, negatives=Swapped())
  in_order = []
  for seed in range(4):
    for index in range(len(rows)):
      pair = draw(rows[index], np.random.default_rng([seed, index]), rows)
      first, second = (numbers(text) for text in texts(pair))
      own = numbers(BYTES.decode(rows[index]['tokens'].tolist()))
      in_order.append(int(pair['next']))
      if len(own) > 1:
        assert own == (first + second if pair['next'] else second + first)
      else:
        # A row of one sentence gets an unrelated text.
        assert first == own and not pair['next']
        assert second[0][0] != own[0][0]
  assert abs(np.mean(in_order) - 0.5) < 0.06


def test_documents_not_sentences_are_split_for_evaluation(task):
  divided = dataclasses.replace(task, source=HeldOut(source=Stories(60), test=0.4))
  seen = {}
  for split in ('train', 'test'):
    rows = divided.rows(split)
    batches = task.batches(rows, batch_size=len(rows), seed=0)
    restored = []
    for row in (r for step in range(3) for r in unstacked(batches[step])):
      row['tokens'][row['masked_positions']] = row['labels']
      restored += numbers(' '.join(texts(row)))
    seen[split] = {number for number, _ in restored}
  assert len(seen['train']) > 12
  assert len(seen['test']) > 8
  assert seen['train'].isdisjoint(seen['test'])


def test_pairs_are_drawn_anew_in_each_epoch_and_depend_only_on_the_seed_and_the_step(task):
  rows = task.rows('train')
  batches = task.batches(rows, batch_size=len(rows), seed=5)
  again = task.batches(rows, batch_size=len(rows), seed=5)
  first, second = batches[0], batches[1]
  again = pickle.loads(pickle.dumps(again))
  for name, array in again[1].items():
    np.testing.assert_array_equal(array, second[name])
  by_row = [{texts(r)[0][:3]: int(r['next']) for r in unstacked(b)} for b in (first, second)]
  assert by_row[0] != by_row[1]
  halves = [
    task.batches(rows, batch_size=len(rows) // 2 * 2, seed=5, process_index=i, process_count=2)[0]
    for i in range(2)
  ]
  whole = task.batches(rows, batch_size=len(rows) // 2 * 2, seed=5)[0]
  np.testing.assert_array_equal(
    np.concatenate([half['tokens'] for half in halves]), whole['tokens']
  )
  # Evaluation always has the same pairs.
  evaluated = [
    evaluation_batches(task.rows('validation'), task.transform(train=False), 4)[0]['tokens']
    for _ in range(2)
  ]
  np.testing.assert_array_equal(*evaluated)


def unstacked(batch):
  return [{n: array[i] for n, array in batch.items()} for i in range(len(batch['next']))]


def test_other_rows_are_those_of_the_same_split_and_of_the_own_task_of_a_mixture(task):
  other = MaskedPairs(
    source=Stories(4), tokenizer=Bytes(), length=LENGTH, rate=0.1, auxiliaries=task.auxiliaries
  )
  many = dataclasses.replace(other, source=Stories())
  mixture = Mixture(tasks={'many': many, 'few': other}).bound(BYTES)
  rows = mixture.rows('validation')
  batch = mixture.batches(rows, batch_size=64, seed=0)[0]
  seen = {0: set(), 1: set()}
  for row in unstacked(batch):
    masked = np.where(row['tokens'] == BYTES.mask_id, ord('?'), row['tokens'])
    seen[int(row['task'])] |= {n for n, _ in numbers(' '.join(texts(row | {'tokens': masked})))}
  assert seen[1] <= {1, 3}
  assert seen[0] - {1, 3}
  assert all(n % 2 for n in seen[0] if n < 10)


def test_a_single_document_is_an_error(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  task = MaskedPairs(source=Stories(1), tokenizer=Bytes(), length=LENGTH).bound(BYTES)
  rows = task.rows('train')
  draw = PairSentences(tokenizer=BYTES, length=LENGTH)
  with pytest.raises(UserError, match='all of document 0: next sentence prediction needs many'):
    for seed in range(30):
      draw(rows[0], np.random.default_rng(seed), rows)


class Pairs(Bag):
  """Class logits that are linear in the vector of the first token."""

  def classify(self, x, segments, key):
    return x[:, 0] @ self.classes[...][:, :2]


def test_the_gradient_is_that_of_both_losses(task):
  rows = list(task.rows('train'))
  batch = task.batches(rows, batch_size=8, seed=0)[0]
  # Padding of an evaluation does not count.
  batch = {n: np.concatenate([a[:6], 0 * a[6:]]) for n, a in batch.items()}
  batch = jax.tree.map(jnp.asarray, batch)
  assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {
    n: (s.shape, s.dtype) for n, s in task.spec(8).items()
  }
  model = Pairs(512, nnx.Rngs(0))

  def expected(model):
    x = model.table[...][batch['tokens']]
    log_p = jax.nn.log_softmax(x[:6, 0] @ model.classes[...][:, :2])
    # Class 0 follows, as in transformers.
    following = -jnp.where(batch['next'][:6] == 1, log_p[:, 0], log_p[:, 1]).mean()
    picked = jnp.take_along_axis(x, batch['masked_positions'][..., None], axis=1)
    log_q = jax.nn.log_softmax(picked @ model.out[...])
    tokens = -jnp.take_along_axis(log_q, batch['labels'][..., None], axis=-1)[..., 0]
    return (tokens * batch['weights']).sum() / batch['weights'].sum() + following, following

  grads, following = jax.grad(expected, has_aux=True)(model)
  for parts in (1, 4):
    ours, metrics = gradient(task, model, batch, parts)
    assert float(metrics['next_loss'][0] / metrics['next_loss'][1]) == pytest.approx(
      float(following), rel=1e-5
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, grads)
  assert 'masked_accuracy' in metrics
  assert 'next_accuracy' in metrics


def test_a_head_without_two_classes_is_refused(task):
  class Model:
    spec = ModelSpec(
      inputs={'tokens': Input(vocab_size=512)}, outputs=frozenset({'token logits'}), patterns=()
    )

  with pytest.raises(
    UserError, match='NextSentence needs two class logits, but the head of @Model'
  ):
    task.check_model(Model())


def test_segmentations_are_not_sampled():
  from t2x.data import SampledPieces

  with pytest.raises(UserError, match=r'leave out MaskedPairs\.pieces'):
    MaskedPairs(source=Stories(), tokenizer=Bytes(), length=9, pieces=SampledPieces(rate=0.1))


def test_the_plan_is_part_of_the_fingerprint():
  assert repr(SentenceRows(9)) != repr(SentenceRows(10))
