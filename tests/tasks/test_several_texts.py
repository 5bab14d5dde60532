"""Examples of several texts: both orders of a pair, and the choices of a question."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_terms import TASKS, batch_of, model_of

from t2x.base.errors import UserError
from t2x.data import Bytes, DrawnChoices, DrawnPairs, Source
from t2x.decode import Greedy
from t2x.layers import NO_AUX, Aux
from t2x.models import Output
from t2x.tasks import MultipleChoice, SequenceClassification

TOKENIZER = Bytes().fit(list)


class Pairs(Source):
  """Numbers as digits and as letters."""

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return [{'source': str(i), 'target': 'abcdefghij'[i % 10], 'name': i} for i in range(30)]

  def fingerprint(self):
    return 'pairs'


def rows_of(task, examples):
  rows = list(task.plan.rows(examples, TOKENIZER, collections.Counter()))
  return [{name: np.asarray(array) for name, array in row.items()} for row in rows]


def texts_of(row, count):
  """The texts of a row with its special ids, which are numbers below 5."""
  rows = zip(*(row[name].reshape(count, -1) for name in ('tokens', 'segments')), strict=True)
  return [
    ' '.join(chr(i - 5) if i >= 5 else f'<{i}>' for i in tokens[present > 0])
    for tokens, present in rows
  ]


def test_a_row_has_both_orders_of_a_pair_and_their_fields():
  task = SequenceClassification(
    tokenizer=Bytes(), labels=['p', 'q'], length=7, fields=['a', 'b'], further_orders=[['b', 'a']]
  )
  [row] = rows_of(task, [{'a': 'x', 'b': 'yz', 'label': 'q'}])
  assert texts_of(row, 2) == ['<3> x <1> y z <1>', '<3> y z <1> x <1>']
  assert row['label'] == 1 and row['tokens'].shape == task.spec(1)['tokens'].shape[1:] == (14,)
  for orders in ([['a', 'b']], [['b', 'c']], [['b', 'a'], ['b', 'a']], [['a']]):
    with pytest.raises(UserError, match=r'further_orders = .* must be another order of the fields'):
      dataclasses.replace(task, further_orders=orders)


def test_a_row_has_the_context_with_each_choice():
  task = MultipleChoice(tokenizer=Bytes(), length=10, context=['a', 'b'], num_choices=3)
  [row] = rows_of(task, [{'a': 'x', 'b': 'y', 'choices': ['p', 'q', 'rs'], 'answer': 2}])
  assert texts_of(row, 3) == [f'<3> x \n y <1> {choice} <1>' for choice in ('p', 'q', 'r s')]
  assert row['label'] == 2
  for example, message in (
    ({'choices': ['p', 'q'], 'answer': 1}, "must have 3 texts in 'choices'"),
    ({'choices': ['p', 'q', 'r'], 'answer': 3}, "'answer' = 3: must be .* from 0 to 2"),
  ):
    with pytest.raises(UserError, match=message):
      rows_of(task, [{'a': 'x', 'b': 'y'} | example])


class Rows:
  """A model whose auxiliary loss and logits are the numbers of the first token; it records keys and ids."""

  head = property(lambda self: self)
  spec = model_of(TASKS['both_orders']).spec

  def hidden(self, ids, tokens, types, key):
    self.ids, self.key = ids, key
    return Output(ids[..., None].astype(float), aux=Aux({'balance': ids[:, 0].astype(float)}))

  def classify(self, x, segments, key, texts=1):
    return x[:, 0].reshape(-1, texts, 1).sum(axis=1)


@pytest.mark.parametrize('name', ['both_orders', 'multiple_choice'])
def test_the_model_reads_each_text_in_a_row_of_its_own_with_other_dropout(name):
  task, model = TASKS[name], Rows()
  batch, keys = batch_of(task), jax.random.split(jax.random.key(0), 8)
  values, out = task.predictions(model, batch, keys)
  texts = batch['tokens'].reshape(8, -1, 8)
  np.testing.assert_array_equal(model.ids, texts.reshape(-1, 8))
  sums = texts[:, :, 0]
  expected = sums.sum(axis=1) if name == 'both_orders' else sums
  np.testing.assert_array_equal(values, expected)
  np.testing.assert_allclose(out.aux.losses['balance'], sums.mean(axis=1))
  data = np.asarray(jax.random.key_data(model.key))
  assert len(np.unique(data, axis=0)) == len(data) == sums.size
  # The keys of an example do not depend on the other examples.
  task.predictions(model, jax.tree.map(lambda a: a[3:4], batch), keys[3:4])
  np.testing.assert_array_equal(jax.random.key_data(model.key), data.reshape(8, -1, 2)[3])
  assert NO_AUX.losses == {}


def test_a_prompt_is_answered_with_the_likeliest_choices():
  task = MultipleChoice(tokenizer=Bytes(), length=12, context=['a', 'b'], num_choices=3)
  task = task.bound(TOKENIZER)
  model = model_of(TASKS['multiple_choice'])
  [answers] = task.generate(
    model, ['x\tp\tqq\trrr'], strategy=Greedy(), max_new_tokens=1, num_return=3
  )
  [row] = rows_of(task, [{'a': 'x', 'b': '', 'choices': ['p', 'qq', 'rrr'], 'answer': 0}])
  batch = {name: jnp.asarray(array)[None] for name, array in row.items()}
  logits, _ = task.predictions(model, batch, None)
  order = np.argsort(-np.asarray(logits[0]))
  assert [answer['text'] for answer in answers] == [['p', 'qq', 'rrr'][i] for i in order]
  np.testing.assert_allclose(
    [answer['score'] for answer in answers], jax.nn.log_softmax(logits[0])[order], rtol=1e-5
  )
  with pytest.raises(UserError, match='a context and 3 choices, separated by tabs'):
    task.check_prompt('x\tp\tq')


def test_wrong_choices_are_answers_of_other_examples_and_differ_from_the_right_one():
  source = DrawnChoices(source=Pairs(), num_choices=4)
  examples = source.load('train')
  answers = collections.Counter()
  for original, example in zip(Pairs().load('train'), examples, strict=True):
    assert example['choices'][example['answer']] == original['target']
    assert len(set(example['choices'])) == 4 and 'target' not in example
    answers[example['answer']] += 1
  assert set(answers) == {0, 1, 2, 3}
  assert examples[7] == list(examples)[7] == examples[5:9][2]
  with pytest.raises(UserError, match="too few different texts 'target'"):
    DrawnChoices(source=Pairs(), num_choices=11).load('train')[0]


def test_half_of_the_pairs_have_the_text_of_another_example():
  examples = DrawnPairs(source=Pairs()).load('train')
  labels = collections.Counter()
  for original, example in zip(Pairs().load('train'), examples, strict=True):
    assert (example['target'] == original['target']) == (example['label'] == 'same')
    labels[example['label']] += 1
  assert min(labels.values()) > 8
