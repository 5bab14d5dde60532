"""Recorded prompts in five languages."""

import pytest
from tiny_tasks import write_recording

from t2x.samples import AsteriskPrompts

LANGUAGES = 'en_US', 'es_MX', 'fr_CA', 'it_IT', 'ru_RU'
PROMPTS = [f'digits/{number}.wav' for number in range(60)]


@pytest.fixture
def folder(tmp_path):
  """Prompt n of language i has the samples n and 1000 * i; a tone is equal in two languages, one lacks a prompt."""
  for i, language in enumerate(LANGUAGES):
    voice = tmp_path / 'usr/share/asterisk/sounds' / f'{language}_f_Name'
    for number, name in enumerate(PROMPTS):
      write_recording(voice / name, [number, 1000 * i, -16384])
    write_recording(voice / 'beep.wav', [min(i, 3)])
    if i != 2:
      write_recording(voice / 'hello.wav', [i])
  return tmp_path


def test_each_prompt_is_in_one_split_in_all_languages(folder):
  source, found = AsteriskPrompts(folder=str(folder)), {}
  for split in source.splits():
    for example in source.load(split):
      number, language, half = example['audio'] * 32768
      assert language == 1000 * example['label'] and half == -16384 and example['audio'][2] == -0.5
      found.setdefault(int(number), []).append((split, example['label']))
  assert sorted(found) == list(range(60)), 'without the tone and the prompt that lacks'
  for recordings in found.values():
    splits, labels = zip(*recordings, strict=True)
    assert len(set(splits)) == 1 and labels == (0, 1, 2, 3, 4)
  assert {recordings[0][0] for recordings in found.values()} == {'train', 'validation', 'test'}
  assert source.class_names() == ('en', 'es', 'fr', 'it', 'ru')


def test_other_and_damaged_recordings_are_errors(folder, message):
  source = AsteriskPrompts(folder=str(folder))
  path = folder / 'usr/share/asterisk/sounds/en_US_f_Name' / PROMPTS[0]
  write_recording(path, [1], rate=16000)
  assert '0.wav has 16,000 samples per second, not 8,000: fetch it again' in ''.join(
    message(lambda: [source.load(split) for split in source.splits()])
  )
  path.write_bytes(b'RIFF')
  assert '0.wav cannot be read' in message(lambda: [source.load(s) for s in source.splits()])
  missing = AsteriskPrompts(folder=str(folder / 'no'))
  assert 'run `t2x data fetch asterisk_prompts' in message(missing.load, 'train')
