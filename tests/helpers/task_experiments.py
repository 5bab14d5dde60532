"""Tiny experiments of tasks whose models, unlike those of tests/end_to_end/conftest.py, state their own sizes: each is
a run of configs/ with smaller sizes, on samples that need no download or on the files of `write_data`."""

import json
import wave
from pathlib import Path

import numpy as np

HEADS = """
d_model = 32
num_layers = 2
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
"""

BYTES = """
vocab_size = 261
length = 48
"""

LINES = """
JsonLines:
  train = '{data}/train-NAME.jsonl'
  validation = '{data}/validation-NAME.jsonl'
"""

TEXTS = """
TextFiles:
  train = '{data}/train-*.txt'
  validation = '{data}/validation-*.txt'
"""

PAIRS = """
TSV:
  train = '{data}/train.tsv'
  validation = '{data}/validation.tsv'
"""

PIXEL_SIZES = """
d_model = 32
num_layers = 2
num_heads = 2
num_pixels = 80
MLP.hidden_dim = 64
Palette.num_colours = 8
"""

SERIES = """
SeriesFile:
  path = '{data}/hours.csv'
  time = 'time'
  columns = ['load', 'heat']
  minutes = 60
  rows = (400, 100, 100)
"""

# Rows of the evaluation during training.
FEW = 'Trainer.eval_batches = 2\n'

EXPERIMENTS = {
  'audio_classification': """
include '{configs}/runs/spoken_languages.gin'
Experiment.evaluations = {{}}
AudioClassification.source = @JsonLines()
JsonLines.fields = {{'audio': 'sound', 'label': 'label'}}
AudioClassification.num_classes = 2
LogMel.num_frames = 20
num_classes = 2
"""
  + HEADS
  + LINES.replace('NAME', 'sounds'),
  'transcription': """
include '{configs}/runs/spoken_strings.gin'
Experiment.evaluations = {{'words': @WordErrors()}}
WordErrors:
  split = 'validation'
  by = None
  every = 1
  num_examples = 4
Transcription:
  source = @JsonLines()
  strategy = @Greedy()
  target_length = 16
JsonLines.fields = {{'source': 'sound', 'target': 'keys'}}
BPE.vocab_size = %vocab_size
vocab_size = 276
LogMel.num_frames = 20
num_heads = 2
d_model = 32
MLP.hidden_dim = 64
"""
  + LINES.replace('NAME', 'sounds'),
  'forecast': """
include '{configs}/models/small_patchtst.gin'
Experiment.task = @Forecast()
Experiment.evaluations = {{'scores': @ForecastScores()}}
ForecastScores.seasons = [24]
Forecast:
  source = @SeriesFile()
  context = %context
  horizon = %horizon
  stride = 8
context = 48
horizon = 8
"""
  + HEADS
  + SERIES,
  'autoregressive_forecast': """
include '{configs}/models/small_series_transformer.gin'
Experiment.task = @AutoregressiveForecast()
Experiment.evaluations = {{'scores': @ForecastScores()}}
ForecastScores:
  seasons = [24]
  num_examples = 4
AutoregressiveForecast:
  source = @SeriesFile()
  context = 48
  horizon = %horizon
  calendar = %calendar
  stride = 8
  num_samples = 4
context = 24
horizon = 8
lags = [1, 2, 24]
channels = 2
"""
  + HEADS
  + SERIES,
  'captions': """
include '{configs}/runs/caption_digits.gin'
Experiment.evaluations = {{'captions': @Translations()}}
Translations:
  split = 'validation'
  num_examples = 4
  every = 1
Captions.strategy = @Greedy()
DigitRows.train_examples = 200
"""
  + HEADS,
  'caption_contrast': """
include '{configs}/models/small_clip.gin'
Experiment.task = @CaptionContrast()
Experiment.evaluations = {{'pairs': @Retrieval()}}
CaptionContrast:
  source = @DrawnScenes()
  tokenizer = @Bytes()
  modality = @ImageModality()
  target_length = %length
PatchEmbedding:
  channels = 3
  patch_size = 4
ImageModality.shape = (16, 16, 3)
Retrieval.num_examples = 16
DrawnScenes.examples = {{'train': 200, 'validation': 16}}
vocab_size = 261
length = 64
PreNorm.dropout_rate = %dropout_rate
dropout_rate = 0.0
"""
  + HEADS,
  'contrastive': """
include '{configs}/runs/libreoffice_pairs.gin'
Experiment.evaluations = {{'pairs': @Retrieval()}}
Contrastive:
  source = @TSV()
  tokenizer = @Bytes()
Retrieval.every = 1
PreNorm.dropout_rate = %dropout_rate
dropout_rate = 0.0
d_model = 32
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
"""
  + BYTES
  + PAIRS,
  'denoising': """
include '{configs}/runs/stdlib_denoising.gin'
Denoising:
  source = @TextFiles()
  tokenizer = @Bytes()
"""
  + BYTES
  + HEADS
  + TEXTS,
  'masked_pairs': """
include '{configs}/runs/stdlib_bert.gin'
MaskedPairs:
  source = @TextFiles()
  tokenizer = @Bytes()
"""
  + BYTES
  + HEADS
  + TEXTS,
  'masked_translations': """
include '{configs}/models/small_bert_without_head.gin'
LanguageModel.head = @TiedHead
Experiment.task = @MaskedTranslations()
MaskedTranslations:
  source = @TSV()
  tokenizer = @Bytes()
  length = %length
  languages = {{'source': 0, 'target': 1}}
"""
  + BYTES
  + HEADS
  + PAIRS,
  'permutation_lm': """
include '{configs}/runs/stdlib_xlnet.gin'
PermutationLM:
  source = @TextFiles()
  tokenizer = @Bytes()
XLPositions.num_heads = 2
PostNorm.dropout_rate = %dropout_rate
"""
  + BYTES
  + HEADS
  + TEXTS,
  'version_contrast': """
include '{configs}/runs/stdlib_versions.gin'
VersionContrast:
  source = @TextFiles()
  tokenizer = @Bytes()
"""
  + BYTES
  + HEADS
  + TEXTS,
  'text_regression': """
include '{configs}/runs/sentiment_rating.gin'
Experiment.evaluations = {{'ratings': @Correlations()}}
Correlations.every = 1
TextRegression:
  source = @JsonLines()
  tokenizer = @Bytes()
"""
  + BYTES
  + HEADS
  + LINES.replace('NAME', 'ratings'),
  'multiple_choice': """
include '{configs}/runs/dates_choice.gin'
MultipleChoice:
  source = @DrawnChoices()
  tokenizer = @Bytes()
  length = %length
DrawnChoices.source = @TSV()
"""
  + BYTES
  + HEADS
  + PAIRS,
  'detection': """
include '{configs}/runs/detr_digit_scenes.gin'
Experiment.evaluations = {{'boxes': @AveragePrecision()}}
AveragePrecision:
  split = 'validation'
  num_examples = 8
DigitScenes.train_examples = 100
PostNorm.dropout_rate = %dropout_rate
dropout_rate = 0.0
width = 8
GroupNorm.num_groups = 4
"""
  + HEADS,
  'semantic_segmentation': """
include '{configs}/runs/segformer_digit_masks.gin'
Experiment.evaluations = {{'masks': @MeanIoU()}}
MeanIoU:
  split = 'validation'
  num_examples = 8
  every = 1
DigitScenes.train_examples = 100
Classifier.dropout_rate = %dropout_rate
dropout_rate = 0.0
""",
  'video_classification': """
include '{configs}/runs/timesformer_moving_digits.gin'
Experiment.evaluations = {{}}
MovingDigits.train_examples = 100
PreNorm.dropout_rate = %dropout_rate
dropout_rate = 0.0
d_model = 32
num_layers = 2
num_heads = 2
hidden_dim = 64
""",
  'picture_questions': """
include '{configs}/runs/vilt_scene_questions.gin'
Experiment.evaluations = {{'answers': @PictureAnswers()}}
PictureAnswers:
  split = 'validation'
  num_examples = 8
PictureQuestions.tokenizer = @Bytes()
SceneQuestions.examples = {{'train': 200, 'validation': 16}}
TokenEmbedding.vocab_size = 261
length = 48
d_model = 32
Stack:
  num_layers = 2
  unroll = 2
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
""",
  'pixel_lm': """
include '{configs}/models/image_gpt_s.gin'
Experiment.task = @PixelLM()
PixelLM:
  source = @Digits()
  tokenizer = @Palette()
  image_shape = (8, 8, 1)
  eval_split = 'test'
TokenEmbedding.vocab_size = 9
"""
  + PIXEL_SIZES,
  'pixel_classification': """
include '{configs}/models/image_gpt_s.gin'
LanguageModel.head = @SequenceClassifier
SequenceClassifier:
  pool = @mean_tokens
  classifier = @Classifier
  language_head = @LMHead
Classifier.num_classes = 10
Experiment.task = @PixelClassification()
PixelClassification:
  source = @Digits()
  tokenizer = @Palette()
  image_shape = (8, 8, 1)
  num_classes = 10
  auxiliaries = {{'pixels': @NextPixels()}}
  eval_split = 'test'
TokenEmbedding.vocab_size = 9
"""
  + PIXEL_SIZES,
  'text_to_image': """
include '{configs}/models/image_gpt_s.gin'
Experiment.task = @TextToImage()
TextToImage:
  source = @DrawnScenes()
  tokenizer = @Palette()
  image_shape = (4, 4, 3)
  text_length = 64
Palette.text = @Bytes()
DrawnScenes.examples = {{'train': 200, 'validation': 16}}
TokenEmbedding.vocab_size = 269
LMHead.unpredicted = 0
"""
  + PIXEL_SIZES,
}


def write_data(folder: Path) -> None:
  """Writes recordings of one and two tones, ratings, and a series with missing values."""
  random, seconds = np.random.default_rng(0), np.arange(1600) / 8000
  for split, count in (('train', 40), ('validation', 12)):
    sounds, ratings = [], []
    for number in range(count):
      keys = random.integers(1, 10, size=1 + number % 2)
      wave_form = sum(np.sin(2 * np.pi * (300 + 100 * key) * seconds) for key in keys)
      name = str(folder / f'{split}-{number}.wav')
      with wave.open(name, 'wb') as file:
        file.setparams((1, 2, 8000, 0, 'NONE', 'not compressed'))
        file.writeframes((wave_form * 8000).astype('<i2').tobytes())
      sounds.append({'sound': name, 'label': number % 2, 'keys': ' '.join(map(str, keys))})
      length = int(random.integers(1, 6))
      ratings.append({'text': ' '.join(['good'] * length), 'rating': length / 5})
    for name, objects in (('sounds', sounds), ('ratings', ratings)):
      lines = ''.join(json.dumps(one) + '\n' for one in objects)
      (folder / f'{split}-{name}.jsonl').write_text(lines)
  hours = np.arange(600)
  times = np.datetime64('2024-01-01T00') + hours.astype('timedelta64[h]')
  day = np.sin(2 * np.pi * hours / 24) + 0.1 * random.normal(size=600)
  rows = ['time,load,heat']
  for number, (time, value) in enumerate(zip(times, day, strict=True)):
    rows.append(f'{time},{value:.3f},{"" if number % 17 == 0 else round(1 - value, 3)}')
  (folder / 'hours.csv').write_text('\n'.join(rows) + '\n')
