"""Answers and their metrics against SQuAD 2.0's evaluation script and BERT's choice of the answer,
both written again here from their sources."""

import collections
import re
import string

import jax.numpy as jnp
import numpy as np
import pytest
from evaluating import evaluated
from fake_models import WithLogits, spec
from flax import nnx

from t2x.data import Bytes, Source
from t2x.decode import Greedy
from t2x.models import Output
from t2x.tasks import Answers, SpanPrediction
from t2x.tasks.prediction import predict
from t2x.tasks.span_prediction import drop_text_columns

BYTES = Bytes().train([])
WORDS = ('the', 'a', 'Cat', 'sat,', 'on', 'mat.', 'red')


def predicted(model):
  return lambda rows, function, size: predict(model, rows, drop_text_columns, function, size)


class Random(WithLogits, nnx.Module):
  """Logits drawn at random for each token and place."""

  def __init__(self, seed):
    rng = np.random.default_rng(seed)
    self.by_token = nnx.Param(jnp.asarray(rng.normal(size=(512, 2)) * 2, jnp.float32))
    by_place = rng.normal(size=(64, 2)) * 2
    by_place[0] = 3.5  # The class token competes with the best of many spans.
    self.by_place = nnx.Param(jnp.asarray(by_place, jnp.float32))
    self.spec = nnx.static(spec())

  def hidden(self, ids, **known):
    return Output(self.by_token[...][ids] + self.by_place[...][None, : ids.shape[1]])

  def logits(self, x):
    return x


class Questions(Source):
  """Contexts of a few words; a third of the questions has no answer, others one or two."""

  def __init__(self, seed, count=30):
    rng = np.random.default_rng(seed)
    self.examples = []
    for _ in range(count):
      words = rng.choice(WORDS, rng.integers(2, 9)).tolist()
      context, answers, starts = ' '.join(words), [], []
      for _ in range(rng.integers(0, 3)):
        first = int(rng.integers(len(words)))
        answers.append(' '.join(words[first : first + int(rng.integers(1, 3))]))
        starts.append(len(' '.join(words[:first])) + (first > 0))
      known = {'question': 'why?', 'context': context, 'answers': answers, 'starts': starts}
      self.examples.append(known)

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return self.examples

  def fingerprint(self):
    return repr(self.examples)

  def describe(self):
    return 'Questions()'


def bert(model, task, rows, examples):
  """`write_predictions` of BERT's run_squad.py with version_2_with_negative."""
  predictions = []
  for number, example in enumerate(examples):
    score_null, prelim = 1000000, []
    for row in (row for row in rows if row['example'] == number):
      logits = np.asarray(model.hidden(row['tokens'][None]).x[0])
      feature_null_score = logits[0, 0] + logits[0, 1]
      score_null = min(score_null, feature_null_score)
      for start in range(task.length):
        for end in range(start, min(start + task.answer_length, task.length)):
          if row['context'][start] and row['context'][end]:
            text = example['context'][row['char_starts'][start] : row['char_ends'][end]]
            prelim.append((logits[start, 0] + logits[end, 1], text))
    best_score, text = max(prelim, key=lambda one: one[0])
    score_diff = score_null - best_score
    empty = task.null_threshold is not None and score_diff > task.null_threshold
    predictions.append('' if empty else text)
  return predictions


def normalize_answer(s):
  """As evaluate-v2.0.py."""

  def remove_articles(text):
    return re.sub(re.compile(r'\b(a|an|the)\b', re.UNICODE), ' ', text)

  def white_space_fix(text):
    return ' '.join(text.split())

  def remove_punc(text):
    return ''.join(ch for ch in text if ch not in set(string.punctuation))

  return white_space_fix(remove_articles(remove_punc(s.lower())))


def compute_f1(a_gold, a_pred):
  """As evaluate-v2.0.py."""
  gold_toks, pred_toks = normalize_answer(a_gold).split(), normalize_answer(a_pred).split()
  common = collections.Counter(gold_toks) & collections.Counter(pred_toks)
  num_same = sum(common.values())
  if len(gold_toks) == 0 or len(pred_toks) == 0:
    return int(gold_toks == pred_toks)
  if num_same == 0:
    return 0
  precision, recall = num_same / len(pred_toks), num_same / len(gold_toks)
  return (2 * precision * recall) / (precision + recall)


def official(predictions, examples):
  """`get_raw_scores` and `make_eval_dict` of evaluate-v2.0.py, as fractions."""
  exact, f1 = [], []
  for a_pred, example in zip(predictions, examples, strict=True):
    gold_answers = [a for a in example['answers'] if normalize_answer(a)] or ['']
    exact.append(max(normalize_answer(a) == normalize_answer(a_pred) for a in gold_answers))
    f1.append(max(compute_f1(a, a_pred) for a in gold_answers))
  return {'exact_match': np.mean(exact), 'f1': np.mean(f1)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))


@pytest.mark.parametrize('threshold', [None, 0.0, -0.5, 0.5])
@pytest.mark.parametrize('seed', range(3))
def test_answers_match_bert_and_their_metrics_those_of_squad(threshold, seed):
  source, model = Questions(seed), Random(seed)
  task = SpanPrediction(
    source=source,
    tokenizer=Bytes(),
    length=24,
    stride=5,
    question_length=4,
    answer_length=9,
    eval_batch_size=7,
    null_threshold=threshold,
  ).bound(BYTES)
  rows, examples = list(task.rows('validation')), source.examples
  expected = bert(model, task, rows, examples)
  found = task.answers(predicted(model), rows, examples, range(len(examples)))
  answers = [found[i] for i in range(len(examples))]
  assert answers == expected
  if threshold is not None:  # Both are chosen.
    assert 0 < answers.count('') < len(answers)
  run = evaluated(task, model, rows, 4)
  whole = Answers()(run)
  assert whole.metrics == pytest.approx(official(expected, examples) | {'examples': len(examples)})
  assert [sample['output'] for sample in whole.samples] == expected[:10]
  # Spread evenly over the split.
  some = [i * len(examples) // 7 for i in range(7)]
  few = official([expected[i] for i in some], [examples[i] for i in some]) | {'examples': 7}
  assert Answers(num_examples=7)(run).metrics == pytest.approx(few)


@pytest.mark.parametrize('null', [0.0, 50.0])
def test_equal_spans_and_nan_are_no_answer(null):
  """Half of the questions have no answer, which only a clearly larger score of the class token is."""
  examples = [
    {'question': 'why?', 'context': 'x y z', 'answers': ['x'] * (i % 2), 'starts': [0] * (i % 2)}
    for i in range(6)
  ]
  source, model = Questions(0), Random(0)
  source.examples = examples
  task = SpanPrediction(source=source, tokenizer=Bytes(), length=24, stride=5).bound(BYTES)
  rows = list(task.rows('validation'))
  model.by_token[...] = jnp.zeros_like(model.by_token[...])
  model.by_place[...] = jnp.zeros_like(model.by_place[...]).at[0].set(null)
  run = evaluated(task, model, rows, 4)
  assert Answers()(run).metrics['exact_match'] == (0.5 if null else 0)
  model.by_token[...] = model.by_token[...].at[BYTES.encode('y')[0]].set(jnp.nan)
  found = Answers()(run)
  assert found.metrics == {'examples': 6, 'exact_match': 0, 'f1': 0}
  assert {sample['output'] for sample in found.samples} == {''}


@pytest.mark.parametrize('longest', [1, 3, 5])
def test_answers_have_at_most_the_maximum_number_of_tokens(longest):
  """Every token is a better start than the next one, and a worse end."""
  model, source = Random(0), Questions(0)
  place = jnp.arange(64.0)
  model.by_token[...] = jnp.zeros((512, 2))
  model.by_place[...] = jnp.stack([-100 * place, place], axis=1)
  settings = {
    'length': 64,
    'stride': 5,
    'question_length': 4,
    'answer_length': longest,
    'null_threshold': None,
  }
  task = SpanPrediction(source=source, tokenizer=Bytes(), **settings).bound(BYTES)
  rows = list(task.rows('validation'))
  answers = task.answers(predicted(model), rows, source.examples, range(len(source.examples)))
  assert [len(answers[i]) for i in answers] == [
    min(longest, len(example['context'])) for example in source.examples
  ]


def test_an_unanswerable_question_is_learnt_as_the_class_token():
  source = Questions(0)
  task = SpanPrediction(source=source, tokenizer=Bytes(), length=64, stride=5, question_length=4)
  for row in task.bound(BYTES).rows('train'):
    found = (row['start'] > 0, row['end'] > 0)
    assert found == (bool(source.examples[row['example']]['answers']),) * 2


def test_a_prompt_may_have_an_empty_answer():
  settings = {'length': 24, 'stride': 5, 'tokenizer': Bytes(), 'source': Questions(0)}
  kwargs = {'strategy': Greedy(), 'max_new_tokens': 1}
  for threshold, empty in ((-1e6, True), (1e6, False)):
    task = SpanPrediction(**settings, null_threshold=threshold, question_length=4)
    (answer,) = task.bound(BYTES).generate(Random(0), ['why?\tthe red cat'], **kwargs)
    assert (answer[0]['text'] == '') == empty
