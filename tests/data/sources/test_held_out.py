"""Held-out splits by a hash of the content."""

import hashlib
import json
import pickle
import re

import numpy as np
import pytest
from listed import Listed

from t2x.base.errors import UserError
from t2x.data import Batches, HeldOut, JsonLines, Part, Source, TextFiles
from t2x.data.prepared_folders import fingerprint, former_fingerprints
from t2x.data.sources.held_out import BUCKETS, SPLITS, split_of
from t2x.experiments import read_experiment
from t2x.samples import Digits, StandardLibrary, libreoffice, standard_library


def texts(count, start=0):
  return tuple({'text': f'text {i}', 'id': i} for i in range(start, start + count))


def ids(source):
  return {split: [e['id'] for e in source.load(split)] for split in source.splits()}


def test_splits_of_sources_match_recorded_results():
  names = [f'name {i}' for i in range(2000)]
  digests = []
  for splits in (SPLITS, libreoffice.SPLITS, standard_library.SPLITS):
    text = ' '.join(split_of(name, splits) for name in names)
    digests.append(hashlib.sha256(text.encode()).hexdigest()[:16])
  assert digests == ['89ffaa7822359d81', '9dd89ff59113e029', '07ebca1f12f10269']
  for split, digest in (('train', '7e4a10b8ab64bd5e'), ('test', 'ff652b6f02dc1ac6')):
    images = b''.join(example['image'].tobytes() for example in Digits().load(split))
    assert hashlib.sha256(images).hexdigest().startswith(digest)


def test_finer_buckets_divide_coarser_ones():
  names = [f'name {i}' for i in range(500)]
  fine = {name: range(s.start * 10_000, s.stop * 10_000) for name, s in SPLITS.items()}
  assert [split_of(n, fine, BUCKETS) for n in names] == [split_of(n) for n in names]


def test_a_source_divided_by_name_equals_a_source_with_its_own_splits():
  own = StandardLibrary(topics=False)
  names = {split: [e['name'] for e in own.load(split)] for split in own.splits()}
  everything = tuple(e for split in own.splits() for e in own.load(split))
  divided = HeldOut(source=Listed(everything), validation=0.05, test=0.05, key='name')
  assert {s: [e['name'] for e in divided.load(s)] for s in divided.splits()} == names


def test_splits_are_disjoint_complete_and_of_their_shares():
  source = HeldOut(source=Listed(texts(4000)), validation=0.1, test=0.005)
  assert isinstance(source, Source)
  assert source.splits() == ('train', 'validation', 'test')
  found = ids(source)
  assert sorted(i for part in found.values() for i in part) == list(range(4000))
  assert all(part == sorted(part) for part in found.values())
  assert len(found['validation']) / 4000 == pytest.approx(0.1, abs=0.02)
  assert len(found['test']) / 4000 == pytest.approx(0.005, abs=0.002)


def test_other_examples_and_another_order_move_no_example():
  settings = {'validation': 0.2, 'test': 0.1}
  few = ids(HeldOut(source=Listed(texts(200)), **settings))
  many = ids(HeldOut(source=Listed(texts(100, 500) + texts(200)[::-1]), **settings))
  for split, part in few.items():
    assert set(part) == {i for i in many[split] if i < 200}


def test_more_validation_is_taken_from_train():
  small = ids(HeldOut(source=Listed(texts(500)), validation=0.1, test=0.1))
  large = ids(HeldOut(source=Listed(texts(500)), validation=0.3, test=0.1))
  assert small['test'] == large['test']
  assert set(small['validation']) < set(large['validation'])


@pytest.mark.parametrize(
  'content',
  [
    lambda i: {'text': f'text {i}'},
    lambda i: {'source': f'text {i}', 'target': 'equal'},
    lambda i: {'question': 'equal', 'context': f'text {i}'},
    lambda i: {'words': ['equal', str(i)], 'labels': ['A', 'B']},
    lambda i: {'image': np.full((2, 3, 1), i, np.uint8), 'label': 0},
  ],
)
def test_examples_of_equal_content_are_in_one_split(content):
  examples = tuple({**content(i % 100), 'id': i, 'name': f'name {i}'} for i in range(400))
  found = ids(HeldOut(source=Listed(examples), validation=0.3, test=0.2))
  contents = {split: {i % 100 for i in part} for split, part in found.items()}
  assert sum(map(len, contents.values())) == len(set.union(*contents.values())) == 100
  assert all(map(len, contents.values()))


@pytest.mark.parametrize('kind', ['image', 'audio', 'video'])
@pytest.mark.parametrize('text', ['text', 'source'])
def test_a_picture_or_recording_with_several_texts_is_in_one_split(kind, text):
  examples = tuple(
    {text: f'text {i}', kind: np.full((2, 3), i % 100, np.uint8), 'id': i} for i in range(400)
  )
  found = ids(HeldOut(source=Listed(examples), validation=0.3, test=0.2))
  contents = {split: {i % 100 for i in part} for split, part in found.items()}
  assert sum(map(len, contents.values())) == len(set.union(*contents.values())) == 100


@pytest.mark.parametrize(
  ('example', 'key', 'moved'),
  [
    ({'image': 1, 'label': 0}, None, False),
    ({'text': 'a'}, None, False),
    ({'image': 1, 'text': 'a'}, None, True),
    ({'audio': 1, 'source': 'a'}, None, True),
    ({'image': 1, 'text': 'a'}, 'text', False),
  ],
)
def test_an_older_run_has_the_same_fingerprint_unless_its_split_differs(example, key, moved):
  source = HeldOut(source=Listed((example,)), validation=0.1, key=key)
  settings = (0.1, 0.0, 'train', key)
  with former_fingerprints():
    older = fingerprint('HeldOut', source.source.fingerprint(), settings)
    assert (source.fingerprint() != older) == moved
  assert source.fingerprint() != older


def test_key_keeps_the_parts_of_a_document_together():
  examples = tuple({'text': f'text {i}', 'id': i, 'name': i // 4} for i in range(400))
  split = {True: HeldOut(source=Listed(examples), test=0.3, key='name')}
  split[False] = HeldOut(source=Listed(examples), test=0.3)
  together = [ids(split[grouped])['test'] for grouped in (True, False)]
  assert [len({i // 4 for i in part}) * 4 == len(part) for part in together] == [True, False]


def test_other_splits_of_the_source_stay(message):
  digits = HeldOut(source=Digits(), validation=0.1)
  assert digits.splits() == ('train', 'test', 'validation')
  assert len(digits.load('test')) == 359
  train, validation = digits.load('train'), digits.load('validation')
  assert len(train) + len(validation) == 1438
  assert train.label_values() == validation.label_values() == set(range(10))
  whole = HeldOut(source=Digits(), validation=0.1, split='test')
  assert len(whole.load('train')) == 1438
  assert len(whole.load('test')) + len(whole.load('validation')) == 359


def test_examples_are_read_in_any_way_and_in_any_process():
  source = HeldOut(source=Part(source=Digits(), examples={'train': 200}), validation=0.2)
  assert pickle.loads(pickle.dumps(source)) == source
  for split in ('train', 'validation'):
    examples = source.load(split)
    again = pickle.loads(pickle.dumps(examples))
    images = [example['image'].tobytes() for example in examples]
    assert images == [again[i]['image'].tobytes() for i in range(len(examples))]
    assert images[-3:] == [e['image'].tobytes() for e in again[-3:]]
    assert again[-1]['image'].tobytes() == images[-1]
    with pytest.raises(IndexError):
      again[len(images)]
    # The indices are in a file, not in the pickled object.
    assert len(pickle.dumps(again)) < len(pickle.dumps(again.examples)) + 500
  assert len(Batches(examples, batch_size=4, seed=0)[0]['image']) == 4


def test_contents_are_hashed_once(monkeypatch):
  source = HeldOut(source=Listed(texts(50)), test=0.2)
  first = ids(source)
  monkeypatch.setattr(HeldOut, '_write', None)
  assert ids(source) == first


def test_fingerprints_follow_the_source_and_the_settings(tmp_path):
  (tmp_path / 'a.txt').write_text('one\ntwo\n')
  inner = TextFiles(train=str(tmp_path / 'a.txt'), per_line=True)
  sources = [
    HeldOut(source=inner, **settings)
    for settings in (
      {'test': 0.1},
      {'test': 0.2},
      {'validation': 0.1},
      {'test': 0.1, 'key': 'name'},
    )
  ]
  before = [source.fingerprint() for source in sources]
  assert len({*before, inner.fingerprint()}) == 5
  (tmp_path / 'a.txt').write_text('one\ntwo\nthree\n')
  assert not {source.fingerprint() for source in sources} & set(before)


def test_settings_that_cannot_be_are_refused(message, tmp_path):
  source = Listed(texts(3))
  assert 'set at least one of them' in message(HeldOut, source=source)
  assert 'sum must be below 1' in message(HeldOut, source=source, validation=0.5, test=0.5)
  assert 'must be 0 or at least 1e-06' in message(HeldOut, source=source, test=1e-7)
  assert "has a split 'test': remove it" in message(HeldOut, source=Digits(), test=0.1)
  assert "no split 'dev'" in message(HeldOut, source=source, test=0.1, split='dev')
  assert "no split 'dev'" in message(HeldOut(source=source, test=0.1).load, 'dev')
  empty = HeldOut(source=source, test=0.00001)
  assert "the split 'test' is empty, because the source has only 3" in message(empty.load, 'test')
  lacking = HeldOut(source=source, test=0.1, key='name')
  assert 'example 0 of Listed' in message(lacking.load, 'train')
  assert 'none of the fields name, but text, id: set HeldOut.key' in message(lacking.load, 'train')
  (tmp_path / 'a.jsonl').write_text(json.dumps({'body': 'x', 'n': 1}) + '\n')
  renamed = JsonLines(train=str(tmp_path / 'a.jsonl'), fields={'question': 'body'})
  said = message(HeldOut(source=renamed, test=0.1).load, 'train')
  assert 'none of the fields image, audio, video, text, source, context, words, but ques' in said


CONFIG = """
Experiment.task = @CausalLM()
CausalLM:
  source = @HeldOut()
  tokenizer = @Characters()
  length = 16
HeldOut:
  source = @TextFiles()
  validation = 0.2
TextFiles:
  train = '{file}'
  per_line = True
"""


def test_rows_of_a_config_are_prepared_from_the_parts(tmp_path):
  lines = [f'line {i:03}' for i in range(100)]
  (tmp_path / 'lines.txt').write_text('\n'.join(lines))
  (tmp_path / 'config.gin').write_text(CONFIG.format(file=tmp_path / 'lines.txt'))
  task = read_experiment([tmp_path / 'config.gin'], []).task
  task = task.bound(task.fit_tokenizer())
  texts = {}
  for split in ('train', 'validation'):
    rows = task.rows(split)
    assert rows.info['examples'] == len(task.source.load(split))
    tokens = [t for row in rows for t in row['tokens'][row['segments'] > 0].tolist()]
    texts[split] = set(re.findall(r'line \d+', task.fitted.decode(tokens)))
  assert sorted(texts['train'] | texts['validation']) == lines
  assert not texts['train'] & texts['validation']
  assert 10 < len(texts['validation']) < 30


def test_one_text_file_is_divided_by_a_separator(tmp_path):
  file = tmp_path / 'book.txt'
  file.write_text('\n\n'.join(f'chapter {i}' for i in range(40)))
  whole = HeldOut(source=TextFiles(train=str(file)), validation=0.25)
  with pytest.raises(UserError) as caught:
    [whole.load(split) for split in ('train', 'validation')]
  assert 'the source has only one example' in str(caught.value)
  assert 'divide a text file into examples with TextFiles.separator' in str(caught.value)
  parts = HeldOut(source=TextFiles(train=str(file), separator='\n\n'), validation=0.25)
  texts = [e['text'] for split in ('train', 'validation') for e in parts.load(split)]
  assert sorted(texts) == sorted(f'chapter {i}' for i in range(40))
