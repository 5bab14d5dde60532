"""TFDS data sets, prepared and read without TensorFlow."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import tiny_builders

from t2x.base.errors import UserError
from t2x.data import TFDS, Bytes, LabelledWords, SpanWindows, token_rows

BYTES = Bytes().train([])


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return str(tmp_path_factory.mktemp('tfds'))


def test_a_data_set_by_name(folder, capsys):
  source = TFDS(name='tiny_pairs', data_dir=folder)
  train = source.load('train')
  assert sorted(source.splits()) == ['test', 'train']
  assert len(train) == 20
  assert len(list(train)) == 20
  example = min(train, key=lambda e: int(e['en'].split()[1]))
  assert type(example['en']) is str
  assert type(example['label']) is int
  assert example['image'].dtype == np.uint8
  assert example['image'].shape == (4, 3, 1)
  assert train[-1]['en'] == train[19]['en']
  assert 'tensorflow' not in sys.modules
  said = capsys.readouterr()
  assert said.out == said.err == ''


def test_fields_under_our_names(folder):
  fields = {'source': 'en', 'target': 'texts/de'}
  first = TFDS(name='tiny_pairs', data_dir=folder, fields=fields).load('test')[0]
  number = first['source'].split()[1]
  assert first == {'source': f'number {number}', 'target': f'die Zahl {number} (ä)'}


def test_slices_in_the_syntax_of_tfds(folder):
  split_names = {'train': 'train[:90%]', 'validation': 'train[90%:]'}
  source = TFDS(name='tiny_pairs:1.2.0', data_dir=folder, split_names=split_names)
  assert source.splits() == ('train', 'validation')
  train = [e['en'] for e in source.load('train')]
  validation = [e['en'] for e in source.load('validation')]
  assert (len(train), len(validation)) == (18, 2)
  assert len({*train, *validation}) == 20
  assert len(source.load('test[:2]')) == 2


def test_examples_can_be_read_in_another_process(folder):
  source = TFDS(name='tiny_pairs', data_dir=folder)
  train = source.load('train')
  code = 'import sys, pickle; print(pickle.load(sys.stdin.buffer)[7]["en"])'
  done = subprocess.run(
    [sys.executable, '-c', f'import sys; sys.path[:] = {sys.path!r}\n{code}'],
    input=pickle.dumps(train),
    capture_output=True,
    check=True,
  )
  assert done.stdout.decode().strip() == train[7]['en']
  assert pickle.loads(pickle.dumps(source)) == source
  assert hash(source) == hash(TFDS(name='tiny_pairs', data_dir=folder))


def test_the_fingerprint_is_of_the_data_not_of_the_place(folder, tmp_path):
  plain = TFDS(name='tiny_pairs', data_dir=folder)
  elsewhere = TFDS(name='tiny_pairs', data_dir=str(tmp_path))
  renamed = TFDS(name='tiny_pairs', data_dir=folder, fields={'text': 'en'})
  sliced = TFDS(name='tiny_pairs', data_dir=folder, split_names={'train': 'train[:5]'})
  assert plain.fingerprint() == elsewhere.fingerprint()
  assert len({source.fingerprint() for source in (plain, renamed, sliced)}) == 3


def test_missing_data_is_an_error(folder, message, tmp_path, monkeypatch):
  absent = TFDS(name='mnisst', data_dir=str(tmp_path))
  assert "'mnisst': Dataset mnisst not found; did you mean 'mnist'?" in message(absent.splits)
  fields = {'text': 'english'}
  source = TFDS(name='tiny_pairs', data_dir=folder, fields=fields)
  assert "TFDS.fields['text'] = 'english': 'tiny_pairs' has" in message(source.load, 'train')
  plain = TFDS(name='tiny_pairs', data_dir=folder)
  assert "split 'validation'" in message(plain.load, 'validation')

  def unplugged(self, dl_manager):
    raise ConnectionError('no route to host\nand more')

  monkeypatch.setattr(tiny_builders.TinyPairs, '_split_generators', unplugged)
  said = message(TFDS(name='tiny_pairs', data_dir=str(tmp_path)).load, 'train')
  assert said.startswith("TFDS could not prepare 'tiny_pairs'")
  assert said.endswith('no route to host')


def test_data_sets_of_packages_that_tfds_has_not_imported_can_be_read(tmp_path):
  builder = TFDS(name='wmt14_translate/de-en', data_dir=str(tmp_path))._builder()
  assert builder.info.features.keys() == {'de', 'en'}
  assert 'tensorflow' not in sys.modules


SQUAD = {
  'question': 'question',
  'context': 'context',
  'answers': 'answers/text',
  'starts': 'answers/answer_start',
}


def test_sequences_are_lists_of_texts_and_numbers(folder):
  found = {
    e['question']: e for e in TFDS(name='tiny_squad', data_dir=folder, fields=SQUAD).load('train')
  }
  context = 'The cat sat on the mat (ä).'
  assert [found[f'Question {i}?'] for i in range(3)] == [
    {'question': f'Question {i}?', 'context': context, 'answers': answers, 'starts': starts}
    for i, (answers, starts) in enumerate(
      [(['The cat'], [0]), (['the mat', 'mat (ä)'], [15, 19]), ([], [])]
    )
  ]
  assert {type(start) for e in found.values() for start in e['starts']} == {int}
  whole = TFDS(name='tiny_squad', data_dir=folder).load('train')[0]
  assert whole['answers'].keys() == {'text', 'answer_start'}
  assert type(whole['title']) is str


def test_class_labels_in_sequences_are_their_names(folder):
  fields = {'words': 'tokens', 'labels': 'ner'}
  source = TFDS(name='tiny_conll2003', data_dir=folder, fields=fields)
  (found,) = (e for e in source.load('train') if e['words'][0] == 'Zoë')
  assert found == {
    'words': ['Zoë', 'Lee', 'sees', 'Oslo', '.'],
    'labels': ['B-PER', 'I-PER', 'O', 'B-LOC', 'O'],
  }
  whole = TFDS(name='tiny_conll2003', data_dir=folder).load('train')[0]
  assert whole['pos'] == ['NNP', 'NNP', 'VBZ', 'NNP', '.']


def test_squad_and_conll2003_become_rows(folder):
  squad = TFDS(name='tiny_squad', data_dir=folder, fields=SQUAD)
  plan = SpanWindows(length=64, stride=16, question_length=16)
  rows = token_rows(squad, 'train', BYTES, plan)
  examples = squad.load('train')
  for row in rows:
    example = examples[int(row['example'])]
    places = row['char_starts'][row['start']], row['char_ends'][row['end']]
    assert [example['context'][slice(*places)]] == (example['answers'] or [''])[:1]

  fields = {'words': 'tokens', 'labels': 'ner'}
  conll = TFDS(name='tiny_conll2003', data_dir=folder, fields=fields)
  labels = ('O', 'B-PER', 'I-PER', 'B-LOC')
  rows = token_rows(conll, 'train', BYTES, LabelledWords(length=64, labels=labels))
  for row in rows:
    assert row['word_labels'][row['word_weights'] != 0].tolist() == [1, 2, 0, 3, 0]


@pytest.mark.parametrize(
  'name', ['huggingface:glue/mrpc', 'kaggle:digits', 'some_group:pairs:1.0.0']
)
def test_a_data_set_that_brings_code_is_refused(name):
  with pytest.raises(UserError, match='community data sets run third-party code'):
    TFDS(name=name).splits()


def test_a_version_is_no_community(tmp_path):
  with pytest.raises(UserError, match='not found'):
    TFDS(name='no_such_data:1.0.0', data_dir=str(tmp_path)).splits()
