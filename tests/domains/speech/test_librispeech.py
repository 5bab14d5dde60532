"""The config of LibriSpeech reads the fields and splits that the installed package of TFDS declares, and its examples.

The package cannot build the data set here: its recordings need TensorFlow. The example is made by hand.
"""

import ast
import importlib.util
from pathlib import Path

import numpy as np

from t2x.data.sources.tfds_source import DataSource
from t2x.domains.speech import WordErrors
from t2x.experiments import read_experiment

CONFIG = Path(__file__).parents[3] / 'configs' / 'runs' / 'librispeech_whisper_full.gin'


def declared():
  """The names of fields and splits in the source of TFDS."""
  spec = importlib.util.find_spec('tensorflow_datasets')
  folder = Path(spec.origin).parent / 'datasets' / 'librispeech'
  tree = ast.parse((folder / 'librispeech_dataset_builder.py').read_text())
  calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
  features = next(c.args[0] for c in calls if ast.unparse(c.func).endswith('FeaturesDict'))
  urls = next(
    node.value
    for node in tree.body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '_DL_URLS'
  )
  types = {
    key.value: ast.unparse(value) for key, value in zip(features.keys, features.values, strict=True)
  }
  return types, {key.value for key in urls.keys}


class Stored:
  """Rows as TFDS returns them."""

  def __init__(self, rows, features):
    self.rows = rows
    self.dataset_info = type('Info', (), {'features': features})

  def __len__(self):
    return len(self.rows)

  def __getitems__(self, indices):
    return [self.rows[i] for i in indices]


def test_fields_and_splits_are_those_of_the_data_set():
  experiment = read_experiment([CONFIG])
  source = experiment.task.source
  features, splits = declared()
  assert set(source.fields.values()) <= set(features)
  assert 'Audio' in features['speech'] and 'sample_rate=16000' in features['speech']
  assert 'np.int16' in features['speech'] and 'Text' in features['text']
  names = {name for value in source.split_names.values() for name in value.split('+')}
  assert names <= splits and len(names) == 6
  read = {e.split for e in experiment.evaluations.values() if isinstance(e, WordErrors)}
  assert read <= set(source.split_names)
  # The rate of the data set is that of the features.
  modality = experiment.task.modality
  assert modality.rate is None and modality.features.rate == 16_000


def test_an_example_becomes_frames_and_text():
  experiment = read_experiment([CONFIG], ['BPE.vocab_size=264'])
  task = experiment.task
  speech = np.round(9000 * np.sin(np.arange(8000) / 5)).astype(np.int16)
  row = {'speech': speech, 'text': b'A MAN SAID TO THE UNIVERSE', 'speaker_id': np.int64(1)}
  example = DataSource(Stored([row], dict.fromkeys(row)), task.source.fields)[0]
  bound = task.bound(task.tokenizer.train([example['target']]))
  columns = bound.transform(train=False)(example, np.random.default_rng(0))
  assert columns['source'].shape == (3000, 80) and columns['source'].max() < 2
  text = bound.fitted.decode(columns['target'][columns['target_segments'] == 1])
  assert text == 'A MAN SAID TO THE UNIVERSE'
