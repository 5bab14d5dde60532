"""Classes of recordings, with the front end of Whisper."""

import dataclasses
import wave
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import NoSource
from t2x.domains.speech import AudioClassification, LogMel
from t2x.experiments import read_config

ROOT = Path(__file__).parents[3]
FEATURES = LogMel(rate=8000, window=200, hop=80, num_frames=20, num_features=10)
ROW = {'audio': np.sin(np.arange(1000)), 'label': 3}


def task(**settings):
  settings = {'source': NoSource(), 'num_classes': 5, 'features': FEATURES} | settings
  return AudioClassification(**settings)


def test_rows_are_the_features_and_the_label():
  row = task().transform(train=True)(ROW, np.random.default_rng(0))
  np.testing.assert_array_equal(row['audio'], FEATURES(ROW['audio']))
  shapes = {name: (array.shape, str(array.dtype)) for name, array in row.items()}
  assert shapes == {n: (s.shape[1:], str(s.dtype)) for n, s in task().spec(1).items()}
  with pytest.raises(UserError, match='a recording has the label 3'):
    task(num_classes=3).transform(train=True)(ROW, None)


def test_a_recording_is_samples_of_any_type_or_a_file(tmp_path):
  samples = (ROW['audio'] * 8000).astype('<i2')
  path = tmp_path / 'one.wav'
  with wave.open(str(path), 'wb') as file:
    file.setparams((1, 2, 8000, 0, 'NONE', None))
    file.writeframes(samples.tobytes())
  prepare = task().transform(train=True)
  expected = FEATURES(samples.astype(np.float32) / 32768)
  for audio in (samples, (samples / 32768).tolist(), str(path)):
    np.testing.assert_allclose(prepare(ROW | {'audio': audio}, None)['audio'], expected, atol=1e-6)
  with pytest.raises(UserError, match=r'none\.wav cannot be read'):
    prepare(ROW | {'audio': 'none.wav'}, None)


def test_other_features_are_other_rows():
  other = task(features=dataclasses.replace(FEATURES, hop=40))
  first, second = (fingerprint(one.transform(train=True)) for one in (task(), other))
  assert first != second and first == fingerprint(task(num_classes=7).transform(train=True))


def test_the_shipped_config_classifies_recordings_and_its_positions_matter():
  config = ROOT / 'configs/runs/spoken_languages.gin'
  sizes = ['d_model=16', 'num_layers=1', 'MLP.hidden_dim=16', 'AudioStem.num_features=10']
  experiment = read_config(
    [config], [*sizes, 'LogMel.num_features=10', 'LogMel.num_frames=20']
  ).build()
  own = experiment.task
  assert (own.eval_split, experiment.evaluations['test'].split) == ('validation', 'test')
  model = moved(experiment.complete_model()(rngs=nnx.Rngs(0)))
  own.check_model(model)
  with pytest.raises(UserError, match='AudioClassification has 4: set Classifier'):
    dataclasses.replace(own, num_classes=4).check_model(model)
  row = own.transform(train=False)(ROW, None)
  batch = {name: np.stack([array, array]) for name, array in row.items()}
  batch['audio'][1] = batch['audio'][1, ::-1]
  batch['weight'][1] = 0.0
  batch = jax.tree.map(jnp.asarray, batch)
  sums = jax.jit(lambda model: own.sums(model, batch, None).metrics)(model)
  logits = model(batch['audio']).x
  assert not np.allclose(logits[0], logits[1], atol=1e-4)
  expected = -jax.nn.log_softmax(logits[0])[3]
  np.testing.assert_allclose(sums['loss'], (expected, 1.0), rtol=1e-5)
