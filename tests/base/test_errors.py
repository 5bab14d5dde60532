"""What is printed of text that someone else wrote."""

import pytest

from t2x.base.errors import is_printable, printable
from t2x.cli import main


@pytest.mark.parametrize(
  ('text', 'shown'),
  [
    ('\x1b[31mred', '\\x1b[31mred'),
    ('a\nb\tc\rd', 'a\\nb\\tc\\rd'),
    ('\u202egnp.exe', '\\u202egnp.exe'),
    ('\ud800', '\\ud800'),
    ('Größe, 大きさ 🙂\u00a0x', 'Größe, 大きさ 🙂\u00a0x'),
  ],
)
def test_control_characters_are_escapes_and_other_text_stays(text, shown):
  assert printable(text) == shown and is_printable(printable(text))
  assert is_printable(text) == (text == shown)
  assert printable('a\nb', lines=True) == 'a\nb'


def test_an_error_prints_no_control_characters_of_a_file_name(tmp_path, capsys):
  path = tmp_path / 'a\x1b[2J.gin'
  path.write_text('Trainer.num_stepz = 1\n')
  assert main(['check', str(path)]) == 2
  told = capsys.readouterr().err
  assert 'a\\x1b[2J.gin:1: ' in told and '\x1b' not in told
