"""One small task of each class, on made-up data; other processes import this too."""

import json
import string
import sys
import wave
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from public_classes import public_classes

import t2x.tasks
from t2x.data import (
  BPE,
  TSV,
  Bytes,
  FixedWeights,
  JsonLines,
  Palette,
  RandAugment,
  RandomResizedCrop,
  SampledPieces,
  TextFiles,
  WholeWords,
)
from t2x.domains.detection import Detection
from t2x.domains.pixels import PixelClassification, PixelLM, TextToImage
from t2x.domains.questions import PictureQuestions
from t2x.domains.retrieval import CaptionContrast, Contrastive, VersionContrast
from t2x.domains.segmentation import SemanticSegmentation
from t2x.domains.series import AutoregressiveForecast, Forecast, SeriesFile
from t2x.domains.speech import (
  AudioClassification,
  LogMel,
  SpeechModality,
  Transcription,
  speech_tokens,
)
from t2x.domains.video import VideoClassification
from t2x.samples import (
  AsteriskPrompts,
  DigitRows,
  Digits,
  DigitScenes,
  DrawnScenes,
  MovingDigits,
  SceneQuestions,
  SpokenStrings,
)
from t2x.samples.drawn_scenes import COLOURS, SHAPES

TEXT = 'the cat sees a red dog and the dog likes a blue house by the old tree'
WORDS = TEXT.split()
COUNT = 24


def task_classes():
  """The names of the tasks that can be bound in a config."""
  return {*public_classes(t2x.tasks.Task)}


def write_recording(path, samples, rate=8000):
  """A WAV file of one channel."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with wave.open(str(path), 'wb') as file:
    file.setparams((1, 2, rate, 0, 'NONE', None))
    file.writeframes(np.asarray(samples, '<i2').tobytes())


def write_prompts(voice, seed):
  """The prompts of the digits and letters of a voice."""
  symbols = string.digits + string.ascii_lowercase
  for number, symbol in enumerate(symbols):
    kind = 'digits' if symbol.isdigit() else 'letters'
    samples = 1000 * np.sin(np.arange(400) * (1 + seed) / 9 + number)
    write_recording(voice / kind / f'{symbol}.wav', samples)


def write_data(folder):
  """Files of every kind that a task reads."""
  for i, language in enumerate(('en', 'es', 'fr', 'it', 'ru')):
    write_prompts(folder / 'usr/share/asterisk/sounds' / f'{language}_voice', i)
  for number in range(COUNT):
    for i, language in enumerate(('en', 'es', 'fr', 'it', 'ru')):
      voice = folder / 'usr/share/asterisk/sounds' / f'{language}_voice'
      write_recording(voice / f'{number}.wav', 1000 * np.sin(np.arange(400) * (1 + i) / 9 + number))
  texts = [' '.join(WORDS[i % 7 : i % 7 + 5]) for i in range(COUNT)]
  (folder / 'text.txt').write_text('\n'.join(texts))
  # Documents of three sentences, between empty lines.
  documents = ['\n'.join(texts[i : i + 3]) for i in range(0, COUNT, 3)]
  (folder / 'documents.txt').write_text('\n\n'.join(documents))
  (folder / 'pairs.tsv').write_text(''.join(f'{text}\t{text.upper()}\n' for text in texts))
  lines = {'labelled': [], 'words': [], 'spans': [], 'choices': []}
  for number, text in enumerate(texts):
    words = text.split()
    start = text.index(words[2])
    label = 'even' if number % 2 == 0 else 'odd'
    lines['labelled'].append({'text': text, 'label': label, 'share': number / COUNT})
    lines['words'].append({'words': words, 'labels': ['O' if len(w) < 4 else 'B-X' for w in words]})
    lines['choices'].append({'text': text, 'choices': [words[0], 'bird'], 'answer': 0})
    lines['spans'].append(
      {'question': words[0], 'context': text, 'answers': [words[2]], 'starts': [start]}
    )
  hours = np.datetime64('2024-01-01T00') + np.arange(COUNT + 40).astype('timedelta64[h]')
  values = ''.join(f'{hour},{i % 7},{i % 5}\n' for i, hour in enumerate(hours))
  (folder / 'series.csv').write_text(f'time,a,b\n{values}')
  for name, objects in lines.items():
    (folder / f'{name}.jsonl').write_text(''.join(json.dumps(one) + '\n' for one in objects))


def recordings(folder):
  """Tasks of recordings and videos."""
  return [
    VideoClassification(
      source=MovingDigits(label='digit', frames=3, side=8, train_examples=COUNT),
      video_shape=(2, 8, 8, 1),
      num_classes=10,
      crop_padding=1,
    ),
    AudioClassification(
      source=AsteriskPrompts(folder=str(folder)),
      num_classes=5,
      features=LogMel(rate=8000, window=200, hop=80, num_frames=10, num_features=8),
    ),
    Transcription(
      source=SpokenStrings(folder=str(folder), train_examples=COUNT, longest=3),
      modality=SpeechModality(
        features=LogMel(rate=8000, window=200, hop=80, num_frames=20, num_features=8)
      ),
      prompt=('<|{language}|>',),
      target_length=8,
      tokenizer=BPE(270, named=speech_tokens(languages=('en', 'es', 'fr', 'it', 'ru'))),
    ),
  ]


def series(folder):
  """Tasks of time series."""
  settings = {
    'source': SeriesFile(
      path=str(folder / 'series.csv'),
      time='time',
      columns=['a', 'b'],
      minutes=60,
      rows=(COUNT, 20, 20),
    ),
    'context': 6,
    'horizon': 2,
  }
  return [
    Forecast(**settings),
    AutoregressiveForecast(**settings, calendar=('hour',)),
  ]


def images_and_recordings(folder):
  """Tasks whose inputs are no texts."""
  return [
    *recordings(folder),
    *series(folder),
    t2x.tasks.ImageClassification(
      source=Digits(),
      image_shape=(8, 8, 1),
      num_classes=10,
      crop_padding=1,
      augmentation=RandAugment(num_ops=1),
    ),
    Detection(
      source=DigitScenes(train_examples=COUNT),
      image_shape=(32, 32, 1),
      num_classes=10,
      num_queries=4,
      train_crop=RandomResizedCrop(),
    ),
    SemanticSegmentation(
      source=DigitScenes(train_examples=COUNT),
      image_shape=(32, 32, 1),
      num_classes=11,
      flip=True,
      train_crop=RandomResizedCrop(),
    ),
    PictureQuestions(
      source=SceneQuestions(examples={'train': COUNT, 'validation': COUNT}),
      modality=t2x.tasks.ImageModality(shape=(16, 16, 3), crop_padding=1),
      answers=('yes', 'no', *COLOURS, *SHAPES),
      length=40,
      tokenizer=Bytes(),
    ),
    t2x.tasks.Captions(
      source=DigitRows(longest=2, train_examples=COUNT),
      modality=t2x.tasks.ImageModality(shape=(8, 16, 1), crop_padding=1),
      target_length=16,
      tokenizer=Bytes(),
    ),
    PixelLM(source=Digits(), image_shape=(4, 4, 1), tokenizer=Palette(num_colours=4)),
    PixelClassification(
      source=Digits(), image_shape=(4, 4, 1), tokenizer=Palette(num_colours=5), num_classes=10
    ),
    TextToImage(
      source=DrawnScenes(examples={'train': COUNT, 'validation': COUNT}),
      image_shape=(4, 4, 3),
      text_length=70,
      tokenizer=Palette(num_colours=4, text=Bytes()),
    ),
    CaptionContrast(
      source=DigitRows(longest=2, train_examples=COUNT),
      modality=t2x.tasks.ImageModality(shape=(8, 16, 1), crop_padding=1),
      target_length=16,
      tokenizer=Bytes(),
    ),
  ]


def make(folder):
  """Class name -> a task; each draws something at random where its class can."""

  def source(kind, name, **settings):
    return kind(train=str(folder / name), validation=str(folder / name), **settings)

  text, pieces = source(TextFiles, 'text.txt'), SampledPieces(rate=0.2)
  bpe, byte = {'tokenizer': BPE(280), 'pieces': pieces}, {'tokenizer': Bytes()}
  pairs = {'source': source(TSV, 'pairs.tsv'), 'source_length': 48, 'target_length': 48}
  tasks = [
    t2x.tasks.CausalLM(source=text, length=32, **bpe),
    t2x.tasks.MaskedLM(source=text, length=32, choose=WholeWords(), **bpe),
    t2x.tasks.PermutationLM(source=text, length=32, tokenizer=Bytes()),
    t2x.tasks.SpanCorruption(source=text, source_length=32, **bpe),
    t2x.tasks.Denoising(source=text, length=32, **bpe),
    t2x.tasks.Translation(**pairs, **bpe),
    t2x.tasks.PrefixLM(**pairs, length=96, tokenizer=BPE(280)),
    *images_and_recordings(folder),
    t2x.tasks.SequenceClassification(
      source=source(JsonLines, 'labelled.jsonl'), length=32, labels=('even', 'odd'), **byte
    ),
    t2x.tasks.TextRegression(
      source=source(JsonLines, 'labelled.jsonl'), length=32, score='share', tokenizer=Bytes()
    ),
    t2x.tasks.MultipleChoice(
      source=source(JsonLines, 'choices.jsonl'), length=40, context=['text'], num_choices=2, **byte
    ),
    Contrastive(**pairs, tokenizer=Bytes()),
    t2x.tasks.MaskedPairs(
      source=source(TextFiles, 'documents.txt', separator='\n\n'), length=32, tokenizer=Bytes()
    ),
    t2x.tasks.MaskedTranslations(
      source=source(TSV, 'pairs.tsv'),
      length=64,
      languages={'source': 0, 'target': 1},
      tokenizer=Bytes(),
    ),
    VersionContrast(
      source=source(TextFiles, 'documents.txt', separator='\n\n'), length=32, tokenizer=Bytes()
    ),
    t2x.tasks.WordClassification(
      source=source(JsonLines, 'words.jsonl'), length=32, labels=('O', 'B-X', 'I-X'), **byte
    ),
    t2x.tasks.SpanPrediction(source=source(JsonLines, 'spans.jsonl'), length=48, stride=8, **byte),
    t2x.tasks.Mixture(
      tasks={
        'masks': t2x.tasks.MaskedLM(source=text, length=32, **bpe),
        'more': t2x.tasks.MaskedLM(source=text, length=32, mask_rate=0.5, **bpe),
      },
      sampling=FixedWeights({'masks': 1.0, 'more': 2.0}),
    ),
  ]
  return {type(task).__name__: task for task in tasks}


def fingerprints(folder):
  """Class name -> the fingerprint of its train batches."""
  found = {}
  for name, task in make(folder).items():
    bound = task.bound(task.fit_tokenizer())
    rows = bound.rows(task.train_split)
    found[name] = bound.batches(rows, batch_size=4, seed=0).fingerprint
  return found


def trained_losses(task, model, num_steps=30, rate=0.05):
  """Losses of gradient descent on one batch of a bound task."""
  batch = task.batches(task.rows('train'), batch_size=4, seed=0)[0]
  batch = {name: jnp.asarray(batch[name]) for name in task.spec(4)}

  @jax.jit
  def step(model):
    def loss(model):
      output = task.sums(model, task.batch(batch, jax.random.key(0)), jax.random.key(0))
      return sum(output.terms.values()) / task.weights(batch)['loss']

    value, gradient = jax.value_and_grad(loss)(model)
    return value, jax.tree.map(lambda p, g: p - rate * g, model, gradient)

  losses = []
  for _ in range(num_steps):
    value, model = step(model)
    losses.append(float(value))
  return losses


if __name__ == '__main__':
  print(json.dumps(fingerprints(Path(sys.argv[1]))))
