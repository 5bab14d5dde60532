"""Text tables align their columns."""

import pytest

from t2x.base.text_table import text_table


def test_columns_are_aligned_by_their_letter_without_trailing_spaces():
  rows = [('name', 'count', 'note'), ('a', '1,000', ''), ('longer', '7', 'frozen')]
  assert text_table(rows, '<><').splitlines() == [
    'name    count  note',
    'a       1,000',
    'longer      7  frozen',
  ]


def test_rows_and_alignment_must_agree():
  with pytest.raises(ValueError, match='zip'):
    text_table([('a', 'b'), ('c',)], '<<')
  with pytest.raises(ValueError, match='zip'):
    text_table([('a', 'b')], '<')
