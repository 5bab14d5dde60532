"""Text tables align their columns."""

import pytest

from t2x.base.text_table import fold, terminal_width, text_table


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


def test_cells_are_folded_at_spaces_and_then_inside_of_names():
  rows = [
    ('variant', 'n', 'differs in'),
    ('a_long_name', '1,000.5', 'MLP.activation = @relu; d_model = 16'),
  ]
  assert text_table(rows, '<><', 40).splitlines() == [
    'variant            n  differs in',
    'a_long_name  1,000.5  MLP.activation =',
    '                      @relu; d_model =',
    '                      16',
  ]
  assert text_table(rows, '<><', 30).splitlines()[1:3] == [
    'a_long_    1,000.5  MLP.',
    'name                activation',
  ]
  for width in (30, 40, 100):
    table = text_table(rows, '<><', width)
    assert max(map(len, table.splitlines())) <= width and '1,000.5' in table


@pytest.mark.parametrize('width', [12, 20, 60])
def test_a_folded_text_has_its_words_in_order(width):
  text = 'one two_three.four five/six = @seven 1,234.5 eight'
  lines = fold(text, width, '  ')
  assert max(map(len, lines)) <= width
  assert ''.join(''.join(lines).split()) == ''.join(text.split())


def test_the_width_of_the_terminal_is_that_of_columns_and_at_least_60(monkeypatch):
  for columns, width in (('120', 120), ('20', 60)):
    monkeypatch.setenv('COLUMNS', columns)
    assert terminal_width() == width
