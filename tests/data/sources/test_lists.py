"""Lists of examples: which examples they join, and what they leave out."""

import pickle

import pytest

from t2x.base.errors import UserError
from t2x.data import TSV, Lists


@pytest.fixture
def pairs(tmp_path):
  lines = [f's{i}\tt{i}' for i in range(8)]
  (tmp_path / 'pairs.tsv').write_text('\n'.join(lines))
  return TSV(train=str(tmp_path / 'pairs.tsv'))


def test_lists_join_consecutive_examples_and_share_none(pairs):
  examples = pickle.loads(pickle.dumps(Lists(source=pairs, counts=(1, 2)).load('train')))
  assert [example['source'] for example in examples] == ['s0', 's1; s2', 's3', 's4; s5']
  assert examples[-1] == {'source': 's4; s5', 'target': 't4; t5'}


def test_separator_and_fields_are_settings(pairs):
  lists = Lists(source=pairs, counts=[3], fields=['target'], separator=' ')
  assert [*lists.load('train')] == [{'target': 't0 t1 t2'}, {'target': 't3 t4 t5'}]
  others = [
    Lists(source=pairs, counts=[3], fields=['target']),
    Lists(source=pairs, counts=[2], fields=['target'], separator=' '),
    Lists(source=pairs, counts=[3], separator=' '),
  ]
  assert len({source.fingerprint() for source in (lists, *others)}) == 4


def test_a_missing_field_is_refused(pairs):
  with pytest.raises(UserError, match="no text 'text': they have source, target"):
    Lists(source=pairs, counts=[1], fields=['text']).load('train')[0]
