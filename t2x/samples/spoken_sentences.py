"""Dates and numbers spoken by espeak-ng, a speech synthesiser."""

import dataclasses
import datetime
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Count, NonEmpty, Size, Text
from t2x.data.prepared_folders import cache_folder, fingerprint, prepare
from t2x.data.sources.base import Example, Examples, Source, require_split
from t2x.data.sources.held_out import split_of
from t2x.domains.speech.recordings import read_recording, resampled
from t2x.samples.babel_dates import FIRST, LAST

__all__ = ['SpokenSentences']

SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}
# Split -> that whose texts it has.
TEXTS_OF = {'train': 'train', 'validation': 'validation', 'test': 'test', 'other_voice': 'test'}
# Number of examples in each split but train.
HELD_OUT = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpokenSentences(Source):
  """Dates and numbers spoken by voices of espeak-ng: `source` int16 [samples] at 8 kHz, `target`, such as '27 February
  1962', which is the text that espeak-ng reads, `language` and `voice`.

  A hash of its text assigns an example to train (80 %), validation or test, and the split `other_voice` has texts of
  the test split spoken by a voice that no other split has. The recordings are written to the cache at first use.

  Attributes:
    languages: codes of espeak-ng that are also locales of Babel, such as 'en' and 'de'.
    voices: names of voice variants of espeak-ng.
    other_voice: the variant that is left out of training.
    train_examples: number of examples in the train split.
    rate: samples per second of `source`; espeak-ng writes 22,050, which are resampled.
  """

  packages = ('babel',)

  languages: Annotated[Sequence[Text], NonEmpty] = ('en',)
  voices: Annotated[Sequence[Text], NonEmpty] = ('m1', 'm3', 'm4', 'm7', 'f1', 'f2', 'f4')
  other_voice: Text = 'f3'
  train_examples: Count = 2000
  rate: Size = 8000

  def __post_init__(self):
    if self.other_voice in self.voices:
      raise UserError(
        f"SpokenSentences.other_voice = '{self.other_voice}' is one of SpokenSentences.voices: leave it out there"
      )

  def splits(self):
    return tuple(TEXTS_OF)

  def load(self, split):
    """Returns the examples of a split, spoken at first use.

    Raises:
      UserError: espeak-ng is not installed, or has no such voice.
    """
    require_split(self, split)
    folder = cache_folder() / 'built' / f'spoken_sentences-{self.fingerprint()}' / split
    prepare(folder, lambda temporary: self._speak(split, temporary))
    return Spoken(folder)

  def fingerprint(self) -> str:
    """Identifies the settings, and the versions of espeak-ng and of Babel."""
    return fingerprint(self, _version(), _babel_version(), HELD_OUT)

  def _sentences(self, split: str) -> Iterator[Example]:
    """Yields text, language and voice of a split's examples; no text of another split, none twice by a voice."""
    random = np.random.default_rng((20261126, list(TEXTS_OF).index(TEXTS_OF[split])))
    voices = (self.other_voice,) if split == 'other_voice' else tuple(self.voices)
    used: set[tuple[str, ...]] = set()
    while len(used) < (self.train_examples if split == 'train' else HELD_OUT):
      language = self.languages[int(random.integers(len(self.languages)))]
      text, voice = _sentence(random, language), voices[int(random.integers(len(voices)))]
      if (text, language, voice) not in used and split_of(text, SPLITS) == TEXTS_OF[split]:
        used.add((text, language, voice))
        yield {'target': text, 'language': language, 'voice': voice}

  def _speak(self, split: str, folder: Path) -> None:
    sentences = list(self._sentences(split))
    recordings = [
      _spoken(s['target'], f'{s["language"]}+{s["voice"]}', self.rate) for s in sentences
    ]
    stops = np.cumsum([len(recording) for recording in recordings])
    np.save(folder / 'samples.npy', np.concatenate(recordings))
    texts = {
      name: np.array([s[name] for s in sentences]) for name in ('target', 'language', 'voice')
    }
    np.savez(folder / 'texts.npz', allow_pickle=False, stops=stops, **texts)


class Spoken(Examples):
  """The examples of a split, whose samples are in a memory-mapped file."""

  def __init__(self, folder: Path):
    self.folder = folder
    with np.load(folder / 'texts.npz') as texts:
      self.stops = texts['stops']
      self.texts = {name: texts[name].tolist() for name in ('target', 'language', 'voice')}

  @functools.cached_property
  def samples(self) -> Any:
    return np.load(self.folder / 'samples.npy', mmap_mode='r')

  def __getstate__(self):
    """Leaves out the open file."""
    return {name: value for name, value in vars(self).items() if name != 'samples'}

  def __len__(self):
    return len(self.stops)

  def __getitem__(self, index):
    """Returns the example at `index`; a slice is a list."""
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    i = range(len(self))[index]
    start = self.stops[i - 1] if i else 0
    audio = np.asarray(self.samples[start : self.stops[i]])
    return {'source': audio, **{name: values[i] for name, values in self.texts.items()}}


def _sentence(random: np.random.Generator, language: str) -> str:
  """Returns a date or a number in words and digits, as the language writes it."""
  from babel.dates import format_date

  if random.random() < 0.5:
    return str(random.integers(10 ** random.integers(1, 4)))
  day = FIRST + datetime.timedelta(days=int(random.integers((LAST - FIRST).days + 1)))
  return format_date(day, 'd MMMM y' if random.random() < 0.5 else 'EEEE d MMMM', locale=language)


def _espeak(*arguments: str) -> str:
  """Runs espeak-ng and returns its output. Raises UserError."""
  if shutil.which('espeak-ng') is None:
    raise UserError(
      'SpokenSentences needs espeak-ng, which is not installed: apt-get install espeak-ng'
    )
  process = subprocess.run(['espeak-ng', *arguments], capture_output=True, text=True, check=False)
  if process.returncode or process.stderr:
    raise UserError(f'espeak-ng {" ".join(arguments[:2])} failed: {process.stderr.strip()}')
  return process.stdout


@functools.cache
def _version() -> str:
  return _espeak('--version').split('Data')[0].strip()


def _babel_version() -> str:
  return imported('babel', 'SpokenSentences').__version__


def _spoken(text: str, voice: str, rate: int) -> np.ndarray:
  """Returns a text spoken by a voice, int16 [samples]."""
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / 'spoken.wav'
    _espeak('-v', voice, '-w', str(path), '--', text)
    audio = resampled(*read_recording(path), rate)
  return np.clip(np.round(audio * 32768), -32768, 32767).astype(np.int16)
