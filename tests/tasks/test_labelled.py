"""What the tasks over labelled texts count."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_models import ONE, WithLogits, spec
from flax import nnx
from sklearn import metrics

from t2x.base.errors import UserError
from t2x.data import Bytes, TextFiles
from t2x.decode import Greedy
from t2x.layers import Causal, Full, named_key
from t2x.models import Output
from t2x.tasks import LanguageModelling, SequenceClassification, SpanPrediction, WordClassification
from t2x.tasks.prediction import predict
from t2x.tasks.span_prediction import drop_text_columns

TEXT = {'source': TextFiles(train='none'), 'tokenizer': Bytes()}


class Head:
  """Says what it is told to say."""

  def __init__(self, logits):
    self.logits, self.num_classes = jnp.asarray(logits, jnp.float32), len(logits[0])

  def classify(self, x, segments, key):
    return self.logits


class Told(WithLogits, nnx.Module):
  """A model whose logits are given: by row, or by token id."""

  def __init__(self, logits, pattern=Full(), outputs='class logits'):
    self.head = nnx.static(Head(logits))
    facts = {'vocab_size': 512, 'num_classes': len(logits[0])}
    self.spec = nnx.static(spec(ONE, outputs, [pattern], **facts))

  def hidden(self, ids, **known):
    return Output(jax.nn.one_hot(ids, 64))

  def logits(self, x):
    return self.head.logits[jnp.argmax(x, axis=-1)]


def metrics_of(task, model, batch):
  arrays = {name: jnp.asarray(value) for name, value in batch.items()}
  sums = task.sums(model, arrays, None).metrics
  return task.summarise({name: (float(a), float(b)) for name, (a, b) in sums.items()})


def texts(labels, weights, length=4):
  rows = np.ones((len(labels), length), np.int32)
  known = {'tokens': rows, 'types': 0 * rows, 'segments': rows}
  return known | {'label': np.array(labels), 'weight': np.array(weights)}


def test_a_classifier_leaves_the_dropout_masks_of_the_body():
  """The body has the key that it has under other objectives; the head has one of its own."""
  keys = []

  class KeyedHead(Head):
    def classify(self, x, segments, key):
      keys.append(key)
      return super().classify(x, segments, key)

  class Keyed(Told):
    def __init__(self, logits):
      super().__init__(logits)
      self.head = nnx.static(KeyedHead(logits))

    def hidden(self, ids, key=None, **known):
      keys.append(key)
      return super().hidden(ids, **known)

  task = SequenceClassification(**TEXT, labels=['no', 'yes'], length=4)
  key = jax.random.key(1)
  task.sums(Keyed([[0.0, 1.0]]), jax.tree.map(jnp.asarray, texts([1], [1])), key)
  assert keys == [key, named_key(key, 'head')]


def test_accuracy_and_f1_of_tabulated_predictions():
  task = SequenceClassification(**TEXT, labels=['no', 'yes'], length=4)
  guesses = [0, 1, 1, 1, 0, 1]
  model = Told(np.eye(2)[guesses])
  found = metrics_of(task, model, texts([0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]))
  assert found['accuracy'] == pytest.approx(3 / 5)
  # yes: 2 right of 3 told and 3 true; no: 1 right of 2 told and 2 true.
  assert found['f1'] == pytest.approx(2 / 3)
  assert found['macro_f1'] == pytest.approx((2 / 3 + 1 / 2) / 2)
  assert not any('/' in name for name in found)


def test_macro_f1_matches_scikit_learn():
  rng = np.random.default_rng(0)
  task = SequenceClassification(**TEXT, labels=list('abcde'), length=4)
  for _ in range(5):
    # Classes 3 and 4 may be missing on either side.
    true, told = rng.integers(0, 4, 12), rng.choice([0, 1, 2, 4], 12)
    found = metrics_of(task, Told(np.eye(5)[told]), texts(true, np.ones(12)))
    expected = metrics.f1_score(true, told, average='macro', zero_division=0)
    assert found['macro_f1'] == pytest.approx(expected, abs=1e-6)


def test_words_are_counted_once_and_padding_never():
  task = WordClassification(**TEXT, labels=['O', 'B-X', 'I-X'], length=4)
  # What a token says of its word: id 1 an O, 2 a B-X, 3 an I-X.
  logits = np.eye(3)[[0, 0, 1, 2]] * 5
  batch = {
    'tokens': np.array([[1, 2, 3, 3], [2, 2, 1, 1]]),
    'types': np.zeros((2, 4), int),
    'segments': np.ones((2, 4), int),
    'word_positions': np.array([[0, 1, 3, 0], [0, 1, 2, 3]]),
    'word_labels': np.array([[0, 1, 2, 0], [1, 0, 0, 1]]),
    'word_weights': np.array([[1, 1, 1, 0], [1, 1, 1, 0]]),
  }
  found = metrics_of(task, Told(logits), batch)
  assert found['accuracy'] == pytest.approx(5 / 6)
  # Told are X in the first sentence and two in the second; the first two are right.
  assert found['entity_precision'] == pytest.approx(2 / 3)
  assert found['entity_recall'] == pytest.approx(1)
  assert found['entity_f1'] == pytest.approx(4 / 5)
  plain = WordClassification(**TEXT, labels=list('abc'), length=4)
  assert 'entity_f1' not in metrics_of(plain, Told(logits), batch)


def spans(context, start, end):
  rows = np.array([[1, 2, 3, 4, 5, 6]] * len(start))
  known = {'tokens': rows, 'types': 0 * rows, 'segments': 0 * rows + 1}
  places = {'start': np.array(start), 'end': np.array(end), 'weight': np.ones(len(start), int)}
  return known | {'context': np.array([context] * len(start))} | places


def test_spans_are_looked_for_in_the_context_and_at_the_class_token():
  task = SpanPrediction(**TEXT, length=6, stride=2)
  # The question (tokens 2 and 3) would win, but is no place for an answer.
  logits = np.zeros((7, 2))
  logits[2:4] = 9
  logits[4, 0] = logits[5, 1] = 3
  batch = spans([0, 0, 0, 1, 1, 1], [3, 0], [4, 0])
  found = metrics_of(task, Told(logits), batch)
  assert found['span_accuracy'] == pytest.approx(0.5)
  total = math.exp(3) + 3
  assert found['loss'] == pytest.approx((math.log(total) - 3 + math.log(total)) / 2, rel=1e-5)


def test_the_best_span_starts_before_it_ends_and_is_not_too_long():
  class Rows(list):
    def __init__(self, context):
      spans_ = spans(context, [0], [0])
      chars = {'char_starts': [[0, 0, 0, 0, 2, 4]], 'char_ends': [[0, 0, 0, 1, 3, 5]]}
      row = {k: np.asarray(v)[0] for k, v in (spans_ | chars).items()} | {'example': np.int32(0)}
      super().__init__([row])

  examples = [{'context': 'a b c'}]
  logits = np.zeros((7, 2))
  logits[6, 0], logits[4, 1], logits[4, 0] = 9, 5, 1

  def answer(**settings):
    task = SpanPrediction(**TEXT, length=6, stride=2, eval_batch_size=2, **settings)
    model = Told(logits)

    def predicted(rows, function, batch_size):
      return predict(model, rows, drop_text_columns, function, batch_size)

    return task.answers(predicted, Rows([0, 0, 0, 1, 1, 1]), examples, [0])[0]

  # c is the likeliest start and its end is behind it or nowhere: a..a scores 6, c..c 9.
  assert answer() == 'c'
  logits[6, 0], logits[6, 1] = 2, 9
  assert answer() == 'c'
  logits[4, 0] = 4
  assert answer() == 'a b c'
  assert answer(answer_length=2) == 'c'


@pytest.mark.parametrize(
  ('task', 'good', 'bad', 'told'),
  [
    (WordClassification(**TEXT, labels=['a'], length=8), 'one word', ' ', 'has no words'),
    (SpanPrediction(**TEXT, length=8, stride=2), 'why?\tso', 'why?', 'a question, a tab and the'),
    (
      SequenceClassification(**TEXT, labels=['a'], fields=['text', 'second'], length=8),
      'one\ttwo',
      'one',
      '2 texts separated by a tab',
    ),
    (
      SequenceClassification(**TEXT, labels=['a'], fields=['text', 'second'], length=8),
      'one\ttwo',
      'one\ttwo\tthree',
      '2 texts separated by a tab',
    ),
  ],
)
def test_unanswerable_prompts_are_errors(task, good, bad, told):
  task.check_prompt(good)
  with pytest.raises(UserError, match=told):
    task.check_prompt(bad)
  with pytest.raises(UserError, match=told):
    task.generate(None, [good, bad], strategy=Greedy(), max_new_tokens=1)


def test_a_tab_in_a_single_text_belongs_to_it(monkeypatch):
  read = []

  def run_on_examples(self, function, model, examples):
    read.extend(examples)
    return [], np.zeros((1, 2))

  monkeypatch.setattr(SequenceClassification, 'run_on_examples', run_on_examples)
  task = SequenceClassification(**TEXT, labels=['no', 'yes'], length=8)
  task.generate(None, ['a\tb'], strategy=Greedy(), max_new_tokens=1)
  assert [example['text'] for example in read] == ['a\tb']


def test_the_joint_objective_adds_the_loss_of_the_text():
  auxiliary = LanguageModelling(weight=0.5)
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, 9, (3, 5))
  segments = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
  logits = rng.normal(size=(64, 9))
  weights = jnp.array([1.0, 1.0, 0.0])
  model = Told(logits, Causal())
  task = SequenceClassification(**TEXT, labels=['no', 'yes'], length=5)
  auxiliary.check_model(model, task)
  batch = {'tokens': jnp.asarray(tokens), 'segments': jnp.asarray(segments)}
  result = auxiliary(model, model.hidden(tokens), batch, weights, None)
  sums, term = result.metrics, result.total
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  by_text = [
    np.mean([-log_p[tokens[row, i], tokens[row, i + 1]] for i in range(count - 1)])
    for row, count in enumerate((5, 3))
  ]
  assert float(sums['loss'][0]) == pytest.approx(sum(by_text), rel=1e-5)
  assert float(sums['loss'][1]) == 2
  assert float(auxiliary.term_weight(batch, weights)) == 2
  assert float(term) == pytest.approx(0.5 * sum(by_text), rel=1e-5)
  with pytest.raises(UserError, match=r'LanguageModelling .* Full\(\) attends to later tokens'):
    auxiliary.check_model(Told(logits), task)


@pytest.mark.parametrize(
  ('task', 'head', 'told'),
  [
    (
      SequenceClassification(**TEXT, labels=['a', 'b'], length=4),
      [[0] * 3],
      'has 3 classes, but Seq',
    ),
    (WordClassification(**TEXT, labels=['a', 'b'], length=4), [[0] * 3], '@TokenClassifier'),
    (SpanPrediction(**TEXT, length=4, stride=2), [[0] * 3], 'num_classes = 2'),
    (
      WordClassification(**TEXT, labels=['O', 'B-X', 'X'], length=4),
      [[0] * 3],
      "'X' is not a BIO tag",
    ),
  ],
)
def test_a_head_that_does_not_fit_the_labels_is_an_error(task, head, told):
  with pytest.raises(UserError) as caught:
    task.check_model(Told(head, outputs=task.outputs))
  assert told in str(caught.value)
