"""Training on Parquet files and on folders of images."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

CONFIGS = Path(__file__).parents[2] / 'configs'
SIZE = """
d_model = 32
num_layers = 1
MLP.hidden_dim = 64
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 5
  batch_size = 8
"""
TEXT = """
include '{configs}/models/small_decoder.gin'
vocab_size = 261
Experiment.task = @CausalLM()
CausalLM:
  source = @Parquet()
  tokenizer = @Bytes()
  length = 32
Parquet:
  train = '{data}/train.parquet'
  validation = '{data}/validation.parquet'
  fields = {{'text': 'body'}}
"""
IMAGES = """
include '{configs}/models/small_vit.gin'
grid = 2
num_classes = 2
PatchEmbedding:
  patch_size = 4
  channels = 3
Experiment.task = @ImageClassification()
ImageClassification:
  source = @Resized()
  image_shape = (8, 8, 3)
  num_classes = %num_classes
Resized:
  source = @ImageFolder()
  height = 8
  width = 8
ImageFolder:
  train = '{data}/train'
  validation = '{data}/validation'
"""


def write_text(folder):
  words = random.Random(0)
  for split, count in (('train', 60), ('validation', 10)):
    texts = [' '.join(words.choices(['red', 'blue', 'cat'], k=9)) for _ in range(count)]
    pq.write_table(pa.table({'body': texts}), folder / f'{split}.parquet', row_group_size=7)


def write_images(folder):
  rng = np.random.default_rng(0)
  for split, count in (('train', 12), ('validation', 3)):
    for name in ('cat', 'dog'):
      (folder / split / name).mkdir(parents=True)
      for i in range(count):
        pixels = rng.integers(0, 256, (*rng.integers(8, 20, 2), 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / split / name / f'{i}.jpg')


@pytest.mark.parametrize(
  ('write', 'config', 'rows'),
  [(write_text, TEXT, 'eval_tokens'), (write_images, IMAGES, 'eval_examples 6')],
)
def test_five_steps_and_an_evaluation(tmp_path, monkeypatch, t2x, write, config, rows):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  write(tmp_path)
  file = tmp_path / 'a.gin'
  file.write_text(config.format(configs=CONFIGS, data=tmp_path) + SIZE)
  code, out, err = t2x('train', file, '--out', tmp_path / 'run')
  assert code == 0, err
  assert 'finished    5 steps' in out + err
  assert rows in out + err
