"""Recorded prompts of the telephone system Asterisk in five languages."""

import dataclasses
from pathlib import Path

import numpy as np

from t2x.base.errors import UserError
from t2x.data.sources.base import ClassSource
from t2x.data.sources.held_out import split_of
from t2x.domains.speech.recordings import read_recording
from t2x.samples.fetched import Fetched, Sample

__all__ = ['AsteriskPrompts']

LANGUAGES = 'en', 'es', 'fr', 'it', 'ru'
RATE = 8000
SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsteriskPrompts(Fetched, Sample, ClassSource):
  """Prompts in five languages (CC-BY-SA), of one voice each: `audio` float32 [samples] at 8 kHz, and `label`, the
  number of the language.

  A hash of its name assigns a prompt to train (80 %), validation or test, in all languages. Prompts that a language
  lacks, and those with the same recording in two languages (tones), are omitted.

  Attributes:
    folder: folder of the unpacked packages asterisk-core-sounds-*-wav; None: the folder of
      `t2x data fetch asterisk_prompts`.
  """

  data_set = 'asterisk_prompts'
  pattern = 'usr/share/asterisk/sounds/*/**/*.wav'
  split_names = tuple(SPLITS)

  def class_names(self) -> tuple[str, ...]:
    return LANGUAGES

  def examples(self, split):
    voices = [self.find(f'usr/share/asterisk/sounds/{name}_*')[0] for name in LANGUAGES]
    for path in sorted(voices[0].rglob('*.wav')):
      name = path.relative_to(voices[0])
      paths = [voice / name for voice in voices]
      if split_of(name.as_posix(), SPLITS) != split or not all(map(Path.exists, paths)):
        continue
      recordings = [read_prompt(path) for path in paths]
      if len({recording.tobytes() for recording in recordings}) == len(LANGUAGES):
        yield from ({'audio': audio, 'label': i} for i, audio in enumerate(recordings))


def read_prompt(path: Path) -> np.ndarray:
  """Returns the samples of a prompt, from -1 to 1."""
  try:
    audio, rate = read_recording(path)
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  if rate != RATE:
    raise UserError(f'{path} has {rate:,} samples per second, not {RATE:,}: fetch it again')
  return audio
