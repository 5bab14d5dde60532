"""Strings of spoken digits and letters."""

import string

import numpy as np
import pytest
from tiny_tasks import write_recording

from t2x.base.errors import UserError
from t2x.samples import SpokenStrings

LANGUAGES = 'en', 'es', 'fr', 'it', 'ru'
SYMBOLS = string.digits + string.ascii_lowercase
RATE = 8000


def prompt(language, symbol):
  """Samples that state the language and the symbol, between silence; longer for later symbols."""
  value = 1000 + 100 * SYMBOLS.index(symbol) + LANGUAGES.index(language)
  return [0] * 40 + [value] * (200 + 10 * SYMBOLS.index(symbol)) + [0] * 60


@pytest.fixture
def folder(tmp_path):
  for language in LANGUAGES:
    for symbol in SYMBOLS:
      kind = 'digits' if symbol.isdigit() else 'letters'
      path = tmp_path / f'usr/share/asterisk/sounds/{language}_XX_voice' / kind / f'{symbol}.wav'
      write_recording(path, prompt(language, symbol))
  return tmp_path


def test_recordings_are_those_of_the_symbols_at_their_times(folder):
  source = SpokenStrings(folder=str(folder), train_examples=40)
  examples = source.load('train')
  assert len(examples) == 40 and {e['language'] for e in examples} == set(LANGUAGES)
  for example in examples[:10]:
    symbols, spoken = example['target'].split(), np.zeros(len(example['source']), bool)
    assert 2 <= len(symbols) <= 7
    for symbol, (start, stop) in zip(symbols, example['times'], strict=True):
      part = slice(round(start * RATE), round(stop * RATE))
      samples = np.round(example['source'][part] * 32768)
      np.testing.assert_array_equal(samples, prompt(example['language'], symbol)[40:-60])
      spoken[part] = True
    assert (example['source'][~spoken] == 0).all()
  again = SpokenStrings(folder=str(folder), train_examples=40).load('train')[3]
  np.testing.assert_array_equal(again['source'], examples[3]['source'])


def test_no_string_is_in_two_splits(folder):
  source = SpokenStrings(folder=str(folder), train_examples=2000, longest=2)
  strings = {split: {e['target'] for e in source.load(split)} for split in source.splits()}
  assert len(strings['train']) > 500 and all(strings.values())
  assert not strings['train'] & (strings['validation'] | strings['test'])
  assert not strings['validation'] & strings['test']


def test_recordings_are_no_longer_than_asked(folder):
  source = SpokenStrings(folder=str(folder), train_examples=50, seconds=0.2)
  assert max(len(e['source']) for e in source.load('train')) <= 0.2 * RATE


def test_settings_and_prompts_are_in_the_fingerprint(folder):
  prints = {SpokenStrings(folder=str(folder), **s).fingerprint() for s in ({}, {'longest': 3})}
  write_recording(folder / 'usr/share/asterisk/sounds/en_XX_voice/digits/3.wav', [9] * 300)
  prints.add(SpokenStrings(folder=str(folder)).fingerprint())
  assert len(prints) == 3
  with pytest.raises(UserError, match='a string has at least 2 symbols'):
    SpokenStrings(longest=1)
  with pytest.raises(UserError, match='run `t2x data fetch asterisk_prompts'):
    _ = SpokenStrings(folder=str(folder / 'no')).load('train')[0]
