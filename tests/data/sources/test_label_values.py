"""Which labels a split has, where that is known without reading its images."""

import numpy as np
import pytest
import tiny_builders  # noqa: F401

from t2x.data import TFDS, Part, Resized, label_values
from t2x.samples import Digits


def test_values_in_memory_are_read_from_all_examples():
  digits = Digits()
  assert label_values(digits.load('train')) == set(range(10))
  assert label_values([{'label': np.int64(3)}, {'label': np.array(7)}, {'text': ''}]) == {3, 7}


@pytest.mark.parametrize(
  'source',
  [
    Part(source=Digits(), examples={'train': 3}),
    Resized(source=Digits(), height=4, width=4),
    Resized(source=Part(source=Digits(), examples={'train': 3}), height=4, width=4),
  ],
)
def test_a_wrapping_source_uses_the_values_of_the_wrapped_source(source):
  assert label_values(source.load('train')) == set(range(10))


def test_of_tfds_it_is_the_numbers_of_the_class_label(tmp_path):
  source = {'name': 'tiny_pairs', 'data_dir': str(tmp_path)}
  assert label_values(TFDS(**source).load('train')) == set(range(5))
  assert label_values(TFDS(**source, fields={'label': 'label'}).load('test')) == set(range(5))
  assert label_values(TFDS(**source, fields={'text': 'en'}).load('test')) is None
  assert label_values(TFDS(**source, fields={'label': 'en'}).load('test')) is None


def test_values_of_other_sequences_are_undefined():
  assert label_values(({'label': 1},)) is None
