"""The page of wrong examples: the worst first, and the confusion matrix of scikit-learn."""

import json
import re
import types

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from t2x.base.errors import UserError
from t2x.cli.generate import _write
from t2x.data import Bytes
from t2x.data.sources.base import NoSource
from t2x.runs.mistakes import classifier, write_mistakes
from t2x.tasks import CausalLM, ImageClassification, SequenceClassification
from t2x.tasks.evaluators import Evaluation

LABELS, PREDICTED = np.array([0, 1, 2, 2, 1, 0]), np.array([0, 2, 2, 1, 2, -1])
LOSSES = np.array([0.1, 2.0, 0.2, 3.0, np.nan, 0.5])
RESULT = Evaluation({}, examples={'label': LABELS, 'prediction': PREDICTED, 'loss': LOSSES})


def data_of(task, rows, tmp_path, count, result=RESULT):
  inference = types.SimpleNamespace(rows=lambda split: rows)
  tokenizer = Bytes().train([])
  loaded = types.SimpleNamespace(task=task, inference=inference, tokenizer=tokenizer)
  write_mistakes(loaded, 'test', result, count, tmp_path / 'page.html')
  page = (tmp_path / 'page.html').read_text()
  return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_has_the_worst_images_and_the_confusion_matrix(tmp_path):
  task = ImageClassification(source=NoSource(), image_shape=(2, 2, 1), num_classes=3)
  rows = [{'image': np.full((2, 2, 1), i, np.uint8)} for i in range(6)]
  data = data_of(task, rows, tmp_path, 2)
  assert (data['examples'], data['wrong'], data['classes']) == (6, 4, ['0', '1', '2'])
  assert [(one['name'], one['label'], one['prediction']) for one in data['worst']] == [
    ('3', 2, 1),
    ('1', 1, 2),
  ]
  assert data['worst'][0]['image'].startswith('data:image/png;base64,')
  expected = confusion_matrix(LABELS, PREDICTED, labels=[0, 1, 2, -1])[:3]
  np.testing.assert_array_equal(data['matrix'], expected)
  assert data['pairs'][0] == [1, 2, 2] and sorted(data['pairs'][1:]) == [[0, -1, 1], [2, 1, 1]]


def test_the_page_has_texts_and_names(tmp_path):
  task = SequenceClassification(
    source=NoSource(), tokenizer=Bytes(), labels=['a', 'b', 'c'], length=8
  )
  encode = Bytes().train([]).encode
  rows = [
    {'tokens': np.array([*encode(f'text {i}'), 0]), 'segments': np.array([1] * 6 + [0])}
    for i in range(6)
  ]
  names = Evaluation(
    {}, examples={**RESULT.examples, 'name': np.array([f'n{i}' for i in range(6)])}
  )
  worst = data_of(task, rows, tmp_path, 9, names)['worst']
  assert [(one['name'], one['text']) for one in worst[:2]] == [('n3', 'text 3'), ('n1', 'text 1')]
  assert len(worst) == 4


def test_only_classifiers_have_mistakes():
  loaded = types.SimpleNamespace(task=CausalLM(source=NoSource(), tokenizer=Bytes(), length=8))
  with pytest.raises(
    UserError, match=r'--mistakes needs a classifier, but Experiment\.task is CausalLM'
  ):
    classifier(loaded)


def test_completions_are_written_as_a_table_or_as_lines(tmp_path):
  more = {'tokens': [0], 'log_probs': [-1.0]}
  one = {'prompt': 'a,b', 'text': 'x\ny', 'score': -1.0, 'probability': 0.4, **more}
  answers = [{**one, 'others': [{'text': 'z', 'score': -2.0, 'probability': 0.1, **more}]}]
  for name in ('a.csv', 'a.txt', 'a.jsonl'):
    with (tmp_path / name).open('w') as file:
      _write(iter(answers), name, file)
  table = 'prompt,text,score,probability\n"a,b","x\ny",-1.0,0.4\n"a,b",z,-2.0,0.1\n'
  assert (tmp_path / 'a.csv').read_text() == table
  assert (tmp_path / 'a.txt').read_text() == 'x y\n'
  assert json.loads((tmp_path / 'a.jsonl').read_text()) == answers[0]
