"""Training on Parquet files."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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


def write_text(folder):
  words = random.Random(0)
  for split, count in (('train', 60), ('validation', 10)):
    texts = [' '.join(words.choices(['red', 'blue', 'cat'], k=9)) for _ in range(count)]
    pq.write_table(pa.table({'body': texts}), folder / f'{split}.parquet', row_group_size=7)


def test_five_steps_and_an_evaluation_on_parquet_files(tmp_path, monkeypatch, t2x):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  write_text(tmp_path)
  file = tmp_path / 'a.gin'
  file.write_text(TEXT.format(configs=CONFIGS, data=tmp_path) + SIZE)
  code, out, err = t2x('train', file, '--out', tmp_path / 'run')
  assert code == 0, err
  assert 'finished    5 steps' in out + err
  assert 'eval_tokens' in out + err
