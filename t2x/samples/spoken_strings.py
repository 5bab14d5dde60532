"""Strings of spoken digits and letters in five languages."""

import dataclasses
import functools
import string

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Positive, Size
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Examples, require_split
from t2x.data.sources.digests import digest_of
from t2x.data.sources.held_out import SPLITS, split_of
from t2x.samples.asterisk import LANGUAGES, RATE, read_prompt
from t2x.samples.fetched import Fetched

__all__ = ['SpokenStrings']

SYMBOLS = (*string.digits, *string.ascii_lowercase)
# Samples below this are silence at the ends of a prompt.
SILENCE = 0.01
# Number of examples in each of the validation and test splits.
HELD_OUT = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpokenStrings(Fetched):
  """Strings of 2 to 7 digits and letters, joined from the recorded prompts of Asterisk
  (see `AsteriskPrompts`), with random pauses: `source` float32 [samples] at 8 kHz, `target`, such as '3 b 7',
  `language`, and `times`, the start and the end of each symbol in seconds.

  A hash of its string assigns an example to train (80 %), validation or test, in all languages; validation and test
  have 500 examples each. Each symbol has one recording per language, which is in all splits: only strings are held out.

  Attributes:
    folder: folder of the unpacked packages asterisk-core-sounds-*-wav; None: the folder of
      `t2x data fetch asterisk_prompts`.
    train_examples: number of examples in the train split.
    longest: maximum number of symbols.
    seconds: maximum length of a recording.
    pause: maximum pause between symbols in seconds.
  """

  train_examples: Count = 20_000
  longest: Size = 7
  seconds: Positive = 5.0
  pause: Positive = 0.1

  data_set = 'asterisk_prompts'
  pattern = 'usr/share/asterisk/sounds/*/[dl][ie][gt][it]*/?.wav'

  def __post_init__(self):
    if self.longest < 2:
      raise UserError('SpokenStrings.longest = 1: a string has at least 2 symbols')

  def splits(self):
    return tuple(SPLITS)

  def load(self, split):
    """Returns the examples of a split, which are joined when they are read."""
    require_split(self, split)
    return SpokenExamples(self, split)

  def settings(self):
    return self.train_examples, self.longest, self.seconds, self.pause

  def fingerprint(self):
    """Identifies the settings and the content of the prompts."""
    return fingerprint(type(self).__name__, *self.settings(), digest_of(self.data_files()))

  @functools.cached_property
  def prompts(self) -> dict[str, list[np.ndarray]]:
    """The prompts of all symbols without silence at their ends, by language."""
    result = {}
    for language in LANGUAGES:
      voice = self.find(f'usr/share/asterisk/sounds/{language}_*')[0]
      kinds = ('digits' if symbol.isdigit() else 'letters' for symbol in SYMBOLS)
      paths = [voice / kind / f'{s}.wav' for kind, s in zip(kinds, SYMBOLS, strict=True)]
      result[language] = [_without_silence(read_prompt(path)) for path in paths]
    return result


class SpokenExamples(Examples):
  """The examples of a split of `SpokenStrings`.

  Args:
    source: the source.
    split: the split.
  """

  def __init__(self, source: SpokenStrings, split: str):
    self.source, self.split = source, split

  def __len__(self):
    return self.source.train_examples if self.split == 'train' else HELD_OUT

  def __getitem__(self, index):
    """Returns the example at `index`; a slice is a list."""
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    source, number = self.source, range(len(self))[index]
    random = np.random.default_rng((20261126, list(SPLITS).index(self.split), number))
    language = LANGUAGES[number % len(LANGUAGES)]
    prompts = source.prompts[language]
    while True:
      chosen = random.integers(len(SYMBOLS), size=random.integers(2, source.longest + 1))
      text = ' '.join(SYMBOLS[i] for i in chosen)
      pauses = (random.random(len(chosen)) * source.pause * RATE).astype(int)
      size = pauses.sum() + sum(len(prompts[i]) for i in chosen)
      if split_of(text) == self.split and size <= source.seconds * RATE:
        break
    parts, times, start = [], [], 0
    for i, pause in zip(chosen, pauses, strict=True):
      start += pause
      parts += [np.zeros(pause, np.float32), prompts[i]]
      times.append((start / RATE, (start + len(prompts[i])) / RATE))
      start += len(prompts[i])
    audio = np.concatenate(parts)
    return {'source': audio, 'target': text, 'language': language, 'times': times}


def _without_silence(audio: np.ndarray) -> np.ndarray:
  loud = np.flatnonzero(np.abs(audio) > SILENCE)
  return audio[loud[0] : loud[-1] + 1]
