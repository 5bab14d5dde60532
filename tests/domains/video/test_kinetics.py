"""The config of Kinetics, with features that we wrote, not those of a released data set: videos as lists of frames."""

import io
import json
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from t2x.experiments import read_config

CONFIG = Path(__file__).parents[3] / 'configs' / 'runs' / 'timesformer_kinetics_full.gin'
FEATURES = Path(__file__).parent / 'kinetics_features.json'


def jpeg(colour):
  file = io.BytesIO()
  Image.new('RGB', (24, 20), colour).save(file, 'jpeg')
  return file.getvalue()


class Kinetics400(tfds.core.GeneratorBasedBuilder):
  """Videos of nine frames whose grey is ten times the number of the frame."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    features = tfds.features.FeaturesDict.from_json(json.loads(FEATURES.read_text()))
    return tfds.core.DatasetInfo(builder=self, features=features)

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(4), 'validation': self._generate_examples(2)}

  def _generate_examples(self, count):
    for i in range(count):
      yield i, {'video': [jpeg((10 * n,) * 3) for n in range(9)], 'label': 100 * i + 99}


def test_videos_with_these_features_become_rows(tmp_path):
  Kinetics400(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  sizes = [
    f"TFDS.data_dir='{tmp_path}'",
    'VideoClassification.frame_step=2',
    'VideoClassification.video_shape=(4, 16, 16, 3)',
  ]
  task = read_config([CONFIG], sizes).build().task
  rows = task.rows('train')
  task.check_rows('train', rows)
  prepared = task.transform(train=False)(rows[0], np.random.default_rng(0))
  spec = {name: shape.shape[1:] for name, shape in task.spec(1).items()}
  assert {name: np.shape(value) for name, value in prepared.items()} == spec
  # The middle seven of nine frames, with a step of 2.
  expected = (np.array([10, 30, 50, 70]) / 255 - 0.45) / 0.225
  np.testing.assert_allclose(prepared['video'].mean(axis=(1, 2, 3)), expected, atol=0.01)
  assert prepared['label'] in range(99, 400, 100)
