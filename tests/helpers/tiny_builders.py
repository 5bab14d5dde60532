"""Data sets that tests prepare, also in other processes."""

import dataclasses
import io
import time
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from t2x.samples.built import BuiltSource


class TinyPairs(tfds.core.GeneratorBasedBuilder):
  """Numbers in two languages and a picture: registered with TFDS as tiny_pairs."""

  VERSION = tfds.core.Version('1.2.0')

  def _info(self):
    features = {
      'en': tfds.features.Text(),
      'texts': {'de': tfds.features.Text()},
      'label': tfds.features.ClassLabel(num_classes=5),
      'image': tfds.features.Image(shape=(4, 3, 1)),
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(20), 'test': self._generate_examples(5)}

  def _generate_examples(self, count):
    for i in range(count):
      file = io.BytesIO()
      Image.fromarray(np.full((4, 3), i, np.uint8)).save(file, 'png')
      yield (
        i,
        {
          'en': f'number {i}',
          'texts': {'de': f'die Zahl {i} (ä)'},
          'label': i % 5,
          'image': file.getvalue(),
        },
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(BuiltSource):
  """Texts; `log` gets a line each time they are made, `stall` makes the 30th wait."""

  count: int = 50
  log: str | None = None
  stall: bool = False

  def splits(self):
    return ('train', 'test')

  def fingerprint(self):
    return f'counted-{self.count}'

  def generate(self):
    if self.log:
      with open(self.log, 'a') as file:
        file.write('made\n')
    return {'train': self._texts(self.count), 'test': self._texts(3)}

  def _texts(self, count):
    for i in range(count):
      if i == 30 and self.stall:
        Path(f'{self.log}.stalled').touch()
        time.sleep(60)
      yield {'text': f'text {i}'}


class TinySquad(tfds.core.GeneratorBasedBuilder):
  """Questions with the features of squad/v2.0; the last one has no answer: tiny_squad."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    text, sequence = tfds.features.Text, tfds.features.Sequence
    features = {
      'id': np.str_,
      'title': text(),
      'context': text(),
      'question': text(),
      'plausible_answers': sequence({'text': text(), 'answer_start': np.int32}),
      'answers': sequence({'text': text(), 'answer_start': np.int32}),
      'is_impossible': np.bool_,
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(), 'validation': self._generate_examples()}

  def _generate_examples(self):
    context = 'The cat sat on the mat (ä).'
    answers = [[('The cat', 0)], [('the mat', 15), ('mat (ä)', 19)], []]
    for number, found in enumerate(answers):
      given = [{'text': text, 'answer_start': start} for text, start in found]
      yield (
        number,
        {
          'id': str(number),
          'title': 'Cats',
          'context': context,
          'question': f'Question {number}?',
          'plausible_answers': [],
          'answers': given,
          'is_impossible': not found,
        },
      )


class TinyConll2003(tfds.core.GeneratorBasedBuilder):
  """Sentences with the features of conll2003: tiny_conll2003."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    def tags(*names):
      return tfds.features.Sequence(tfds.features.ClassLabel(names=names))

    features = {
      'tokens': tfds.features.Sequence(tfds.features.Text()),
      'pos': tags('NNP', 'VBZ', '.'),
      'chunks': tags('O', 'B-NP', 'B-VP'),
      'ner': tags('O', 'B-PER', 'I-PER', 'B-LOC'),
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(), 'validation': self._generate_examples()}

  def _generate_examples(self):
    for number, name in enumerate(('Zoë', 'Ann')):
      tokens = [name, 'Lee', 'sees', 'Oslo', '.']
      yield (
        number,
        {
          'tokens': tokens,
          'pos': ['NNP', 'NNP', 'VBZ', 'NNP', '.'],
          'chunks': ['B-NP', 'B-NP', 'B-VP', 'B-NP', 'O'],
          'ner': ['B-PER', 'I-PER', 'O', 'B-LOC', 'O'],
        },
      )
