"""Some of another source's examples."""

import pickle

from t2x.data import Batches, Part, Source, TextFiles
from t2x.samples import Digits


def images(split='train', **examples):
  loaded = Part(source=Digits(), examples=examples).load(split)
  return [example['image'].tobytes() for example in loaded]


def test_examples_are_spread_over_the_split(message):
  whole = [example['image'].tobytes() for example in Digits().load('train')]
  few = images(train=10)
  assert few == [whole[i * len(whole) // 10] for i in range(10)]
  assert set(few) < set(images(train=40))
  assert images(train=len(whole)) == whole
  assert images('test', train=10) == [e['image'].tobytes() for e in Digits().load('test')]


def test_it_is_a_source(message):
  part = Part(source=Digits(), examples={'train': 10})
  assert isinstance(part, Source)
  assert pickle.loads(pickle.dumps(part)) == part
  rows = part.load('train')
  assert (rows[-1]['image'] == rows[9]['image']).all()
  assert len(Batches(rows, batch_size=5, seed=0)[3]['image']) == 5
  others = [Part(source=Digits(), examples=examples) for examples in ({'train': 11}, {'test': 10})]
  assert len({source.fingerprint() for source in (part, *others, Digits())}) == 4


def test_slices_of_any_source(tmp_path):
  (tmp_path / 'a.txt').write_text(''.join(f'{i}\n' for i in range(20)))
  lines = TextFiles(train=str(tmp_path / 'a.txt'), per_line=True)
  rows = Part(source=lines, examples={'train': 10}).load('train')
  assert [row['text'] for row in rows[2:8:2]] == ['4', '8', '12']
  images = Part(source=Digits(), examples={'train': 10}).load('train')
  assert [row['label'] for row in images[1:4]] == [images[i]['label'] for i in range(1, 4)]


def test_missing_data_is_an_error(message):
  assert "'valid' must be one of" in message(Part, source=Digits(), examples={'valid': 2})
  many = Part(source=Digits(), examples={'train': 10**6})
  assert 'Digits() has 1438' in message(many.load, 'train')
