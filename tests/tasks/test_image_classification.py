"""Image classification: photographs of any size, statistics of channels."""

import dataclasses
import types
from pathlib import Path

import numpy as np
import pytest
from in_order import InOrder

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.config import problem
from t2x.data import (
  Batches,
  CentralCrop,
  Chain,
  ColourJitter,
  CropAndResize,
  PrepareImage,
  RandAugment,
  RandomErasing,
  RandomResizedCrop,
  Source,
)
from t2x.experiments import read_config
from t2x.samples import Digits
from t2x.tasks import ImageClassification

ROOT = Path(__file__).parents[2]

PHOTOGRAPHS = """
Experiment.task = @ImageClassification()
ImageClassification:
  source = @Digits()
  image_shape = (6, 6, 1)
  num_classes = 10
  train_crop = @RandomResizedCrop()
  eval_crop = @CentralCrop()
  mean = [0.3]
  std = (0.4,)
RandomResizedCrop.area = (0.25, 1.0)
CentralCrop.fraction = 1.0
"""


@dataclasses.dataclass(frozen=True)
class Photographs(Source):
  """Random images of different sizes, dark in the first channel."""

  def splits(self):
    return ('train', 'test')

  def load(self, split):
    draw = np.random.default_rng(3)
    sizes = draw.integers(9, 60, (12, 2))
    images = [draw.integers(0, 256, (*size, 3)).astype(np.uint8) for size in sizes]
    return [{'image': image // np.uint8([4, 1, 1]), 'label': i} for i, image in enumerate(images)]

  def fingerprint(self):
    return 'photographs'


TASK = ImageClassification(
  source=Photographs(),
  image_shape=(8, 6, 3),
  num_classes=12,
  train_crop=RandomResizedCrop(area=(0.3, 1.0)),
  eval_crop=CentralCrop(),
  flip=True,
)


def test_crops_give_images_of_any_size_the_shape_of_the_model():
  for train, split in ((True, 'train'), (False, 'test')):
    rows, transform = TASK.rows(split), TASK.transform(train=train)
    batch = Batches(rows, transform, batch_size=12, seed=0, order=InOrder(len(rows)))[0]
    spec = TASK.spec(12)
    assert {name: array.shape for name, array in batch.items()} == {
      name: field.shape for name, field in spec.items()
    }
  expected = CropAndResize(CentralCrop(), 8, 6)(rows[3], np.random.default_rng())['image']
  np.testing.assert_allclose(batch['image'][3], expected / 127.5 - 1, atol=1e-6)


def test_augmentations_follow_the_crop():
  task = dataclasses.replace(TASK, augmentation=RandAugment(), crop_padding=1)
  prepare = PrepareImage(crop_padding=1, flip=True)
  crop = CropAndResize(TASK.train_crop, 8, 6)
  assert task.transform(train=True) == Chain((crop, RandAugment(), prepare))
  assert task.transform(train=False) == Chain((CropAndResize(CentralCrop(), 8, 6), PrepareImage()))


def test_augmentations_are_a_sequence_before_and_after_normalisation():
  first, second, after = RandAugment(num_ops=1), RandAugment(num_ops=3), RandomErasing(rate=1.0)
  task = dataclasses.replace(
    TASK, train_crop=None, augmentation=[first, second], normalised_augmentation=[after]
  )
  prepare = PrepareImage(flip=True)
  assert task.transform(train=True) == Chain((first, second, prepare, after))
  only = dataclasses.replace(TASK, train_crop=None, normalised_augmentation=[after])
  assert only.transform(train=True) == Chain((prepare, after))
  evaluated = CropAndResize(CentralCrop(), 8, 6)
  assert task.transform(train=False) == Chain((evaluated, PrepareImage()))
  raw = dataclasses.replace(only, augmentation=after, normalised_augmentation=())
  with pytest.raises(UserError, match=r'bind it as ImageClassification\.normalised_augmentation'):
    raw.transform(train=True)({'image': np.zeros((8, 6, 3), np.uint8)}, np.random.default_rng(0))


def test_statistics_as_settings_standardise_each_channel():
  said = TASK.statistics()
  prefix, _, settings = said.partition(': ')
  assert prefix == 'channels of 12 training images'
  values = eval(f'dict({settings})')
  assert values['mean'][0] == pytest.approx(0.125, abs=0.01)
  assert values['std'] == pytest.approx((0.0724, 0.289, 0.289), abs=0.01)
  whole = dataclasses.replace(TASK, train_crop=None, flip=False, **values)
  prepared = [whole.transform(train=True)(r, np.random.default_rng()) for r in whole.rows('train')]
  means = np.array([row['image'].mean((0, 1)) for row in prepared])
  squares = np.array([(row['image'] ** 2).mean((0, 1)) for row in prepared])
  np.testing.assert_allclose(means.mean(0), 0, atol=2e-3)
  np.testing.assert_allclose(squares.mean(0), 1, atol=5e-3)
  assert '5 training' in TASK.statistics(num_examples=5)


def test_a_value_per_channel_fits_the_channels():
  task = dataclasses.replace(TASK, mean=[0.1, 0.2, 0.3], std=(1.0, 2.0, 3.0))
  assert hash(task) == hash(dataclasses.replace(TASK, mean=(0.1, 0.2, 0.3), std=[1.0, 2.0, 3.0]))
  for name in ('mean', 'std'):
    with pytest.raises(
      UserError, match=rf'ImageClassification.{name} = .* each channel of .* = \(8, 6, 3\)'
    ):
      dataclasses.replace(TASK, **{name: (0.5, 0.5)})
  find = types.SimpleNamespace().__getattribute__
  hint = ImageClassification.__dataclass_fields__['std'].type
  assert problem((0.5, 0.1), hint, find) is None
  for bad in (0.0, (0.5, 0.0), ('a',)):
    assert 'must' in problem(bad, hint, find)


def test_crops_and_statistics_in_a_config(tmp_path, capsys):
  file = tmp_path / 'photographs.gin'
  file.write_text(PHOTOGRAPHS)
  assert main(['data', 'inspect', str(file), '--batches', '1']) == 0
  out = capsys.readouterr().out
  assert 'image float32[8, 6, 6, 1]' in out
  rows = Digits().load('train')
  images = [rows[i * len(rows) // 1000]['image'] / 255 for i in range(1000)]
  mean, std = np.mean(images), np.std(images)
  assert f'1,000 training images: mean = ({mean:.4f},), std = ({std:.4f},)' in out
  file.write_text(PHOTOGRAPHS.replace('std = (0.4,)', 'std = (0.4, 0.4, 0.4)'))
  assert main(['data', 'inspect', str(file)]) == 2
  assert (
    'one number for each channel of ImageClassification.image_shape = (6, 6, 1)'
    in capsys.readouterr().err
  )


@pytest.mark.parametrize('name', ['digits', 'fashion_mnist'])
def test_shipped_tasks_choose_by_validation_images_and_report_test_images(name):
  config = read_config(
    [ROOT / 'configs' / 'models' / 'small_vit.gin', ROOT / 'configs' / 'tasks' / f'{name}.gin']
  )
  experiment = config.build()
  assert experiment.task.eval_split == 'validation'
  assert {'train', 'validation', 'test'} <= {*experiment.task.source.splits()}
  evaluator = experiment.evaluations['test']
  assert (evaluator.split, evaluator.every) == ('test', 0), 'in the last evaluation only'


def test_repeated_images_differ_in_their_draws_and_are_in_one_batch():
  task = dataclasses.replace(TASK, repeats=3)
  rows = task.rows('train')
  batches = task.batches(rows, batch_size=6, seed=1)
  plain = TASK.batches(rows, batch_size=2, seed=1)
  assert batches.fingerprint != TASK.batches(rows, batch_size=6, seed=1).fingerprint
  seen = []
  for step in range(12):
    batch, (epochs, indices) = batches[step], batches.indices(step)
    np.testing.assert_array_equal(indices, np.repeat(plain.indices(step)[1], 3))
    np.testing.assert_array_equal(batch['label'], np.repeat(plain[step]['label'], 3))
    # Two crops of a small image may be equal.
    assert len(np.unique(batch['image'], axis=0)) >= 4
    seen += list(zip(epochs.tolist(), indices.tolist(), strict=True))
  # Each copy in each epoch has a random generator of its own.
  assert len(set(seen)) == len(seen) == 72
  for bad in ({'repeats': 4}, {'repeats': 3, 'train_crop': None, 'flip': False}):
    with pytest.raises(UserError, match=r'ImageClassification\.repeats = . must divide'):
      dataclasses.replace(TASK, **bad).batches(rows, batch_size=6, seed=1)


def test_colour_jitter_draws_the_order_and_the_strength():
  row = {'image': np.random.default_rng(0).integers(0, 256, (4, 4, 3)).astype(np.uint8)}
  jitter = ColourJitter(brightness=0.3, contrast=0.2, saturation=0.5)
  images = [jitter(row, np.random.default_rng(seed))['image'] for seed in range(6)]
  assert len({image.tobytes() for image in images}) == 6
  for factor in (
    jitter(row | {'image': np.full((2, 2, 3), 100, np.uint8)}, np.random.default_rng(s))
    for s in range(20)
  ):
    # Grey pixels of equal brightness have neither contrast nor saturation.
    assert 69 <= factor['image'].min() <= factor['image'].max() <= 130
  with pytest.raises(UserError, match='changes nothing'):
    ColourJitter()
