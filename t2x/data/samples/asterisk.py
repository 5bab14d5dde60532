"""Recorded prompts of the telephone system Asterisk in five languages."""

import dataclasses
import wave
from pathlib import Path

import numpy as np

from t2x.base.errors import UserError
from t2x.data.samples.fetched import Fetched, Sample
from t2x.data.sources.base import ClassSource
from t2x.data.sources.held_out import split_of

__all__ = ['AsteriskPrompts']

LANGUAGES = 'en', 'es', 'fr', 'it', 'ru'
SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsteriskPrompts(Fetched, Sample, ClassSource):
  """Prompts in five languages (CC-BY-SA), of one voice each: `audio` float32 [samples] at 8 kHz, and `label`, the number
  of the language.

  A hash of its name assigns a prompt to train (80 %), validation or test, in all languages. Prompts that a language lacks,
  and those with the same recording in two languages (tones), are omitted.

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
      recordings = [_read(path) for path in paths]
      if len({recording.tobytes() for recording in recordings}) == len(LANGUAGES):
        yield from ({'audio': audio, 'label': i} for i, audio in enumerate(recordings))


def _read(path: Path) -> np.ndarray:
  """Returns the samples of a WAV file, from -1 to 1."""
  try:
    with wave.open(str(path)) as file:
      kind = file.getframerate(), file.getsampwidth(), file.getnchannels()
      data = file.readframes(file.getnframes())
  except (OSError, EOFError, wave.Error) as error:
    raise UserError(f'{path} cannot be read: {error}') from error
  if kind != (8000, 2, 1):
    raise UserError(
      f'{path} has {kind}, not 8,000 samples per second of 2 bytes in 1 channel: fetch it again'
    )
  return np.frombuffer(data, '<i2').astype(np.float32) / 32768
