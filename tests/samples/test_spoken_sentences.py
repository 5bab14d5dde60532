"""Sentences spoken by espeak-ng, here by a program in its place that writes the numbers of its texts."""

import os
import sys

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.samples import SpokenSentences, spoken_sentences

# Writes a constant of the length of the text, which states whether the voice is f3, at 16 kHz.
ESPEAK = """#!{python}
import sys, wave
if sys.argv[1] == '--version':
  print('eSpeak NG text-to-speech: 1.0  Data at: /x')
  sys.exit()
_, _, voice, _, path, _, text = sys.argv
if voice.endswith('+none'):
  print('no such voice', file=sys.stderr)
with wave.open(path, 'wb') as file:
  file.setparams((1, 2, 16000, 0, 'NONE', None))
  value = 1000 if voice.endswith('f3') else 2000
  file.writeframes(value.to_bytes(2, 'little') * 100 * len(text))
"""


@pytest.fixture
def espeak(tmp_path, monkeypatch):
  """A folder of programs with only this one."""
  path = tmp_path / 'bin/espeak-ng'
  path.parent.mkdir()
  path.write_text(ESPEAK.format(python=sys.executable))
  path.chmod(0o755)
  monkeypatch.setenv('PATH', str(path.parent))
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(spoken_sentences, 'HELD_OUT', 8)
  spoken_sentences._version.cache_clear()
  yield path
  spoken_sentences._version.cache_clear()


def test_a_voice_is_left_out_and_no_text_is_in_two_splits(espeak):
  source = SpokenSentences(languages=('en', 'de'), voices=('m1', 'f1'), train_examples=20)
  examples = {split: list(source.load(split)) for split in source.splits()}
  assert [len(some) for some in examples.values()] == [20, 8, 8, 8]
  for split, some in examples.items():
    assert {e['voice'] for e in some} == ({'f3'} if split == 'other_voice' else {'m1', 'f1'})
    for example in some:
      # Half of the samples of the program, which writes twice as many per second.
      assert example['source'].dtype == np.int16
      assert len(example['source']) == 50 * len(example['target'])
      middle = example['source'][len(example['source']) // 2]
      assert abs(middle - (1000 if split == 'other_voice' else 2000)) < 20
  texts = {split: {e['target'] for e in some} for split, some in examples.items()}
  assert not texts['train'] & (texts['validation'] | texts['test'] | texts['other_voice'])
  assert not texts['validation'] & texts['test']


def test_recordings_are_written_once(espeak):
  source = SpokenSentences(voices=('m1',), train_examples=3)
  first = source.load('train')[1]
  espeak.write_text(f'#!{sys.executable}\nprint("eSpeak NG text-to-speech: 1.0  Data at: /x")')
  np.testing.assert_array_equal(source.load('train')[1]['source'], first['source'])


def test_errors_state_what_to_install_or_change(espeak):
  with pytest.raises(UserError, match=r'one of SpokenSentences\.voices'):
    SpokenSentences(other_voice='m1')
  with pytest.raises(UserError, match=r'espeak-ng -v en\+none failed: no such voice'):
    SpokenSentences(voices=('none',), train_examples=1).load('train')
  os.remove(espeak)
  spoken_sentences._version.cache_clear()
  with pytest.raises(UserError, match='not installed: apt-get install espeak-ng'):
    SpokenSentences(train_examples=4).load('train')
