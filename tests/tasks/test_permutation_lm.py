"""Permutation language modelling: the order of the rows, the tokens that a model gets, and the models it needs."""

import collections
import functools

import jax
import numpy as np
import pytest
import tiny_tasks
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Batches, OrderTokens
from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding, XLPositions
from t2x.models import Block, Encoder, LanguageModel, Stack, TwoStreams


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  task = tiny_tasks.make(folder)['PermutationLM']
  return task.bound(task.fit_tokenizer())


def model_of(stack):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=4),
    feed_forward=functools.partial(MLP, hidden_dim=24),
    encoding=functools.partial(XLPositions, num_heads=4),
  )
  layers = functools.partial(stack, num_layers=1, blocks=[block])
  return LanguageModel(
    d_model=16,
    embedding=functools.partial(TokenEmbedding, vocab_size=264),
    body=functools.partial(Encoder, stack=layers),
    rngs=nnx.Rngs(0),
  )


def test_chosen_tokens_are_last_in_a_random_order_and_stay_visible(task):
  rows = task.rows(task.train_split)
  batch = Batches(rows, task.transform(train=True), batch_size=8, seed=0)[0]
  plain = Batches(rows, None, batch_size=8, seed=0)[0]
  np.testing.assert_array_equal(batch['tokens'], plain['tokens'])
  for order, positions, labels, weights, tokens in zip(
    *(batch[n] for n in ('order', 'masked_positions', 'labels', 'weights', 'tokens')), strict=True
  ):
    count = int(weights.sum())
    chosen = positions[:count]
    assert sorted(order[chosen]) == list(range(1, count + 1))
    assert not np.delete(order, chosen).any()
    np.testing.assert_array_equal(labels[:count], tokens[chosen])
  # A sixth of 31 or 32 tokens that are not special.
  assert 4 <= batch['weights'].sum(axis=1).mean() <= 5.5


def test_all_orders_are_equally_frequent():
  row = {
    'tokens': np.arange(5),
    'masked_positions': np.array([0, 2, 3, 0]),
    'weights': np.array([1.0, 1.0, 1.0, 0.0]),
  }
  rng = np.random.default_rng(0)
  drawn = collections.Counter(tuple(OrderTokens()(row, rng)['order']) for _ in range(6000))
  assert len(drawn) == 6 and all(order[1] == order[4] == 0 for order in drawn)
  # Five standard deviations of a binomial distribution.
  assert max(abs(count - 1000) for count in drawn.values()) < 5 * np.sqrt(6000 * 5 / 36)


def test_a_loss_does_not_depend_on_tokens_that_are_later_in_the_order(task):
  """The label of the last token of the order is in no other prediction, and not in its own."""
  model = model_of(TwoStreams)
  rows = Batches(task.rows(task.train_split), task.transform(train=True), batch_size=4, seed=0)
  batch = {name: np.asarray(value) for name, value in rows[0].items()}
  last = batch['order'].argmax(axis=1)
  changed = batch['tokens'].copy()
  changed[np.arange(4), last] = 5 + (changed[np.arange(4), last] + 1) % 200
  sums = jax.jit(lambda batch: task.sums(model, batch, None).metrics['loss'])
  np.testing.assert_allclose(sums(batch), sums(batch | {'tokens': changed}), rtol=1e-6)
  first = batch['order'] == 1
  changed = np.where(first, 5 + (batch['tokens'] + 1) % 200, batch['tokens'])
  assert abs(sums(batch)[0] - sums(batch | {'tokens': changed})[0]) > 1e-3


def test_models_that_do_not_read_the_order_are_refused(task):
  task.check_model(model_of(TwoStreams))
  with pytest.raises(UserError, match='whose layers read the order of prediction: bind Encoder'):
    task.check_model(model_of(Stack))
  with pytest.raises(UserError, match='does not continue texts'):
    task.generate(None, ['a'], strategy=None, max_new_tokens=1)
