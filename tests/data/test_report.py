"""Statistics of splits: what `t2x data inspect --statistics` prints and writes."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.data import (
  Bytes,
  Characters,
  ConcatenateAndSplit,
  PackPairs,
  PadPairs,
  split_statistics,
  token_rows,
  write_statistics,
)
from t2x.data.report import _edges, _lengths

BYTES = Bytes().train([])


class Pairs(list):
  """Examples that are their own source."""

  def load(self, split):
    return self

  def fingerprint(self):
    return json.dumps(self)


def statistics(examples, plan, tokenizer=BYTES, *, cache):
  source = Pairs(examples)
  rows = token_rows(source, 'train', tokenizer, plan, cache)
  return split_statistics('train', source, dict, tokenizer, rows)


@given(st.lists(st.integers(0, 5000), min_size=1))
def test_each_length_is_in_its_bin(lengths):
  found = _lengths(np.array(lengths), 0, None)
  for first, last, count in found.bins:
    assert count == sum(first <= length <= last for length in lengths)
  assert sum(count for _, _, count in found.bins) == len(lengths)
  assert found.bins[0][2] > 0 and found.bins[-1][2] > 0
  assert found.tokens == sum(lengths)
  assert found.summary['median'] == round(float(np.median(lengths)), 1)


def test_bins_are_half_octaves():
  assert _edges(9) == [0, 1, 2, 3, 4, 6, 8, 12]


def test_lengths_padding_truncation_and_duplicates_are_counted(tmp_path):
  pairs = [('abc', 'x'), ('ab', 'xyz'), ('abc', 'x'), ('abc', 'xy'), ('a' * 9, 'x'), ('', 'x')]
  examples = [{'source': source, 'target': target} for source, target in pairs]
  found = statistics(examples, PadPairs(8, 4), cache=tmp_path)
  assert (found.examples, found.duplicates, found.rows) == (6, 1, 4)
  assert found.omitted == {'empty': 1, 'dropped as too long': 1}
  # With eos: 4 + 3 + 4 + 4 of 32, and 2 + 4 + 2 + 3 of 16.
  assert found.padding == {'source': 1 - 15 / 32, 'target': 1 - 11 / 16, 'total': 1 - 26 / 48}
  assert found.megabytes * 1e6 == pytest.approx(20 + 9)
  source = found.fields['source']
  assert (source.row, source.tokens, source.summary['max']) == (8, 20, 9)
  assert source.bins == [
    (0, 0, 1),
    (1, 1, 0),
    (2, 2, 1),
    (3, 3, 3),
    (4, 5, 0),
    (6, 7, 0),
    (8, 11, 1),
  ]
  text = found.text(width=6)
  assert 'train: 6 examples, 0.0 MB of text, 1 duplicates (16.67%)' in text
  assert 'padding: source 53.12%, target 31.25%, total 45.83%' in text
  assert '1 empty (16.67%); 1 dropped as too long (16.67%)' in text
  assert re.search(r'\n +3 +3  ######\n', text) and re.search(r'\n +2 +1  ##\n', text)


def test_fields_with_the_same_texts_in_another_order_are_no_duplicates(tmp_path):
  examples = [{'source': 'ab', 'target': 'c'}, {'source': 'a', 'target': 'bc'}]
  assert statistics(examples, PackPairs(8, 8), cache=tmp_path).duplicates == 0


def test_divided_and_cut_documents_and_unknown_tokens_are_counted(tmp_path):
  letters = Characters(20).train(['abcdefgh'])
  examples = [{'text': 'abcdef'}, {'text': 'abXY'}, {'text': 'abcdef'}]
  found = statistics(examples, ConcatenateAndSplit(8), letters, cache=tmp_path)
  assert (found.fields['text'].unknown, found.fields['text'].row) == (2, 8)
  assert found.omitted == {'divided between rows': 2}
  assert found.padding == {'total': 1 - 19 / 24}
  assert '2 unknown (12.500%)' in found.text()


def test_a_split_without_rows_has_statistics(tmp_path):
  found = statistics([{'source': '', 'target': ''}], PackPairs(8, 8), cache=tmp_path)
  assert (found.examples, found.rows, found.omitted) == (1, 0, {'empty': 1})
  assert found.text()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
  with pytest.raises(UserError, match=r'--html .*no/page\.html: the folder .*no does not exist'):
    write_statistics('title', [], tmp_path / 'no' / 'page.html')


@pytest.fixture
def config(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  for name, first in (('train', 0), ('validation', 6)):
    (tmp_path / f'{name}.txt').write_text(
      '\n'.join(f'a sentence {i % 9}' for i in range(first, 20))
    )
  path = tmp_path / 'data.gin'
  path.write_text(
    'Experiment.task = @CausalLM()\n'
    'CausalLM:\n  source = @TextFiles()\n  tokenizer = @Bytes()\n  length = 16\n'
    f"TextFiles:\n  train = '{tmp_path}/train.txt'\n  validation = '{tmp_path}/validation.txt'\n"
    '  per_line = True\n'
  )
  return str(path)


def test_the_command_prints_and_writes_the_statistics_of_both_splits(config, tmp_path, capsys):
  page = tmp_path / 'page.html'
  assert main(['data', 'inspect', config, '--statistics', '--html', str(page)]) == 0
  out = capsys.readouterr().out
  assert 'train: 20 examples, 0.0 MB of text, 11 duplicates (55.00%)' in out
  assert 'validation: 14 examples, 0.0 MB of text, 5 duplicates (35.71%)' in out
  assert f'wrote {page}' in out
  data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1])
  assert [split['split'] for split in data['splits']] == ['train', 'validation']


def test_options_without_effect_are_errors(config, capsys):
  assert main(['data', 'inspect', config, '--html', 'page.html']) == 2
  assert '--html has no effect without --statistics' in capsys.readouterr().err
  assert main(['data', 'inspect', 'configs/runs/vit_digits.gin', '--statistics']) == 2
  assert '--statistics needs a task over text' in capsys.readouterr().err
