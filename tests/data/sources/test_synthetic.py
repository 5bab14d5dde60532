"""Long-range sources: labels are what an independent reading of the text or image gives."""

import pickle
import re

import numpy as np
import pytest
from scipy import ndimage

from t2x.base.errors import UserError
from t2x.data import AssociativeRecall, Copying, ListOps, Pathfinder, PixelText
from t2x.samples import Digits

SMALL = {'train': 40, 'test': 20}


def value(text):
  """Replaces the innermost list by its value until one digit is left."""
  functions = {
    'x': np.max,
    'n': np.min,
    'd': lambda digits: np.floor(np.median(digits)),
    's': lambda digits: np.sum(digits) % 10,
  }
  while len(text) > 1:
    text = re.sub(
      r'([xnds])\((\d+)\)', lambda m: str(int(functions[m[1]]([int(d) for d in m[2]]))), text
    )
  return text


def test_nested_lists_have_their_value_and_a_length_in_range():
  examples = ListOps(examples=SMALL, min_length=30, max_length=90).load('train')
  assert len(examples) == 40
  for example in examples:
    assert 30 <= len(example['text']) <= 90
    assert value(example['text']) == example['label']
  assert {symbol for example in examples for symbol in example['text']} == set('xnds()0123456789')
  assert any(re.search(r'\([^)]*\([^)]*\(', example['text']) for example in examples)
  assert len({example['label'] for example in examples}) >= 6


def test_depth_and_number_of_arguments_are_limited():
  for example in ListOps(examples=SMALL, max_depth=1, max_arguments=3, min_length=5).load('train'):
    assert re.fullmatch(r'[xnds]\(\d{2,3}\)', example['text'])


def test_recall_looks_up_a_pair_at_the_distance():
  source = AssociativeRecall(examples=SMALL, length=64, num_pairs=7, distance=50)
  for example in source.load('test'):
    text = example['text']
    pairs = re.findall(r'[a-z]\d', text)
    assert len(text) == 64 and len(pairs) == 7 and len({pair[0] for pair in pairs}) == 7
    assert text[64 - 3 - 50 :][:2] == text[-1] + example['label']
    assert dict(pairs)[text[-1]] == example['label']


def test_recall_without_a_distance_looks_up_a_pair_anywhere():
  source = AssociativeRecall(examples=SMALL, length=64, num_pairs=7, distance=None)
  examples = [*source.load('train')]
  assert all(
    dict(re.findall(r'([a-z])(\d)', e['text']))[e['text'][-1]] == e['label'] for e in examples
  )
  assert len({e['text'].index(e['text'][-1]) for e in examples}) > 15


def test_copies_have_letters_and_lengths_in_range():
  examples = [*Copying(examples=SMALL, min_length=3, max_length=5, num_letters=4).load('train')]
  assert all(example['source'] == example['target'] for example in examples)
  assert {len(example['source']) for example in examples} == {3, 4, 5}
  assert {letter for example in examples for letter in example['source']} == set('abcd')


def connected(image):
  """Whether the two dots belong to one path, whose dashes are at most two pixels apart."""
  dots, _ = ndimage.label(image == 255, np.ones((3, 3)))
  near, _ = ndimage.label(ndimage.binary_dilation(image > 0, np.ones((3, 3))), np.ones((3, 3)))
  return len({int(near[dots == i].max()) for i in range(1, dots.max() + 1)}) == 1


def test_dots_are_connected_exactly_within_a_path():
  examples = list(Pathfinder(examples={'train': 60}).load('train'))
  labels = [example['label'] for example in examples]
  assert 15 < sum(labels) < 45
  right = [connected(e['image'][..., 0]) == bool(e['label']) for e in examples]
  # Two paths can be three pixels apart, where the dilation joins them.
  assert np.mean(right) > 0.9
  assert examples[0]['image'].shape == (32, 32, 1) and examples[0]['image'].dtype == np.uint8


def test_pixels_are_characters_row_by_row():
  digit, text = Digits().load('test')[3], PixelText(source=Digits(), levels=4).load('test')[3]
  assert len(text['text']) == 64 and text['label'] == str(digit['label'])
  levels = np.array([ord(c) - 48 for c in text['text']]).reshape(8, 8)
  np.testing.assert_array_equal(levels, digit['image'][..., 0] // 64)
  assert PixelText(source=Digits()).load('test').label_values() == {str(d) for d in range(10)}


@pytest.mark.parametrize(
  'source',
  [
    ListOps(examples=SMALL, min_length=10),
    AssociativeRecall(examples=SMALL),
    Pathfinder(examples=SMALL),
  ],
)
def test_examples_depend_only_on_seed_split_and_index(source):
  import dataclasses

  train, again = source.load('train'), pickle.loads(pickle.dumps(source.load('train')))
  key = 'image' if isinstance(source, Pathfinder) else 'text'
  assert np.array_equal(train[7][key], again[7][key]) and np.array_equal(
    train[-1][key], again[39][key]
  )
  assert not np.array_equal(train[7][key], train[8][key])
  assert not np.array_equal(train[7][key], source.load('test')[7][key])
  other = dataclasses.replace(source, seed=1)
  assert not np.array_equal(train[7][key], other.load('train')[7][key])
  assert other.fingerprint() != source.fingerprint() == dataclasses.replace(source).fingerprint()
  assert train[0]['label'] in train.label_values()
  with pytest.raises(UserError, match='no split'):
    source.load('validation')


@pytest.mark.parametrize(
  ('build', 'message'),
  [
    (lambda: ListOps(min_length=9, max_length=8), r'ListOps.min_length = 9 is more than'),
    (lambda: Copying(min_length=9, max_length=8), r'Copying.min_length = 9 is more than'),
    (lambda: ListOps(max_arguments=1), r'ListOps.max_arguments = 1: must be at least 2'),
    (
      lambda: ListOps(max_depth=1, min_length=400, max_arguments=3).load('train')[0],
      'no list of 400',
    ),
    (
      lambda: AssociativeRecall(length=30, distance=28),
      r'distance = 28: must be at most length - 3 = 27',
    ),
    (lambda: AssociativeRecall(length=30, distance=5), r'num_pairs = 8: must be at most .* = 6'),
    (lambda: Pathfinder(side=16, path_length=60).load('train')[0], 'no room for the paths'),
  ],
)
def test_settings_that_cannot_be_met_are_refused(build, message):
  with pytest.raises(UserError, match=message):
    build()
