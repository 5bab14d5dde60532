"""What installed packages hold: the standard library, digits, dates."""

import datetime
import pickle
import sys

import numpy as np
import pytest

from t2x.data import Source
from t2x.samples import BabelDates, Digits, StandardLibrary, babel_dates


def test_standard_library_files_are_in_one_split_each():
  source = StandardLibrary()
  splits = {split: source.load(split) for split in source.splits()}
  names = {split: {e['name'] for e in examples} for split, examples in splits.items()}
  assert not names['train'] & names['test'] | names['train'] & names['validation']
  assert not names['validation'] & names['test']
  total = sum(map(len, names.values()))
  assert 0.02 * total < len(names['test']) < 0.1 * total
  everything = {e['name']: e['text'] for examples in splits.values() for e in examples}
  assert 'def dedent' in everything['textwrap.py']
  assert any(name.startswith('topics/') for name in names['train'])
  assert not any('test' in name.split('/')[:-1] or 'site-packages' in name for name in everything)


def test_standard_library_splits_stay_and_are_fingerprinted(monkeypatch):
  source = StandardLibrary()
  assert [e['name'] for e in source.load('test')] == [e['name'] for e in source.load('test')]
  before = source.fingerprint()
  assert before == StandardLibrary().fingerprint() != StandardLibrary(topics=False).fingerprint()
  other = (('a.py', 'a = 1\n'), ('b.py', 'b = 2\n'))
  monkeypatch.setattr('t2x.samples.standard_library._files', lambda: other)
  assert source.fingerprint() != before


def test_digits():
  source = Digits()
  train, test = source.load('train'), source.load('test')
  assert (len(train), len(test)) == (1438, 359)
  images = np.stack([e['image'] for e in train])
  assert images.shape == (1438, 8, 8, 1)
  assert (images.dtype, images.min(), images.max()) == (np.uint8, 0, 255)
  assert {e['label'] for e in test} == set(range(10))


def test_dates_in_german(monkeypatch):
  monkeypatch.setattr(babel_dates, 'HELD_OUT', 50)
  source = BabelDates(train_examples=200)
  assert isinstance(source, Source)
  days = {}
  for split in source.splits():
    for example in source.load(split):
      target = example['target'].rpartition(', ')[2]
      assert (', ' in example['target']) == any(day in example['source'] for day in DAYS)
      assert len(example['source']) > 5
      days.setdefault(split, []).append(target)
  assert {split: len(found) for split, found in days.items()} == {
    'train': 200,
    'validation': 50,
    'test': 50,
  }
  assert len({day for found in days.values() for day in found}) == 300


DAYS = ('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')


def test_every_way_to_write_a_date_decides_its_translation():
  seen = {}
  for days in range(0, 400 * 365, 997):
    date = datetime.date(1800, 1, 1) + datetime.timedelta(days)
    for source in {
      babel_dates.date_pair(date, form, 'de')['source'] for form in babel_dates.FORMATS
    }:
      assert seen.setdefault(source, date) == date
  pair = babel_dates.date_pair(datetime.date(2021, 3, 5), 'EEE, MMM d, y', 'de')
  assert pair == {'source': 'Fri, Mar 5, 2021', 'target': 'Freitag, 5. März 2021'}


def test_impossible_dates_are_refused(message):
  assert 'BabelDates.train_examples = 0' in message(BabelDates, train_examples=0)
  assert 'must be from 1 to 144097' in message(BabelDates, train_examples=150_000)
  assert 'is not a CLDR locale' in message(BabelDates(language='xx_nope').load, 'train')
  assert "no split 'eval'" in message(BabelDates().load, 'eval')
  assert BabelDates().fingerprint() != BabelDates(language='fr').fingerprint()


@pytest.mark.parametrize(
  ('source', 'module'), [(Digits(), 'sklearn.datasets'), (BabelDates(), 'babel')]
)
def test_a_missing_package_is_an_error(source, module, message, monkeypatch):
  monkeypatch.setitem(sys.modules, module, None)
  assert "pip install 't2x[samples]'" in message(source.load, 'test')


@pytest.mark.parametrize('source', [StandardLibrary(), Digits(), BabelDates(language='fr')])
def test_sources_are_values(source, message):
  assert pickle.loads(pickle.dumps(source)) == source
  assert hash(pickle.loads(pickle.dumps(source))) == hash(source)
  assert '\n' not in source.describe()
  assert "no split 'dev'" in message(source.load, 'dev')
  assert 'tensorflow' not in sys.modules
